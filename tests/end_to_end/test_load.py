"""An export as a serving process meets it."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorstore as ts

import migrate
from migrate import loader
from migrate.compiler.mesh import build_mesh
from migrate.demo.model import decode_step
from migrate.errors import EnvironmentMismatchError, NotAnExportError, StorageError, VerificationError
from migrate.loader import _logical
from migrate.zarr import STORABLE_DTYPES
from tests.rewriting.conftest import random_array

from .conftest import SIZES, small_job

Exports = Callable[[str, str], migrate.Export]


def checkpoint_tree(path: Path, root: str) -> dict[str, Any]:
    """The leaves below ``root`` as nested dicts of NumPy arrays, read through our sources."""
    tree: dict[str, Any] = {}
    for leaf in migrate.open_checkpoint(str(path)).leaves:
        if leaf.path[0] != root:
            continue
        node = tree
        for key in leaf.path[1:-1]:
            node = node.setdefault(key, {})
        node[leaf.path[-1]] = leaf.read()
    return tree


def assert_equal_trees(loaded: Any, expected: Any) -> None:
    assert jax.tree.structure(loaded) == jax.tree.structure(expected)
    for (path, array), original in zip(
        jax.tree_util.tree_leaves_with_path(loaded), jax.tree.leaves(expected), strict=True
    ):
        assert array.dtype == original.dtype, path
        assert np.asarray(array).tobytes() == original.tobytes(), path


@pytest.mark.parametrize("executable", ["serialized", "recompile"])
def test_the_loaded_program_is_the_model(exports: Exports, decoder_checkpoint: Path, executable: Any) -> None:
    call, params = migrate.load(exports("decoder", "cpu:8").uri, executable=executable)
    original = checkpoint_tree(decoder_checkpoint, "params")
    assert_equal_trees(params, original)

    # the same model, compiled here by plain jit for the same mesh, on the original checkpoint
    mesh = build_mesh(jax.devices(), {"data": 2, "model": 4})
    program = decode_step(mesh, batch=4, sequence=16, **SIZES)
    shardings = jax.tree.map(lambda struct: struct.sharding, program.arguments)
    reference = jax.jit(program.function, in_shardings=shardings, donate_argnums=program.donated)
    tokens = np.asarray([3, 5, 7, 511], np.int32)
    cache = jax.tree.map(lambda struct: np.zeros(struct.shape, struct.dtype), program.arguments[1])
    expected_cache = cache
    for position in range(3):
        logits, cache = call(params, cache, tokens, np.int32(position))
        expected, expected_cache = reference(original, expected_cache, tokens, np.int32(position))
        np.testing.assert_array_equal(np.asarray(logits), np.asarray(expected))
        tokens = np.asarray(logits.argmax(-1), np.int32)
    assert_equal_trees(cache, jax.tree.map(np.asarray, expected_cache))


@pytest.mark.parametrize("executable", ["serialized", "recompile"])
def test_parameters_lie_as_the_executable_wants_them(exports: Exports, executable: Any) -> None:
    loaded = migrate.load(exports("decoder", "cpu:8").uri, executable=executable)
    formats = loaded.compiled.input_formats[0][0]
    jax.tree.map(_assert_same_format, loaded.params, formats)


def _assert_same_format(array: jax.Array, wanted: Any) -> None:
    assert array.format.layout == wanted.layout
    assert array.sharding.is_equivalent_to(wanted.sharding, array.ndim)


class Trap:
    """Does harm when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("the executable was unpickled",))


def test_recompiling_never_opens_the_executable(exports: Exports, tmp_path: Path) -> None:
    """Nor does it ask for the versions that the serialized executable needs."""
    output = shutil.copytree(exports("decoder", "cpu:8").paths.output, tmp_path / "out")
    (executable,) = output.rglob("executable.bin")
    executable.write_bytes(pickle.dumps(Trap()))
    loaded = migrate.load(output, executable="recompile")
    assert jax.tree.leaves(loaded.params)
    with pytest.raises(VerificationError, match=r"executable\.bin"):
        migrate.load(output)
    with pytest.raises(ValueError, match="serialized"):
        migrate.load(output, executable="pickle")  # type: ignore[arg-type]


