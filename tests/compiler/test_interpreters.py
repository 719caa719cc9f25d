"""Other interpreters and other versions of jax as the compiler."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from migrate.compiler import compile_program, interpreters
from migrate.config import Job
from migrate.errors import ConfigError, ToolchainError

MakeJob = Callable[..., Job]
TINY = {"entry": "migrate.demo.tiny:next_token_step", "arguments": {"batch": 8}}


def test_another_interpreter_compiles(make_job: MakeJob, tmp_path: Path) -> None:
    """This one by another name: it finds migrate on the search path that it is given, and its own jax and libtpu."""
    if not (Path(sys.prefix) / "pyvenv.cfg").exists():
        pytest.skip("this interpreter is not in a virtual environment")
    here = Path(sys.prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages = tmp_path / "venv" / here.relative_to(sys.prefix)
    packages.mkdir(parents=True)
    for entry in here.iterdir():
        if "reexport" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    (tmp_path / "venv" / "bin").mkdir()
    (tmp_path / "venv" / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "venv" / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text())
    job = make_job(**TINY, python=str(tmp_path / "venv" / "bin" / "python"))
    found = compile_program(job, tmp_path / "other")
    here_result = compile_program(make_job(**TINY), tmp_path / "here")
    assert found.signature == here_result.signature


def test_an_interpreter_without_jax_is_named(make_job: MakeJob, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    (bare / "bin").mkdir(parents=True)
    (bare / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (bare / "pyvenv.cfg").write_text(f"home = {Path(os.path.realpath(sys.executable)).parent}\n")
    with pytest.raises(ToolchainError, match="has no") as caught:
        compile_program(make_job(**TINY, python=str(bare / "bin" / "python")), tmp_path / "out")
    assert str(bare) in str(caught.value)
    assert "pip install" in str(caught.value)


def test_wrong_interpreters(make_job: MakeJob, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no interpreter") as caught:
        compile_program(make_job(**TINY, python=str(tmp_path / "absent")), tmp_path / "out")
    assert caught.value.where == "target.python"
    with pytest.raises(ConfigError, match="at most one of the keys jax, python"):
        make_job(**TINY, python="python", jax="0.9.0")
    with pytest.raises(ToolchainError, match="too old"):
        compile_program(make_job(**TINY, jax="0.4.30"), tmp_path / "out")


@pytest.mark.slow
def test_an_older_jax_compiles_with_the_libtpu_of_its_time(make_job: MakeJob, tmp_path: Path) -> None:
    target = {"topology": "v5e:2x2", "mesh": {"data": 2, "model": 2}}
    signature = compile_program(make_job(**TINY, **target, jax="0.7.2"), tmp_path / "older").signature
    assert (signature.fingerprint.jax, signature.fingerprint.jaxlib) == ("0.7.2", "0.7.2")
    assert signature.fingerprint.libtpu.startswith("0.0.23")
    now = compile_program(make_job(**TINY, **target), tmp_path / "now").signature
    assert [p.path for p in signature.parameters] == [p.path for p in now.parameters]
    assert signature.memory.argument_bytes == signature.device_bytes
    (environment,) = interpreters.environments()
    assert environment.libtpu == "0.0.23"
    assert interpreters.remove("0.7.2") > 100_000_000
    assert interpreters.environments() == []
