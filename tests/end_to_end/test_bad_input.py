"""Bad input: one clear typed error, nothing committed, the source untouched."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate import driver, errors, publication
from migrate.preparation import Prepared, Silent

from .conftest import Stages, reexport, small_job, tree_digest, write_job

Edit = Callable[[dict[str, Any], Path], None]


def set_(*keys: str, to: Any) -> Edit:
    def edit(job: dict[str, Any], _: Path) -> None:
        for key in keys[:-1]:
            job = job[key]
        job[keys[-1]] = to

    return edit


def without(*keys: str) -> Edit:
    def edit(job: dict[str, Any], _: Path) -> None:
        for key in keys[:-1]:
            job = job[key]
        del job[keys[-1]]

    return edit


def model(code: str) -> Edit:
    """The job's program is ``model:step`` with this code, beside the job file."""

    def edit(job: dict[str, Any], directory: Path) -> None:
        (directory / "model.py").write_text(code)
        job["program"] = {"entry": "model:step"}
        job["python_path"] = [str(directory)]

    return edit


def step(*, parameters: str, function: str = "lambda p: 0") -> Edit:
    return model(
        "import jax, jax.numpy as jnp, migrate\n"
        "def step(mesh):\n"
        "    S = jax.ShapeDtypeStruct\n"
        f"    return migrate.Program({function}, ({parameters},))\n"
    )


def select_dense(edit: Edit) -> Edit:
    """Only params/dense, so that a table row needs two parameters: kernel bf16[8,12] and bias f32[12]."""

    def both(job: dict[str, Any], directory: Path) -> None:
        job["source"]["select"] = "params/dense"
        edit(job, directory)

    return both


KERNEL, BIAS = "'kernel': S((8, 12), jnp.bfloat16)", "'bias': S((12,), jnp.float32)"

