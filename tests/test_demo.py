"""The demo model computes what a plain NumPy transformer does, and its checkpoint is one that Orbax wrote.

Run as a script, this file is the subprocess with eight CPU devices that the tests need.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from migrate.compiler.driver import worker_environment
from migrate.demo.checkpoint import STEP, write_checkpoint
from migrate.demo.model import Sizes
from migrate.errors import ReexportError

SIZES = {"layers": 2, "d_model": 32, "heads": 4, "head_dim": 8, "d_ff": 48, "vocab": 64}
BATCH, SEQUENCE = 2, 6


def _run(what: str) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, what], env=worker_environment("cpu:8"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_default_sizes_are_a_few_hundred_megabytes() -> None:
    count = sum(int(np.prod(shape)) for group in Sizes().parameter_shapes().values() for shape in group.values())
    assert 150e6 < count < 200e6


def test_decoding_token_by_token_equals_the_whole_sequence_at_once() -> None:
    found = _run("decode")
    assert found["scale"] > 0.5
    assert found["difference"] < 2e-5 * found["scale"]  # float32 in another order of additions


@pytest.mark.parametrize("mesh", ["data", "model", "other"])
def test_mesh_axes_are_optional(mesh: str) -> None:
    partitions = _run(mesh)
    used = {axis for partition in partitions.values() for axis in partition if axis}
    assert used == ({mesh} if mesh != "other" else set())


def test_next_token_uses_every_weight() -> None:
    assert _run("influence") == []


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return tuple(write_checkpoint(root / name, seed=seed, **SIZES) for name, seed in (("one", 0), ("other", 1)))


def _open(step: Path, name: str) -> Any:
    import tensorstore as ts

    base = {"driver": "file", "path": f"{step}/default/"}
    return ts.open({"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}).result()


def test_checkpoint_holds_the_decoders_weights(checkpoints: tuple[Path, Path]) -> None:
    step = checkpoints[0]
    assert step.name == str(STEP)
    for group, members in Sizes(**SIZES).parameter_shapes().items():
        for name, shape in members.items():
            array = _open(step, f"params.{group}.{name}")
            assert (array.shape, array.dtype.name) == (shape, "bfloat16")
            assert np.isfinite(np.asarray(array.read().result(), np.float32)).all()
    assert int(_open(step, "step").read().result()) == STEP


def test_checkpoint_is_sharded_as_in_training(checkpoints: tuple[Path, Path]) -> None:
    # [32, 64]: the first dimension over all eight devices; the decoder wants the second one over "model".
    assert _open(checkpoints[0], "params.head.kernel").chunk_layout.read_chunk.shape == (4, 64)


def test_values_follow_the_seed(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    again = write_checkpoint(tmp_path / "again", seed=0, **SIZES)
    values = [
        np.asarray(_open(step, "params.attention.wq").read().result(), np.float32) for step in (*checkpoints, again)
    ]
    assert not np.array_equal(values[0], values[1])
    assert np.array_equal(values[0], values[2])


def test_an_existing_checkpoint_is_not_overwritten(checkpoints: tuple[Path, Path]) -> None:
    with pytest.raises(ReexportError, match="exists already") as caught:
        write_checkpoint(checkpoints[0].parent, seed=5, **SIZES)
    assert caught.value.where == str(checkpoints[0].parent)


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReexportError, match="cannot be written") as caught:
        write_checkpoint(tmp_path / "file" / "below", **SIZES)
    assert "Error" in (caught.value.found or "")


# ---- what follows runs in the subprocess ----


def _reference(params: Any, tokens: np.ndarray) -> np.ndarray:
    """Logits [batch, sequence, vocab] of a causal transformer over whole sequences, in float64."""

    def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    def rotate(x: np.ndarray) -> np.ndarray:
        # Pairs (i, i + half) turn by position * base ** (-i / half).
        half = x.shape[-1] // 2
        angle = np.arange(x.shape[1])[:, None] * 10_000.0 ** (-np.arange(half) / half)
        turn = np.exp(1j * angle)[None, :, None, :]
        turned = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1)

    x = params["embed"]["table"][tokens]
    causal = np.tril(np.ones((tokens.shape[1],) * 2, bool))
    for number in range(params["mlp"]["norm"].shape[0]):
        attention = {name: value[number] for name, value in params["attention"].items()}
        mlp = {name: value[number] for name, value in params["mlp"].items()}
        y = norm(x, attention["norm"])
        query, key, value = (np.einsum("bsd,dhk->bshk", y, attention[name]) for name in ("wq", "wk", "wv"))
        scores = np.einsum("bqhk,bshk->bhqs", rotate(query), rotate(key)) / np.sqrt(query.shape[-1])
        scores = np.exp(np.where(causal, scores, -np.inf))
        scores /= scores.sum(-1, keepdims=True)
        x = x + np.einsum("bhqs,bshk,hkd->bqd", scores, value, attention["wo"])
        y = norm(x, mlp["norm"])
        gate = y @ mlp["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (y @ mlp["up"])) @ mlp["down"]
    return norm(x, params["final_norm"]["scale"]) @ params["head"]["kernel"]


def _decode() -> dict[str, float]:
    import jax
    import jax.numpy as jnp

    from migrate.compiler.mesh import build_mesh
    from migrate.demo.model import decode_step

    mesh = build_mesh(jax.devices(), {"data": 2, "model": 4})
    program = decode_step(mesh, batch=BATCH, sequence=SEQUENCE, **SIZES)
    generator = np.random.default_rng(0)
    # float32 instead of the program's bfloat16, so that only a mistake can differ.
    host = jax.tree.map(lambda s: generator.standard_normal(s.shape) * 0.3, program.arguments[0])
    params = jax.tree.map(lambda s, v: jax.device_put(v.astype(np.float32), s.sharding), program.arguments[0], host)
    cache = jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.float32, device=s.sharding), program.arguments[1])
    tokens = generator.integers(0, SIZES["vocab"], (BATCH, SEQUENCE)).astype(np.int32)
    step = jax.jit(program.function)
    logits = []
    for position in range(SEQUENCE):
        one, cache = step(params, cache, tokens[:, position], np.int32(position))
        logits.append(np.asarray(one))
    expected = _reference(host, tokens)
    difference = np.abs(np.stack(logits, axis=1) - expected).max()
    return {"difference": float(difference), "scale": float(np.abs(expected).max())}


def _partitions(axis: str) -> dict[str, list[str | None]]:
    import jax

    from migrate.compiler.mesh import build_mesh
    from migrate.demo.model import decode_step
    from migrate.demo.tiny import next_token_step

    mesh = build_mesh(jax.devices()[:4], {axis: 4})
    programs = [decode_step(mesh, batch=4, **SIZES), next_token_step(mesh)]
    leaves = jax.tree.leaves_with_path([program.arguments for program in programs])
    return {jax.tree_util.keystr(path): list(leaf.sharding.spec) for path, leaf in leaves}


def _influence() -> list[str]:
    """Weights of the next-token step whose change changes no result."""
    import jax

    from migrate.compiler.mesh import build_mesh
    from migrate.demo.tiny import next_token, next_token_step

    program = next_token_step(build_mesh(jax.devices(), {"data": 2, "model": 4}))
    generator = np.random.default_rng(0)

    def random(struct: Any) -> np.ndarray:
        if struct.dtype == bool:
            return np.ones(struct.shape, bool)
        return (generator.standard_normal(struct.shape) * 4).astype(struct.dtype)

    tokens = np.arange(16, dtype=np.int32)
    params = jax.tree.map(random, program.arguments[0])
    before = np.asarray(next_token(params, tokens)[1])
    flat, tree = jax.tree.flatten_with_path(params)
    silent = []
    for number, (path, value) in enumerate(flat):
        values = [v for _, v in flat]
        values[number] = ~value if value.dtype == bool else (value + 1).astype(value.dtype)
        after = np.asarray(next_token(tree.unflatten(values), tokens)[1])
        if np.array_equal(before, after):
            silent.append(jax.tree_util.keystr(path))
    return silent


def _main(what: str) -> None:
    runs = {"decode": _decode, "influence": _influence}
    sys.stdout.write(json.dumps(runs[what]() if what in runs else _partitions(what)))


if __name__ == "__main__":
    _main(sys.argv[1])
