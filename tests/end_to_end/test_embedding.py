"""The tutorial's model: real weights, checked against embeddings computed without JAX, and its failure on purpose."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

import migrate

from .conftest import reexport

HEADS = ("query", "key", "value")


@pytest.fixture(scope="module")
def example(repository: Path) -> Path:
    return repository / "examples" / "embedding"


@pytest.fixture(scope="module")
def reference(example: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("embedding_reference", example / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def job(example: Path, minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of a job file -> the same job with the weights and an output of this test."""
    folder = tmp_path_factory.mktemp("embedding")

    def write(name: str) -> Path:
        document = yaml.safe_load((example / name).read_text())
        document["source"]["path"] = str(minilm / "model.safetensors")
        document["output"] = str(folder / Path(name).stem)
        document["python_path"] = [str(example)]
        (folder / name).write_text(yaml.safe_dump(document, sort_keys=False))
        return folder / name

    return write


def run_python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, env=dict(os.environ)
    )


def test_cpu_export_gives_the_reference_embeddings(
    example: Path, minilm: Path, job: Callable[[str], Path], tmp_path: Path
) -> None:
    path = job("embedding.yaml")
    done = reexport("run", path)
    assert done.returncode == 0, done.stderr
    output = path.with_suffix("")
    assert reexport("verify", output, "--source").returncode == 0

    checked = run_python(example / "check.py", output, minilm)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("differs by") == 6
    # the French sentence lies next to its English translation
    assert "'Le café est fermé le lundi.': 'On Mondays the café is closed.'" in checked.stdout

    # the same weights, placed without the export's layouts
    failed = run_python(example / "own_placement.py", output)
    assert failed.returncode == 1
    assert "Computation was compiled for input layouts that disagree" in failed.stderr
    (tmp_path / "error.txt").write_text(failed.stderr)
    explained = reexport("explain", "--file", tmp_path / "error.txt", "--export", output, "--json")
    assert explained.returncode == 0, explained.stderr
    mismatches = json.loads(explained.stdout)["mismatches"]
    assert len(mismatches) == 3
    assert all("migrate.load" in json.dumps(mismatch) for mismatch in mismatches)


def test_a_wrong_weight_is_noticed(example: Path, minilm: Path, job: Callable[[str], Path], tmp_path: Path) -> None:
    """The comparison can fail: query and key, which have the same shapes, the wrong way round."""
    document = yaml.safe_load(job("embedding.yaml").read_text())
    swap = [
        {"rename": f"layers/{one}/(.*)", "to": f"layers/{other}/\\1"}
        for one, other in (("query", "aside"), ("key", "query"), ("aside", "key"))
    ]
    document["mapping"] += swap
    document["output"] = str(tmp_path / "out")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    done = reexport("run", tmp_path / "job.yaml")
    assert done.returncode == 0, done.stderr
    checked = run_python(example / "check.py", tmp_path / "out", minilm)
    assert checked.returncode == 1
    assert "the embeddings differ" in checked.stderr


def test_tokens_are_those_of_the_vocabulary(reference: ModuleType, minilm: Path) -> None:
    vocabulary = {piece: number for number, piece in enumerate((minilm / "vocab.txt").read_text().splitlines())}
    # numbers by the tokenizers package 0.23.3 and the tokenizer.json beside the weights
    assert reference.tokenize("Déjà-vu: re-exporting $5 你好", vocabulary) == [
        101, 2139, 3900, 1011, 24728, 1024, 2128, 1011, 9167, 2075, 1002, 1019, 100, 100, 102,
    ]  # fmt: skip
    assert reference.tokenize("\U0001f642", vocabulary) == [101, 100, 102]
    weights = reference.read_safetensors(minilm / "model.safetensors")
    embedding = reference.embed(weights, reference.tokenize("This is an example sentence", vocabulary))
    assert np.isclose(np.linalg.norm(embedding), 1)


def test_v5e_keeps_the_head_dimension_off_the_tiles(job: Callable[[str], Path]) -> None:
    done = reexport("compile", job("embedding-v5e.yaml"), "--json")
    assert done.returncode == 0, done.stderr
    signature = migrate.Signature.from_json(json.dumps(json.loads(done.stdout)["signature"]))
    parameters = {parameter.name: parameter for parameter in signature.weights}
    for name in HEADS:
        parameter = parameters[f"layers/{name}/weight"]
        # row-major, 3 heads of 32 would be padded to 8 x 128: eleven times the bytes
        assert parameter.major_to_minor == (0, 2, 3, 1)
        assert parameter.device_bytes == 6 * 384 * 3 * 32 * 2


@pytest.mark.slow
def test_v6e_takes_the_arrays_of_v5e_as_they_are(job: Callable[[str], Path]) -> None:
    done = reexport("diff", job("embedding-v5e.yaml"), job("embedding-v6e.yaml"))
    assert done.returncode == 0, done.stderr
    assert "recompile only" in done.stdout