CASES: dict[str, tuple[Edit, type[errors.ReexportError], list[str]]] = {
    # the source
    "missing path": (
        set_("source", "path", to="/nowhere/checkpoint"),
        errors.CheckpointNotFoundError,
        ["/nowhere/checkpoint"],
    ),
    "not a checkpoint": (
        set_("source", "path", to=str(Path(__file__).parent)),
        errors.UnknownFormatError,
        ["no known checkpoint format", "Orbax"],
    ),
    "a file, not a checkpoint": (
        set_("source", "path", to=__file__),
        errors.UnknownFormatError,
        ["test_bad_input.py"],
    ),
    "subtree that is not there": (set_("source", "select", to="parms"), errors.ConfigError, ["'parms'", "params"]),
    "output inside the source": (
        lambda job, _: set_("output", to=f"{job['source']['path']}/out")(job, _),
        errors.ConfigError,
        ["inside the source checkpoint"],
    ),
    # the target
    "unknown topology": (
        set_("target", "topology", to="v9x:2x4"),
        errors.TargetError,
        ["v9x:2x4", "target.topology", "v5e:2x4"],
    ),
    "mesh smaller than the topology": (
        set_("target", "mesh", to={"data": 2, "model": 3}),
        errors.TargetError,
        ["target.mesh", "8", "data 2 x model 3 = 6"],
    ),
    "unknown flag": (
        set_("target", "flags", to={"xla_tpu_no_such_flag": "true"}),
        errors.ConfigError,
        ["target.flags.xla_tpu_no_such_flag", "libtpu", "has no flag"],
    ),
    "libtpu version that does not exist": (
        set_("target", "libtpu", to="0.0.9999"),
        errors.ToolchainError,
        ["target.libtpu", "libtpu 0.0.24 to 0.0.52 work with jax"],
    ),
    # leaves and parameters
    "shape mismatch": (
        select_dense(step(parameters=f"{{'kernel': S((12, 8), jnp.bfloat16), {BIAS}}}")),
        errors.MappingError,
        ["leaf params/dense/kernel has shape [8, 12], parameter kernel wants [12, 8]"],
    ),
    "dtype mismatch": (
        select_dense(step(parameters=f"{{'kernel': S((8, 12), jnp.float32), {BIAS}}}")),
        errors.MappingError,
        ["leaf params/dense/kernel is bfloat16, parameter kernel wants float32"],
    ),
    "parameter without a leaf": (
        select_dense(step(parameters=f"{{{KERNEL}, {BIAS}, 'biass': S((12,), jnp.float32)}}")),
        errors.MappingError,
        ["parameter biass has no leaf"],
    ),
    "leaf without a parameter, and what it may have meant": (
        select_dense(step(parameters=f"{{'kernels': S((8, 12), jnp.bfloat16), {BIAS}}}")),
        errors.MappingError,
        ["leaf params/dense/kernel has no parameter; did you mean kernels?", "parameter kernels has no leaf", "2 mism"],
    ),
    # the program
    "entry that is not there": (
        set_("program", "entry", to="migrate.demo.tiny:no_such_step"),
        errors.ProgramError,
        ["program.entry", "no_such_step"],
    ),
    "module that is not there": (
        set_("program", "entry", to="no_such_module:step"),
        errors.ProgramError,
        ["where: program.entry", "No module named", "check the name"],
    ),
    "import error in the entry": (
        model("import migrate\nimport no_such_module"),
        errors.ProgramError,
        ["No module named", "model.py:2"],
    ),
    "syntax error in the entry": (
        model("import migrate\n\ndef step(mesh) return 1"),
        errors.ProgramError,
        ["SyntaxError", "model.py:3", "importing the module"],
    ),
    "entry that raises": (
        model("def config():\n    return {}['hidden_size']\n\ndef step(mesh): return config()"),
        errors.ProgramError,
        ["KeyError: 'hidden_size'", "model.py:2"],
    ),
    "entry that raises within the standard library": (
        model("import json\ndef step(mesh): return json.loads('{')"),
        errors.ProgramError,
        ["JSONDecodeError", "model.py:2"],
    ),
    "entry that raises within jax": (
        model("import jax.numpy as jnp\ndef step(mesh): return jnp.zeros(2) + jnp.zeros(3)"),
        errors.ProgramError,
        ["model.py:2"],
    ),
    "entry that ends the process": (
        model("import sys\ndef step(mesh): sys.exit('no weights')"),
        errors.ProgramError,
        ["SystemExit: no weights", "model.py:2"],
    ),
    "arguments that the entry does not take": (
        set_("program", "arguments", to={"bach": 8}),
        errors.ProgramError,
        ["TypeError", "bach"],
    ),
    "entry that returns something else": (model("def step(mesh): return 1"), errors.ProgramError, ["migrate.Program"]),
    "function that cannot be traced": (
        select_dense(step(parameters=f"{{{KERNEL}, {BIAS}}}", function="lambda p: p['kernel'] @ p['bias'] @ 7")),
        errors.ProgramError,
        ["model.py"],
    ),
    "compile failure: too large for the device": (
        select_dense(
            step(
                parameters=f"{{{KERNEL}, {BIAS}}}",
                function="lambda p: jnp.ones((1 << 34,), jnp.float32) * p['bias'][0]",
            )
        ),
        errors.CompileError,
        ["v5e:2x4", "compile.log"],
    ),
    "compiler that dies": (
        model("import os\ndef step(mesh): os.abort()"),
        errors.CompileError,
        ["SIGABRT", "compile.log"],
    ),
    # the job
    "unknown key": (set_("target", "topolgy", to="v5e:2x4"), errors.ConfigError, ["target.topolgy", "topology?"]),
    "missing key": (without("output"), errors.ConfigError, ["output", "missing"]),
    "bytes that are none": (
        set_("rewrite", to={"max_item_bytes": "64 parsecs"}),
        errors.ConfigError,
        ["rewrite.max_item_bytes", "64MiB"],
    ),
    "runner that is not there": (set_("rewrite", to={"runner": "sprak"}), errors.ConfigError, ["rewrite.runner"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case: str, job: dict[str, Any], tmp_path: Path, old_checkpoint: Path) -> None:
    edit, kind, words = CASES[case]
    before = tree_digest(old_checkpoint)
    edit(job, tmp_path)
    with pytest.raises(kind) as caught:
        migrate.run(job)
    assert type(caught.value) is kind
    assert [word for word in words if word not in str(caught.value)] == []
    assert not list(tmp_path.rglob("COMMIT.json"))
    assert not list(tmp_path.rglob("LATEST"))
    assert tree_digest(old_checkpoint) == before
    log = next((word for word in str(caught.value).split() if word.endswith("compile.log")), None)
    assert log is None or Path(log).is_file()  # the compiler's log is kept where the message says


def test_the_command_prints_the_error_and_its_exit_code(job: dict[str, Any], tmp_path: Path) -> None:
    set_("target", "topology", to="v9x:2x4")(job, tmp_path)
    done = reexport("run", write_job(job, tmp_path))
    assert done.returncode == 2
    assert "error: libtpu knows no topology 'v9x:2x4'" in done.stderr
    assert "Traceback" not in done.stderr


def test_output_committed_with_another_identity(job: dict[str, Any], tmp_path: Path) -> None:
    first = migrate.run(job)
    job["target"]["mesh"] = {"data": 4, "model": 2}
    with pytest.raises(errors.OutputConflictError) as caught:
        migrate.run(job)
    assert first.export.manifest.export in str(caught.value)
    assert "mesh data=2 model=4 (now data=4 model=2)" in str(caught.value)
    assert migrate.open_export(job["output"]).uri == first.export.uri

    second = migrate.run(job, supersede=True)
    assert migrate.open_export(job["output"]).uri == second.export.uri != first.export.uri
    assert migrate.open_export(first.export.uri).manifest == first.export.manifest  # the old one is still there


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "compression": ({"rewrite": {"compression": "zstd"}}, r"compression of \S+, \S+, \S+ and 7 more\n"),
    "chunks": ({"rewrite": {"max_chunk_bytes": 32}}, r"chunks of \S+"),
    "mapping": (
        {"mapping": [{"drop": "dense/bias"}, {"init": "dense/bias", "value": 0}]},
        r"mapping of dense/bias\n",
    ),
}


def test_an_output_that_cannot_be_read_is_found_before_the_compile(job: dict[str, Any]) -> None:
    output = Path(job["output"])
    output.mkdir(parents=True)
    (output / "LATEST").write_text("damaged")
    stages = Stages()
    with pytest.raises(errors.NotAnExportError, match="LATEST is damaged"):
        migrate.run(job, reporter=stages)
    assert stages.seen == []


def test_output_committed_with_another_storage(job: dict[str, Any]) -> None:
    migrate.run(job)
    for change, words in CHANGES.values():
        with pytest.raises(errors.OutputConflictError, match=rf"What differs:\n    {words}"):
            migrate.run(job | change)


def test_an_export_that_was_rolled_back(job: dict[str, Any], tmp_path: Path) -> None:
    first = migrate.run(job).export.manifest.export
    job["target"]["mesh"] = {"data": 4, "model": 2}
    second = migrate.run(job, supersede=True).export.manifest.export
    publication.roll_back(job["output"])
    refused = reexport("run", write_job(job, tmp_path))
    assert refused.returncode == 1
    words = " ".join(refused.stderr.split())
    assert f"export {first} is current; {second}, which this job makes, was rolled back from" in words
    assert f"reexport rollback {job['output']} --to {second}" in words
    done = reexport("run", "--supersede", write_job(job, tmp_path))
    assert f"going forward again to export {second}" in done.stderr
    assert migrate.open_export(job["output"]).manifest.export == second


def test_exports_share_equal_parameter_sets(job: dict[str, Any]) -> None:
    """A flag that changes the program but no layout: recompiled, and not one array byte written."""
    first = migrate.run(job)
    job["target"]["flags"] = {"xla_tpu_scoped_vmem_limit_kib": 32768}
    second = migrate.run(job, supersede=True)
    assert second.export.uri != first.export.uri
    assert second.export.parameters_uri == first.export.parameters_uri
    assert (first.bytes_written, second.bytes_written) == (1616, 0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("a small file system needs the right to mount a tmpfs")
    yield path
    subprocess.run(["umount", path], check=True)


def test_disk_that_fills_up_midway(small_disk: Path, old_checkpoint: Path) -> None:
    job = small_job(old_checkpoint, small_disk / "out")

    class FillsTheDisk(Silent):
        def started(self, items: int, nbytes: int, reused_items: int) -> None:
            with (small_disk / "filler").open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass

    with pytest.raises(errors.StorageError, match="disk full"):
        migrate.run(job, reporter=FillsTheDisk())
    assert not list(small_disk.rglob("COMMIT.json"))

    (small_disk / "filler").unlink()
    assert not migrate.run(job).already_committed  # the same call goes on


def test_disk_that_is_too_small_from_the_start(small_disk: Path, decoder_checkpoint: Path) -> None:
    from .conftest import decoder_job

    (small_disk / "filler").write_bytes(bytes(3 << 20))
    with pytest.raises(errors.StorageError, match="disk full") as caught:
        migrate.run(decoder_job(decoder_checkpoint, small_disk / "out"))
    assert "bytes free" in str(caught.value)
    assert not list(small_disk.rglob("COMMIT.json"))


def test_output_without_permission_is_not_a_traceback(job: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where a directory is needed")
    with pytest.raises(errors.StorageError) as caught:
        migrate.run(job)
    assert str(tmp_path / "out") in str(caught.value)


def test_planning_reports_before_writing(job: dict[str, Any]) -> None:
    class Stops(Silent):
        def planned(self, prepared: Prepared) -> None:
            assert prepared.plan.nbytes == 1616
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver.run(job, reporter=Stops())
    assert not Path(job["output"]).exists()
