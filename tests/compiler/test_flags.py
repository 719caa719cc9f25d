"""Unknown flags are refused before a compile starts, and those of the caller come in only where a job says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from migrate.compiler import compile_program, flags, toolchains
from migrate.compiler.driver import worker_environment
from migrate.compiler.toolchains import Toolchain
from migrate.config import Job
from migrate.errors import ConfigError

MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def here() -> Toolchain:
    found = toolchains.installed()
    assert found is not None
    return found


def test_names_are_read_from_the_library(here: Toolchain) -> None:
    names = flags.known_names(here.library)
    assert 1_500 < len(names) < 3_000
    assert {"xla_tpu_scoped_vmem_limit_kib", "xla_tpu_enable_layout_hints", "xla_dump_to"} <= names


def test_every_debug_option_of_jaxlib_is_known(here: Toolchain) -> None:
    """An independent list of names that a compile takes: none of them may be refused."""
    from jaxlib import xla_client

    options = xla_client.CompileOptions().executable_build_options.debug_options
    names = [name for name in dir(options) if name.startswith("xla_")]
    assert len(names) > 30
    flags.check(names, here)


@pytest.mark.parametrize(
    ("given", "suggested"),
    [
        ("xla_tpu_scoped_vmem_limit_kb", "xla_tpu_scoped_vmem_limit_kib"),  # a letter
        ("scoped_vmem_limit_kib", "xla_tpu_scoped_vmem_limit_kib"),  # no prefix
        ("xla_enable_layout_hints", "xla_tpu_enable_layout_hints"),
        ("xla_tpu_enable_latency_hiding_schedular", "xla_tpu_enable_latency_hiding_scheduler"),
    ],
)
def test_close_names_are_suggested(here: Toolchain, given: str, suggested: str) -> None:
    with pytest.raises(ConfigError, match=f"has no flag {given}") as caught:
        flags.check(["xla_dump_to", given], here)
    assert caught.value.where == f"target.flags.{given}"
    assert suggested in (caught.value.expected or "")
    assert here.version in caught.value.what


def test_all_unknown_names_at_once_and_before_the_compile(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job("sleeps", flags={"xla_one_nope": 1, "xla_tpu_enable_layout_hints": True, "Xla_other": "x"})
    started = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        compile_program(job, tmp_path / "compile")
    assert time.monotonic() - started < 30  # the entry would sleep for two minutes
    assert caught.value.where == "target.flags.xla_one_nope, target.flags.Xla_other"
    assert not (tmp_path / "compile").exists()


def test_impure_flags_belong_into_the_environment(here: Toolchain) -> None:
    with pytest.raises(ConfigError, match="is not an option of a compile") as caught:
        flags.check(["xla_tpu_impure_oom_fast_exit_threshold"], here)
    assert "LIBTPU_INIT_ARGS=--xla_tpu_impure_oom_fast_exit_threshold=VALUE" in (caught.value.remedy or "")


def test_inherited_flags_reach_the_compiler_and_the_fingerprint(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--xla_force_host_platform_device_count=3 --xla_dump_to={tmp_path}/dump")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_layout_hints=true --xla_tpu_detect_nan")
    weights = {"topology": "v5e:2x2", "mesh": {"data": 2, "model": 2}}
    plain = compile_program(make_job("int8_weights", **weights), tmp_path / "plain").signature
    assert plain.fingerprint.flags == ()
    assert not (tmp_path / "dump").exists()
    job = make_job("int8_weights", **weights, inherit=["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
    signature = compile_program(job, tmp_path / "inherited").signature
    assert signature.fingerprint.flags == (
        ("LIBTPU_INIT_ARGS/xla_tpu_detect_nan", "true"),
        ("LIBTPU_INIT_ARGS/xla_tpu_enable_layout_hints", "true"),
        ("XLA_FLAGS/xla_dump_to", f"{tmp_path}/dump"),
    )
    assert list((tmp_path / "dump").iterdir())
    assert signature.weights[0].tiles != plain.weights[0].tiles  # layout hints


def test_a_cpu_target_keeps_its_number_of_devices(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_force_host_platform_device_count=3 --xla_cpu_enable_fast_math=true --xla_dump_hlo_as_text"
    )
    job = make_job("trees", topology="cpu:8", inherit=["XLA_FLAGS"])
    fingerprint = compile_program(job, tmp_path).signature.fingerprint
    assert fingerprint.flags == (
        ("XLA_FLAGS/xla_cpu_enable_fast_math", "true"),
        ("XLA_FLAGS/xla_dump_hlo_as_text", "true"),
    )


def test_variables_that_are_not_set_add_nothing(
    make_job: MakeJob, here: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_job(inherit=["XLA_FLAGS", "LIBTPU_INIT_ARGS"]).target
    assert flags.inherit(target, here, {"XLA_FLAGS": " "}) == {}
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    assert "XLA_FLAGS" not in worker_environment("v5e:2x2", here)


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        # jaxlib ends the process on these
        ("XLA_FLAGS", "--xla_tpu_scoped_vmem_limit_kib=4096", "flags of libtpu go into LIBTPU_INIT_ARGS"),
        ("XLA_FLAGS", "--xla_dump_too=x", "expected: xla_dump_to or"),
        ("XLA_FLAGS", "flags.txt", "expected: --name=value"),
        # libtpu ignores a token without dashes, and ends the process on an unknown name
        ("LIBTPU_INIT_ARGS", "--xla_tpu_detect_nan=true xla_tpu_enable_layout_hints=true", "--name=value"),
        ("LIBTPU_INIT_ARGS", "--xla_tpu_detect_nans=true", "xla_tpu_detect_nan "),
        ("LIBTPU_INIT_ARGS", "--no_such_flag_of_libtpu=1", "no_such_flag_of_libtpu"),
        ("LIBTPU_INIT_ARGS", "--xla_dump_to='x", "not closed"),
    ],
)
def test_wrong_inherited_flags(make_job: MakeJob, here: Toolchain, variable: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flags.inherit(make_job(inherit=[variable]).target, here, {variable: text})
    assert caught.value.where == f"target.inherit: {variable}"
    assert words in str(caught.value)


@pytest.mark.parametrize("token", ["--noxla_tpu_detect_nan", "--vmodule=a=1", "--xla_dump_to='a b'"])
def test_right_inherited_flags(make_job: MakeJob, here: Toolchain, token: str) -> None:
    assert flags.inherit(make_job(inherit=["LIBTPU_INIT_ARGS"]).target, here, {"LIBTPU_INIT_ARGS": token})


def test_a_name_that_is_no_flag_ends_the_worker_with_a_typed_error(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is among libtpu's strings, an option of its compiles, and unknown to its command line."""
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_cpu_enable_fast_math=true")
    with pytest.raises(ConfigError, match="does not take the flag xla_cpu_enable_fast_math from the environment"):
        compile_program(make_job("trees", inherit=["LIBTPU_INIT_ARGS"]), tmp_path)


def test_libtpu_arguments_mean_nothing_to_a_cpu(make_job: MakeJob) -> None:
    target = make_job(topology="cpu:8", inherit=["LIBTPU_INIT_ARGS"]).target
    with pytest.raises(ConfigError, match="means nothing to a CPU target"):
        flags.inherit(target, None, {"LIBTPU_INIT_ARGS": "--xla_tpu_detect_nan=true"})
