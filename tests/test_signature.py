"""Signatures as JSON, their sums, and the difference of two."""

from __future__ import annotations

import dataclasses

import pytest

from migrate.errors import ReexportError
from migrate.signature import Change, DeviceMemory, Fingerprint, ParameterSpec, Signature, diff

TABLE = ParameterSpec(
    number=0,
    argument="params",
    path=("embed", "table"),
    sequence_levels=(False, False),
    shape=(16, 1280, 40),
    dtype="bfloat16",
    partition=((), ("data", "model"), ()),
    shard_shape=(16, 160, 40),
    major_to_minor=(0, 2, 1),
    tiles=((8, 128), (2, 1)),
    is_weight=True,
)
QUANTISED = ParameterSpec(
    number=1,
    argument="params",
    path=("layers", "0"),
    sequence_levels=(False, True),
    shape=(64, 64),
    dtype="int4",
    partition=((), ()),
    shard_shape=(64, 64),
    major_to_minor=(0, 1),
    tiles=((8, 128), (8, 1)),
    element_bits=4,
    is_weight=True,
)
POSITION = ParameterSpec(
    number=2,
    argument="position",
    path=(),
    sequence_levels=(),
    shape=(),
    dtype="int32",
    partition=(),
    shard_shape=(),
    major_to_minor=(),
    memory_kind="pinned_host",
)
SIGNATURE = Signature(
    program="decode",
    parameters=(TABLE, QUANTISED, POSITION),
    fingerprint=Fingerprint(
        stablehlo_sha256="ab" * 32,
        topology="v5e:2x4",
        mesh=(("data", 2), ("model", 4)),
        jax="0.10.2",
        jaxlib="0.10.2",
        libtpu="0.0.42.1",
        flags=(("xla_a", "true"), ("xla_b", "3")),
        layout_policy="auto",
    ),
    memory=DeviceMemory(argument_bytes=331_776, output_bytes=0, temporary_bytes=512, code_bytes=1024),
)


def test_json_round_trip() -> None:
    assert Signature.from_json(SIGNATURE.to_json()) == SIGNATURE
    assert Signature.from_json(SIGNATURE.to_json().encode()) == SIGNATURE


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"program": 3}', '{"program": "decode", "parameters": 7}'])
def test_other_json_is_an_error_that_names_the_file(text: str) -> None:
    with pytest.raises(ReexportError, match="not a signature") as caught:
        Signature.from_json(text, where="signature.json")
    assert caught.value.where == "signature.json"
    assert caught.value.found
    assert "pydantic.dev" not in caught.value.found


def test_names_sizes_and_layouts() -> None:
    assert TABLE.name == "embed/table"
    assert str(TABLE.shard) == "bf16[16,160,40]{1,2,0:T(8,128)(2,1)}"
    assert TABLE.device_bytes == 16 * 40 * 256 * 2  # 160 padded to 256
    assert TABLE.nbytes == 16 * 1280 * 40 * 2
    assert str(QUANTISED.shard) == "s4[64,64]{1,0:T(8,128)(8,1)E(4)}"
    assert str(POSITION.shard) == "s32[]{:S(5)}"
    assert SIGNATURE.device_bytes == TABLE.device_bytes + 4096 + 4
    assert SIGNATURE.weights == (TABLE, QUANTISED)
    assert SIGNATURE.device_count == 8


def test_digest_depends_on_every_field() -> None:
    fingerprint = SIGNATURE.fingerprint
    changed = {
        "stablehlo_sha256": "cd" * 32,
        "topology": "v5e:4x2",
        "mesh": (("model", 4), ("data", 2)),
        "jax": "0.12.0",
        "jaxlib": "0.12.0",
        "libtpu": "",
        "flags": (),
        "layout_policy": "default",
    }
    assert set(changed) == {field.name for field in dataclasses.fields(Fingerprint)}
    digests = {dataclasses.replace(fingerprint, **{name: value}).digest for name, value in changed.items()}
    assert len(digests | {fingerprint.digest}) == len(changed) + 1
    assert Signature.from_json(SIGNATURE.to_json()).fingerprint.digest == fingerprint.digest


def test_equal_signatures_do_not_differ() -> None:
    assert diff(SIGNATURE, Signature.from_json(SIGNATURE.to_json())) == []


def test_diff_names_what_changed_in_order() -> None:
    moved = dataclasses.replace(TABLE, major_to_minor=(0, 1, 2), number=1)
    added = dataclasses.replace(QUANTISED, path=("layers", "1"))
    after = dataclasses.replace(
        SIGNATURE,
        parameters=(added, moved, POSITION),
        fingerprint=dataclasses.replace(SIGNATURE.fingerprint, libtpu="0.0.52"),
    )
    packed = "s4[64,64]{1,0:T(8,128)(8,1)E(4)}"
    assert diff(SIGNATURE, after) == [
        Change("fingerprint", "libtpu", "0.0.42.1", "0.0.52"),
        Change("params/embed/table", "major_to_minor", (0, 2, 1), (0, 1, 2)),
        Change("params/layers/0", "parameter", packed, None),
        Change("params/layers/1", "parameter", None, packed),
    ]
    assert str(diff(SIGNATURE, after)[1]) == "params/embed/table: major_to_minor (0, 2, 1) -> (0, 1, 2)"


def test_diff_of_memory_kind_and_dtype() -> None:
    after = dataclasses.replace(
        SIGNATURE, parameters=(TABLE, dataclasses.replace(QUANTISED, dtype="int8", memory_kind="pinned_host"), POSITION)
    )
    assert [(change.field, change.before, change.after) for change in diff(SIGNATURE, after)] == [
        ("dtype", "int4", "int8"),
        ("memory_kind", "device", "pinned_host"),
    ]
