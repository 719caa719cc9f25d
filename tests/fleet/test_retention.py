"""What a collection decides: a table of cases, and what holds for every inventory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrate.retention import Committed, Decision, Inventory, decide

NOW, GRACE = 10_000.0, 100.0
A, B, C = (Committed(name, f"2026-11-0{day}", f"set-{name}") for day, name in enumerate("abc", 1))


def inventory(**changes: Any) -> Inventory:
    """Three exports, each with its own set; c is the newest and current."""
    sets = frozenset({"set-a", "set-b", "set-c"})
    return Inventory(**{"committed": (A, B, C), "hidden": {}, "sets": sets, "current": "c", **changes})


CASES = {
    # name: (inventory, keep, what is expected of the decision)
    "nothing to do": (inventory(), 3, {"hide": (), "delete_exports": (), "delete_sets": ()}),
    "the oldest are hidden, and marked": (inventory(), 1, {"hide": ("a", "b"), "mark_exports": ("a", "b")}),
    "nothing hidden now is deleted now": (inventory(), 1, {"delete_exports": (), "delete_sets": ()}),
    "the current one stays, however old": (inventory(current="a"), 1, {"hide": ("b",)}),
    "an output whose LATEST is missing": (inventory(current=None), 1, {"hide": ("a", "b")}),
    "tries that failed push nothing out": (inventory(current="a", published={"a"}), 1, {"hide": ("b",)}),
    "what was current stays beside newer tries": (
        inventory(current="a", published={"a", "b"}),
        1,
        {"hide": (), "keep": {"c": "the newest", "b": "the newest of those that were current", "a": "current"}},
    ),
    "a running job keeps the exports of its set": (inventory(running=frozenset({"set-a"})), 1, {"hide": ("b",)}),
    "the grace period is over": (
        inventory(committed=(B, C), hidden={"a": "set-a"}, export_marks={"a": NOW - GRACE}),
        2,
        {"delete_exports": ("a",), "delete_sets": ("set-a",)},
    ),
    "the grace period lasts": (
        inventory(committed=(B, C), hidden={"a": "set-a"}, export_marks={"a": NOW - GRACE + 1}),
        2,
        {"delete_exports": (), "delete_sets": (), "waiting_exports": ("a",)},
    ),
    "an export goes, the set that it shares stays": (
        inventory(committed=(B, C), hidden={"a": "set-b"}, sets={"set-b", "set-c"}, export_marks={"a": 0}),
        2,
        {"delete_exports": ("a",), "delete_sets": ()},
    ),
    "committed again: its old mark is removed": (
        inventory(export_marks={"a": 0}, set_marks={"set-a": 0}),
        3,
        {"unmark_exports": ("a",), "unmark_sets": ("set-a",), "delete_exports": (), "delete_sets": ()},
    ),
    "committed again and not wanted again: the grace period starts anew": (
        inventory(export_marks={"a": 0}),
        2,
        {"hide": ("a",), "mark_exports": ("a",), "delete_exports": ()},
    ),
    "left by an interrupted run: marked first": (
        inventory(sets={"set-a", "set-b", "set-c", "half"}),
        3,
        {"mark_sets": ("half",), "delete_sets": ()},
    ),
    "left by an interrupted run a grace period ago": (
        inventory(sets={"set-a", "set-b", "set-c", "half"}, set_marks={"half": 0}),
        3,
        {"delete_sets": ("half",)},
    ),
    "a running job's set, marked when it was interrupted before": (
        inventory(sets={"set-a", "set-b", "set-c", "half"}, set_marks={"half": 0}, running=frozenset({"half"})),
        3,
        {"delete_sets": (), "waiting_sets": ("half",)},
    ),
    "an unfinished export of an unknown set, while some job runs": (
        inventory(hidden={"x": None}, export_marks={"x": 0}, running=frozenset({"half"})),
        3,
        {"delete_exports": (), "waiting_exports": ("x",)},
    ),
    "an unfinished export of an unknown set": (
        inventory(hidden={"x": None}, export_marks={"x": 0}),
        3,
        {"delete_exports": ("x",)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    given_inventory, keep, expected = CASES[name]
    decision = decide(given_inventory, keep=keep, grace_seconds=GRACE, now=NOW)
    assert {key: getattr(decision, key) for key in expected} == expected


def test_without_a_grace_period_all_goes_at_once() -> None:
    decision = decide(inventory(sets={"set-a", "set-b", "set-c", "half"}), keep=1, grace_seconds=0, now=NOW)
    assert decision.hide == decision.delete_exports == ("a", "b")
    assert decision.delete_sets == ("half", "set-a", "set-b")
    assert decision.mark_exports == decision.mark_sets == ()


NAMES = st.sampled_from("abcdef")
SETS = st.sampled_from(["s0", "s1", "s2", "s3"])
TIMES = st.floats(0, 2 * NOW)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    committed = draw(st.lists(st.builds(Committed, NAMES, st.sampled_from("123"), SETS), unique_by=lambda e: e.id))
    ids = {export.id for export in committed}
    hidden = {k: v for k, v in draw(st.dictionaries(NAMES, st.none() | SETS)).items() if k not in ids}
    return Inventory(
        committed=tuple(committed),
        hidden=hidden,
        sets=draw(st.frozensets(SETS)) | {export.parameter_set for export in committed},
        current=draw(st.sampled_from(sorted(ids))) if ids else None,
        published=draw(st.frozensets(NAMES)),
        running=draw(st.frozensets(SETS)),
        export_marks=draw(st.dictionaries(NAMES, TIMES)),
        set_marks=draw(st.dictionaries(SETS, TIMES)),
    )


@given(inventories(), st.integers(1, 4), st.sampled_from([0.0, GRACE, 1e9]))
def test_what_holds_always(found: Inventory, keep: int, grace: float) -> None:
    decision: Decision = decide(found, keep=keep, grace_seconds=grace, now=NOW)
    ids = {export.id for export in found.committed}
    sets_of = {**found.hidden, **{export.id: export.parameter_set for export in found.committed}}
    # every visible export is kept or hidden; enough are kept, the current one among them
    assert set(decision.keep) | set(decision.hide) == ids
    assert not set(decision.keep) & set(decision.hide)
    assert len(decision.keep) >= min(keep, len(ids))
    assert found.current is None or found.current in decision.keep
    assert len(found.published & set(decision.keep)) >= min(keep, len(found.published & ids))
    # what goes is not referred to, nobody writes it, and readers had their time
    stay = (set(decision.keep) | set(found.hidden) | set(decision.hide)) - set(decision.delete_exports)
    assert not set(decision.delete_sets) & {sets_of[name] for name in stay}
    assert not set(decision.delete_sets) & found.running
    assert not set(decision.delete_exports) & set(decision.keep)
    for name in decision.delete_exports:
        assert grace == 0 or (name in found.hidden and found.export_marks[name] <= NOW - grace)
        assert sets_of[name] not in found.running
    # what stays though it is not wanted has a mark, so that it goes some day
    for name in stay - set(decision.keep):
        assert name in decision.mark_exports or name in found.export_marks
