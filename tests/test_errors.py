"""Every error type travels between processes and through JSON, and ends the command with its exit code."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from migrate import errors, rewrite
from migrate.errors import ExitCode, ReexportError, from_json


def kinds(base: type[ReexportError] = ReexportError) -> list[type[ReexportError]]:
    return [base, *(kind for child in base.__subclasses__() for kind in kinds(child))]


KINDS = sorted(set(kinds()), key=lambda kind: kind.__name__)
PARTS = {"where": "a/b [0:4]", "expected": "4 bytes", "found": "3 bytes", "remedy": "restore it"}

EXIT_CODES = {
    # a job file that cannot be used is wrong usage, as a wrong option is
    errors.ConfigError: ExitCode.USAGE,
    errors.TargetError: ExitCode.USAGE,
    errors.ProgramError: ExitCode.USAGE,
    # so is a text that is not what `reexport explain` takes
    errors.UnknownMessageError: ExitCode.USAGE,
    # something was checked and is stale or different
    errors.VerificationError: ExitCode.MISMATCH,
    errors.EnvironmentMismatchError: ExitCode.MISMATCH,
    # a run that fails its own verification has failed; nothing that exists is wrong
    errors.RewriteVerificationError: ExitCode.FAILED,
}


def test_the_walk_finds_the_types() -> None:
    assert {errors.ReexportError, errors.RewriteVerificationError, rewrite.StoppedError} <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [PARTS, {}, {"where": "a"}], ids=["all parts", "no parts", "one part"])
def test_round_trips(kind: type[ReexportError], parts: dict[str, str]) -> None:
    error = kind("it broke", **parts)
    copies = {
        "pickle": pickle.loads(pickle.dumps(error)),
        "copy": copy.copy(error),
        "json": from_json(json.loads(json.dumps(error.to_json()))),
    }
    for way, found in copies.items():
        assert type(found) is kind, way
        assert (found.what, *(getattr(found, part) for part in PARTS)) == (
            "it broke",
            *(parts.get(part) for part in PARTS),
        ), way
        assert str(found) == str(error), way


@pytest.mark.parametrize("kind", KINDS)
def test_exit_codes(kind: type[ReexportError]) -> None:
    assert kind("x").exit_code is EXIT_CODES.get(kind, ExitCode.FAILED)


@pytest.mark.parametrize("kind", KINDS)
def test_names_end_in_error_and_are_unique(kind: type[ReexportError]) -> None:
    assert kind.__name__.endswith("Error")
    assert [k.__name__ for k in KINDS].count(kind.__name__) == 1  # the name is the key in JSON


def test_text_is_what_then_the_known_parts_in_order() -> None:
    assert str(ReexportError("it broke", remedy="mend it", where="here")) == (
        "it broke\n  where: here\n  do this: mend it"
    )
    assert str(ReexportError("it broke")) == "it broke"


def test_unknown_type_becomes_the_base_type() -> None:
    """A newer worker may name a type that this process does not have."""
    found = from_json({"error": "FutureError", "what": "new trouble"})
    assert type(found) is ReexportError
    assert found.what == "new trouble"


def test_layout_syntax_error_is_a_value_error() -> None:
    assert issubclass(errors.LayoutSyntaxError, ValueError)