def test_recompiling_keeps_the_layouts_of_the_export(exports: Exports) -> None:
    """Whatever the arrays' own order: the parameters of one load are taken by the program of the other."""
    decoder = exports("decoder", "cpu:8").uri
    once = migrate.load(decoder)
    again = migrate.load(decoder, executable="recompile", params=once.params)
    assert jax.tree.leaves(again.params) == jax.tree.leaves(once.params)


PINNED_MODEL = """
import jax, jax.numpy as jnp, migrate
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec as P


def step(mesh):
    def pinned(shape, dtype, order, *axes):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=Format(Layout(order), NamedSharding(mesh, P(*axes))))

    params = {
        "rank3": {"w": pinned((4, 6, 2), jnp.float32, (2, 0, 1), "x")},
        "dense": {"kernel": pinned((8, 12), jnp.bfloat16, (1, 0), None, "x")},
        "quant": {"w_int8": pinned((8, 8), jnp.int8, (1, 0), "x", "y")},
        "unused": {"cols": pinned((6, 16), jnp.bfloat16, (1, 0), ("y", "x"))},
    }
    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    return migrate.Program(lambda params, x: (x @ params["dense"]["kernel"], params["rank3"]["w"].sum()), (params, x))
"""


def test_other_dimension_orders(old_checkpoint: Path, tmp_path: Path) -> None:
    """XLA:CPU always chooses row-major, so a model that pins other orders shows that loading them is exact."""
    (tmp_path / "pinned.py").write_text(PINNED_MODEL.replace('("y", "x")', '"y"'))
    job = {
        **small_job(old_checkpoint, tmp_path / "out", "cpu:8"),
        "program": {"entry": "pinned:step"},
        "target": {"topology": "cpu:8", "mesh": {"x": 4, "y": 2}},
        "mapping": [
            {"rename": "cols/w", "to": "unused/cols"},
            {"drop": "(embed|rows)/.*"},
            {"drop": "dense/bias"},
            {"drop": "quant/(?!w_int8).*"},
        ],
        "python_path": [str(tmp_path)],
    }
    result = migrate.run(job)
    assert {array.name: array.stored.major_to_minor for array in result.plan.arrays} == {
        "rank3/w": (2, 0, 1),
        "dense/kernel": (1, 0),
        "quant/w_int8": (1, 0),
        "unused/cols": (1, 0),
    }
    loaded = migrate.load(str(tmp_path / "out"))
    tree = checkpoint_tree(old_checkpoint, "params")
    expected = {
        name: {key: tree[name][key]} for name, key in (("rank3", "w"), ("dense", "kernel"), ("quant", "w_int8"))
    }
    assert_equal_trees(loaded.params, {**expected, "unused": {"cols": tree["cols"]["w"]}})
    jax.tree.map(_assert_same_format, loaded.params, loaded.compiled.input_formats[0][0])
    product, total = loaded.call(loaded.params, np.arange(8, dtype=np.float32))
    np.testing.assert_allclose(
        product, np.arange(8, dtype=np.float32) @ tree["dense"]["kernel"].astype(np.float32), rtol=1e-2
    )
    np.testing.assert_allclose(total, tree["rank3"]["w"].sum(), rtol=1e-6)


def test_the_dimension_order_is_given_without_moving_bytes() -> None:
    """What the loader runs on the device is a bitcast of memory that the result takes over: nothing is left to do."""
    mesh = build_mesh(jax.devices(), {"x": 8})
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    format_ = jax.experimental.layout.Format(jax.experimental.layout.Layout((1, 2, 0)), sharding)
    physical = jax.ShapeDtypeStruct(
        (4, 6, 16), np.float32, sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, None, "x"))
    )
    text = _logical((1, 2, 0), format_).lower(physical).compile().as_text()
    entry = text[text.index("ENTRY") :]
    operations = set(re.findall(r"= \S+ ([a-z-]+)\(", entry))
    assert operations <= {"parameter", "bitcast"}, entry
    assert "input_output_alias={ {}: (0" in text


