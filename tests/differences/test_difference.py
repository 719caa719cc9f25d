"""What follows from two signatures that differ; pure."""

from __future__ import annotations

import dataclasses
import json

import pytest

import migrate
from migrate.config import Job, job_from_mapping
from migrate.difference import compare_signatures
from migrate.errors import ConfigError
from migrate.overrides import override_target
from migrate.signature import DeviceMemory, Fingerprint, ParameterSpec, Signature

W = ParameterSpec(
    number=0,
    argument="params",
    path=("w",),
    sequence_levels=(False,),
    shape=(64, 256),
    dtype="bfloat16",
    partition=((), ("model",)),
    shard_shape=(64, 128),
    major_to_minor=(0, 1),
    tiles=((8, 128), (2, 1)),
    is_weight=True,
)
V = dataclasses.replace(W, number=1, path=("v",))
X = dataclasses.replace(W, number=2, argument="x", path=(), sequence_levels=(), is_weight=False)
FINGERPRINT = Fingerprint("ab" * 32, "v5e:1x2", (("model", 2),), "0.10.2", "0.10.2", "0.0.42.1", (), "auto")
BEFORE = Signature("main", (W, V, X), FINGERPRINT, DeviceMemory(49152, 0, 512, 1024))


def after(*parameters: ParameterSpec, **fingerprint: str) -> Signature:
    return dataclasses.replace(
        BEFORE, parameters=parameters, fingerprint=dataclasses.replace(FINGERPRINT, **fingerprint)
    )


def test_equal_signatures() -> None:
    difference = compare_signatures(BEFORE, BEFORE)
    assert difference.kind == "nothing to do"
    assert difference.same_layouts
    assert difference.rewritten == ()


def test_another_compiler_with_the_same_layouts() -> None:
    difference = compare_signatures(BEFORE, after(W, V, X, libtpu="0.0.52"))
    assert difference.kind == "recompile only"
    assert difference.same_layouts
    assert [change.field for change in difference.fingerprint] == ["libtpu"]


@pytest.mark.parametrize(
    ("change", "aspects", "rewrite"),
    [
        ({"major_to_minor": (1, 0)}, ("dimension order",), True),
        ({"dtype": "float32"}, ("dtype",), True),
        ({"shape": (64, 512), "shard_shape": (64, 256)}, ("shape",), True),
        ({"partition": (("model",), ()), "shard_shape": (32, 256)}, ("sharding",), True),
        # the same shards on other devices: stored alike
        ({"partition": ((), ("other",))}, ("sharding",), False),
        ({"tiles": ((16, 128), (2, 1))}, ("tiling",), False),
        ({"memory_kind": "pinned_host"}, ("memory space",), False),
    ],
)
def test_what_makes_an_array_be_rewritten(change: dict[str, object], aspects: tuple[str, ...], rewrite: bool) -> None:
    difference = compare_signatures(BEFORE, after(dataclasses.replace(W, **change), V, X))
    (found,) = difference.parameters
    assert (found.name, found.aspects, found.rewrite) == ("params/w", aspects, rewrite)
    assert difference.kind == ("rewrite" if rewrite else "recompile only")
    assert not difference.same_layouts
    json.dumps(difference.to_json())


def test_inputs_are_never_rewritten() -> None:
    difference = compare_signatures(BEFORE, after(W, V, dataclasses.replace(X, major_to_minor=(1, 0))))
    assert difference.kind == "recompile only"


def test_chunks_follow_the_planners_bound() -> None:
    moved = after(dataclasses.replace(W, partition=(("model",), ()), shard_shape=(32, 256)), V, X)
    # rows of 256 and of 512 bytes: cut to 2 x 128 and 1 x 256, and under the smaller bound both to 1 x 128
    assert compare_signatures(BEFORE, moved, max_chunk_bytes=512).kind == "rewrite"
    assert compare_signatures(BEFORE, moved, max_chunk_bytes=256).kind == "recompile only"


def test_added_and_removed_parameters() -> None:
    new = dataclasses.replace(V, path=("u",))
    difference = compare_signatures(BEFORE, after(W, new, X))
    assert [(change.name, change.aspects) for change in difference.parameters] == [
        ("params/v", ("removed",)),
        ("params/u", ("added",)),
    ]
    assert difference.rewritten == (new,)
    assert difference.changed_device_bytes() == (V.device_bytes, new.device_bytes)
    removed = compare_signatures(BEFORE, after(W, X))
    assert (removed.rewritten, removed.kind) == ((), "rewrite")


JOB = {
    "source": {"path": "checkpoint"},
    "program": {"entry": "a:b"},
    "target": {"topology": "v5e:2x4", "mesh": {"data": 2, "model": 4}},
    "output": "out",
}


def job() -> Job:
    return job_from_mapping(JOB)


def test_overrides() -> None:
    settings = ["topology=v6e:2x4", "mesh.data=4", "mesh.model=2", "layout=default", "flags.xla_tpu_x=true"]
    target = override_target(job(), settings).target
    assert (target.topology, target.mesh, target.layout) == ("v6e:2x4", {"data": 4, "model": 2}, "default")
    assert target.flags == {"xla_tpu_x": True}
    assert override_target(job(), ["mesh={all: 8}"]).target.mesh == {"all": 8}
    assert override_target(job(), ["mesh.data=", "mesh.model=8"]).target.mesh == {"model": 8}
    assert override_target(job(), ["libtpu=0.0.52"]).target.libtpu == "0.0.52"
    assert override_target(job(), []) == job()
    assert job().target.mesh == {"data": 2, "model": 4}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("topologi=v5e:2x4", "did you mean topology"),
        ("topology", "sets nothing"),
        ("=3", "sets nothing"),
        ("mesh.data=many", "mesh.data"),
        ("layout=fast", "layout"),
        ("topology.x=1", "has no entries"),
        ("flags.x=[", "is no value"),
        ("topology=", "topology: is missing"),
    ],
)
def test_overrides_that_no_target_has(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        override_target(job(), [setting], where="--b")
    assert str(caught.value.where).startswith("--b")


def test_the_api() -> None:
    assert migrate.compare_signatures is compare_signatures
