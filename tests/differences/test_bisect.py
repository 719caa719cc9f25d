"""The search for a change, over made-up histories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrate.bisect import first_change, most_looks

# True: differs from the first, None: cannot be told. The first member is what the others are compared with.
HISTORIES = st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=60).map(lambda rest: [False, *rest])


@given(HISTORIES)
def test_both_sides_of_a_change_were_looked_at(history: list[bool | None]) -> None:
    asked: list[int] = []

    def differs(index: int) -> bool | None:
        asked.append(index)
        return history[index]

    members = range(len(history))
    if history[-1] is None:
        with pytest.raises(ValueError, match="cannot be compared"):
            first_change(members, differs)
        return
    found = first_change(members, differs)
    assert len(asked) == len(set(asked))
    assert 0 not in asked
    if not history[-1]:
        assert (found, asked) == (None, [len(history) - 1])
        return
    assert found is not None
    assert history[found.before] is False
    assert history[found.after] is True
    assert found.skipped == tuple(range(found.before + 1, found.after))
    assert {history[index] for index in found.skipped} <= {None}


@given(st.integers(2, 2000), st.data())
def test_one_change_is_found_in_few_looks(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, count - 1))
    asked: list[int] = []

    def differs(index: int) -> bool:
        asked.append(index)
        return index >= first

    found = first_change(range(count), differs)
    assert found is not None
    assert (found.before, found.after, found.skipped) == (first - 1, first, ())
    assert len(asked) <= most_looks(count) <= 12


def test_too_few() -> None:
    with pytest.raises(ValueError, match="two members"):
        first_change(["0.0.52"], lambda version: True)