@pytest.mark.parametrize("most_bytes", [1, 3000, 1 << 30], ids=["a shard at a time", "some", "all at once"])
def test_however_many_shards_are_under_way(
    exports: Exports, decoder_checkpoint: Path, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_AHEAD_BYTES", most_bytes)
    _, params = migrate.load(exports("decoder", "cpu:8").uri)
    assert_equal_trees(params, checkpoint_tree(decoder_checkpoint, "params"))


@pytest.mark.parametrize("dtype", STORABLE_DTYPES)
@pytest.mark.parametrize("shape", [(), (3, 5), (0, 2)])
def test_shards_of_any_dtype_are_read_into_aligned_memory(dtype: str, shape: tuple[int, ...]) -> None:
    values = random_array(shape, dtype)
    shard = loader._Shard(None, ts.array(values).transpose(), (), values.nbytes)  # type: ignore[arg-type]
    shard.read()
    shard._read.result()
    assert shard._elements is not None
    assert not values.size or shard._elements.ctypes.data % 64 == 0
    assert shard._elements.tobytes() == values.T.tobytes()


def test_unreadable_array_is_named(exports: Exports, tmp_path: Path) -> None:
    output = shutil.copytree(exports("small", "cpu:8").paths.output, tmp_path / "out")
    for data in output.glob("params/*/ocdbt.process_*/d/*"):
        data.write_bytes(b"")
    with pytest.raises(StorageError, match=r"array \S+ cannot be read"):
        migrate.load(output)


def test_refused_before_anything_is_read(exports: Exports) -> None:
    with pytest.raises(EnvironmentMismatchError) as caught:
        migrate.load(exports("small", "v5e:2x4").uri)
    assert caught.value.expected == "8 tpu devices"
    assert "8 cpu devices" in str(caught.value.found)
    with pytest.raises(EnvironmentMismatchError, match="does not have the devices"):
        migrate.load(exports("small", "cpu:8").uri, devices=jax.devices()[:4])


def test_a_swapped_executable_is_never_unpickled(exports: Exports, tmp_path: Path) -> None:
    output = tmp_path / "copy"
    shutil.copytree(exports("small", "cpu:8").paths.output, output)
    executable = next(output.rglob("executable.bin"))
    executable.write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(VerificationError, match="not the one that was committed"):
        migrate.load(str(output))
    assert not Path("owned").exists()


def test_not_an_export(tmp_path: Path) -> None:
    with pytest.raises(NotAnExportError):
        migrate.load(str(tmp_path))


CALLS = {
    # argument number, what is given, words of the error; None: it is taken
    "one token less": (2, np.zeros(3, np.int32), "argument tokens: expected int32[4], got int32[3]"),
    "a list": (2, [1, 2, 3, 4], "argument tokens: expected the tree"),
    "floats": (2, np.zeros(4, np.float32), "argument tokens: expected int32[4], got float32[4]"),
    "numbers that do not fit": (2, np.arange(4, dtype=np.int64) + 2**32, "argument tokens: there are values"),
    "numbers that fit": (2, np.arange(4, dtype=np.int64), None),
    "a Python number": (3, 0, None),
    "a large Python number": (3, 2**40, "argument position: there are values"),
    "another tree": (1, {"keys": 0}, "argument cache: expected the tree"),
}


@pytest.mark.parametrize("case", CALLS)
def test_arguments_are_named_when_they_do_not_fit(case: str, exports: Exports) -> None:
    number, given, words = CALLS[case]
    loaded = migrate.load(exports("decoder", "cpu:8").uri)
    mesh = build_mesh(jax.devices(), {"data": 2, "model": 4})
    structs = decode_step(mesh, batch=4, sequence=16, **SIZES).arguments
    arguments = [loaded.params, *(jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), tree) for tree in structs[1:])]
    expected = np.asarray(loaded(*arguments)[0])
    arguments = [loaded.params, *(jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), tree) for tree in structs[1:])]
    arguments[number] = given
    if words is None:
        assert np.asarray(loaded(*arguments)[0]).shape == expected.shape
        return
    with pytest.raises(TypeError, match=re.escape(words)):
        loaded(*arguments)
