"""Messages about layouts: XLA's own words, JAX's as it raises them here, and whatever else a user may paste."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import migrate
from migrate.compiler.driver import worker_environment
from migrate.errors import UnknownMessageError
from migrate.explain import Explained, explain_error
from migrate.layout import ArrayShape, Layout, parse
from migrate.messages import read_message
from migrate.padding import padding_words
from migrate.signature import DeviceMemory, Fingerprint, ParameterSpec, Signature

E0102 = (
    "XlaRuntimeError: INVALID_ARGUMENT: Executable(jit_embedding_pipeline_step_fn) expected parameter 2482 of size "
    "5242880\n(bf16[16,1280,40]{2,1,0:T(8,128)(2,1)}) but got buffer with incompatible size 1638400 "
    "(bf16[16,1280,40]{1,2,0:T(8,128)(2,1)}): while running replica 0 and partition 0 of a replicated computation"
)
BARE = "INVALID_ARGUMENT: Executable expected parameter 0 of size 4096 but got buffer with incompatible size 3840"
SPACE = (
    "Executable(jit_step) expected parameter 1 of size 4096 (f32[8,128]{1,0:T(8,128)}) but got buffer with "
    "incompatible size 4096 (f32[8,128]{1,0:T(8,128)S(5)})"
)
# the words are in libtpu 0.0.42.1
SPACE_NAMED = "Executable(jit_step) got a parameter buffer for parameter 3 in an unexpected memory space 'pinned_host'"
TABLE = ParameterSpec(
    number=2482,
    argument="params",
    path=("embed", "table"),
    sequence_levels=(False, False),
    shape=(16, 1280, 40),
    dtype="bfloat16",
    partition=((), (), ()),
    shard_shape=(16, 1280, 40),
    major_to_minor=(0, 1, 2),
    tiles=((8, 128), (2, 1)),
    is_weight=True,
)
FINGERPRINT = Fingerprint("ab" * 32, "v5e:1x1", (("x", 1),), "0.10.2", "0.10.2", "0.0.42.1", (), "auto")
SIGNATURE = Signature("decode", (TABLE,), FINGERPRINT, DeviceMemory(0, 0, 0, 0))
SAME = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}


def one(text: str, *arguments: Any, **options: Any) -> Explained:
    (explained,) = explain_error(text, *arguments, **options)
    return explained


def test_the_message_of_the_documentation() -> None:
    found = one(E0102)
    assert (found.mismatch.form, found.mismatch.executable, found.mismatch.number) == (
        "buffer size",
        "jit_embedding_pipeline_step_fn",
        2482,
    )
    assert (found.expected.nbytes, found.expected.agrees) == (5_242_880, True)
    assert (found.found.nbytes, found.found.agrees) == (1_638_400, True)
    assert "tile (8,128): dimension 2 is padded from 40 to 128" in found.expected.words
    assert "tile (8,128): nothing is padded" in found.found.words
    assert found.differences == ("dimension order: {2,1,0} (minor to major) expected, {1,2,0} (minor to major) found",)
    assert "libtpu" in found.cause


def test_without_layouts() -> None:
    found = one(BARE)
    assert (found.mismatch.executable, found.mismatch.number) == ("", 0)
    assert (found.expected.stated.nbytes, found.found.stated.nbytes) == (4096, 3840)
    assert found.expected.nbytes is None
    assert found.differences == ("size: the message gives no layouts",)


def test_without_layouts_the_sizes_tell() -> None:
    """Reactant's runtime prints none; the parameter is known by its number."""
    text = "Executable expected parameter 2482 of size 5242880 but got buffer with incompatible size"
    found = one(f"{text} 1638400", SIGNATURE, export="out", installed=SAME)
    assert found.parameter is TABLE
    assert "the executable is the export's, but the buffer is not" in found.cause
    assert "1,638,400 bytes found are those of the dimension order {1,2,0}" in found.cause
    turned = dataclasses.replace(SIGNATURE, parameters=(dataclasses.replace(TABLE, major_to_minor=(0, 2, 1)),))
    assert "the buffer is the export's" in one(f"{text} 1638400", turned, export="out", installed=SAME).cause
    thin = dataclasses.replace(TABLE, shape=(5, 3, 7), shard_shape=(5, 3, 7))
    dense = "Executable expected parameter 2482 of size 10240 but got buffer with incompatible size 210"
    thin_signature = dataclasses.replace(SIGNATURE, parameters=(thin,))
    assert "its elements without padding" in one(dense, thin_signature, export="out", installed=SAME).cause
    assert "no dimension order with these tiles" in one(f"{text} 7", SIGNATURE, export="out", installed=SAME).cause


def test_tiles_that_the_message_leaves_out() -> None:
    """As Reactant prints it on a TPU: the buffer's size shows that it is tiled."""
    text = (
        "INVALID_ARGUMENT: Executable(reactant_cumsum_) expected parameter 0 of size 6144 (f32[5,4,3]{0,1,2:T(4,128)}) "
        "but got buffer with incompatible size 10240 (f32[5,4,3]{2,1,0})"
    )
    found = one(text)
    assert str(found.found.assumed) == "f32[5,4,3]{2,1,0:T(4,128)}"
    assert found.found.agrees
    assert [difference.partition(":")[0] for difference in found.differences] == ["dimension order"]
    assert one(text.replace("10240", "10241")).found.agrees is False


def test_a_job_in_place_of_an_export_and_beside_it() -> None:
    buffers = one(E0102, SIGNATURE, job="job.yaml", installed=SAME)
    assert "the executable is the job's, but the buffer is not" in buffers.cause
    assert buffers.cure[0].startswith("reexport run job.yaml ")

    exported = dataclasses.replace(SIGNATURE, parameters=(dataclasses.replace(TABLE, major_to_minor=(0, 2, 1)),))
    assert "the buffer is the job's" in one(E0102, exported, job="job.yaml", installed=SAME).cause
    flags = (("xla_tpu_x", "true"),)
    fingerprint = dataclasses.replace(FINGERPRINT, libtpu="0.0.52", flags=flags, stablehlo_sha256="cd" * 32)
    today = dataclasses.replace(SIGNATURE, fingerprint=fingerprint)
    both = one(E0102, exported, export="out", job="job.yaml", today=today, installed=SAME)
    assert both.today is TABLE
    assert both.cause.endswith(
        "Since then the program itself has changed and libtpu 0.0.42.1 became 0.0.52 and flags none became "
        "xla_tpu_x=true."
    )
    assert both.cure[0] == "reexport check out --job job.yaml"
    json.dumps(both.to_json())


@pytest.mark.parametrize(
    "text", [SPACE, SPACE_NAMED, SPACE.replace("incompatible size 4096", "incompatible memory space")]
)
def test_memory_spaces(text: str) -> None:
    found = one(text)
    assert found.mismatch.form == "memory space"
    assert [difference.partition(":")[0] for difference in found.differences] == ["memory space"]
    assert "memory kinds" in found.cause


def test_a_size_that_the_layout_does_not_give() -> None:
    assert one(E0102.replace("1638400", "1638401")).found.agrees is False


def test_unknown_element_types_are_shown_as_they_are() -> None:
    found = one(E0102.replace("bf16", "bf17"))
    assert found.expected.stated.text == "bf17[16,1280,40]{2,1,0:T(8,128)(2,1)}"
    assert found.expected.nbytes is None


@pytest.mark.parametrize(
    ("expected", "found", "aspects"),
    [
        ("s8[64,256]{1,0:T(32,128)(4,1)}", "s8[64,256]{1,0:T(8,128)(4,1)}", ["tiling"]),
        ("f32[8,128]{1,0:T(8,128)}", "bf16[8,64]{1,0:T(8,128)(2,1)}", ["dtype", "shape", "tiling"]),
        ("s4[8,128]{1,0:T(8,128)(8,1)E(4)}", "s4[8,128]{1,0:T(8,128)(8,1)}", ["element bits"]),
    ],
)
def test_what_differs(expected: str, found: str, aspects: list[str]) -> None:
    text = (
        f"Executable(f) expected parameter 1 of size 1 ({expected}) but got buffer with incompatible size 2 ({found})"
    )
    assert [difference.partition(":")[0] for difference in one(text).differences] == aspects


def test_the_cause_from_an_exports_signature() -> None:
    found = one(E0102, SIGNATURE, export="out", installed=SAME)
    assert found.parameter is TABLE
    assert "the executable is the export's, but the buffer is not" in found.cause
    assert found.cure == ("migrate.load('out')    puts every parameter into its executable's own layout",)

    other = dataclasses.replace(SIGNATURE, parameters=(dataclasses.replace(TABLE, major_to_minor=(0, 2, 1)),))
    found = one(E0102, other, export="out", installed=SAME | {"libtpu": "0.0.52"})
    assert "the executable that runs is from another compile. Since then libtpu 0.0.42.1 became 0.0.52." in found.cause
    assert found.cure[0] == "reexport check out"
    assert "flags" in one(E0102, other, installed=SAME).cause

    neither = dataclasses.replace(SIGNATURE, parameters=(dataclasses.replace(TABLE, major_to_minor=(2, 1, 0)),))
    assert "neither side" in one(E0102, neither, installed=SAME).cause
    assert one(BARE, SIGNATURE).parameter is None
    assert "another program" in one(BARE, SIGNATURE).cause
    assert one(E0102, SIGNATURE, export="out").today is None
    assert "no layout to compare" in one(SPACE_NAMED.replace("parameter 3", "parameter 2482"), SIGNATURE).cause


def test_numbers_that_have_moved() -> None:
    small = dataclasses.replace(
        TABLE, path=("scale",), shape=(8,), partition=((),), shard_shape=(8,), major_to_minor=(0,)
    )
    moved = dataclasses.replace(SIGNATURE, parameters=(small, dataclasses.replace(TABLE, number=2483)))
    cause = one(E0102, moved, installed=SAME).cause
    assert "keep_unused=False" in cause
    assert cause.endswith("parameters of that shape: params/embed/table")
    none = one(E0102, dataclasses.replace(SIGNATURE, parameters=(small,)), installed=SAME)
    assert "no parameter whose shard has such a shape" in none.cause


PROVOKE = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("x",))
def sharding(*axes): return NamedSharding(mesh, PartitionSpec(*axes))
def struct(order, *axes):
    return jax.ShapeDtypeStruct((4, 6), jnp.bfloat16, sharding=Format(Layout(order), sharding(*axes)))
def array(*axes): return jax.device_put(jnp.ones((4, 6), jnp.bfloat16), sharding(*axes))
def step(params, x): return params["embed"]["table"] + params["layers"][0] + x
params = {"embed": {"table": struct((1, 0), "x")}, "layers": [struct((0, 1))]}
compiled = jax.jit(step).lower(params, struct((1, 0))).compile()
try:
    compiled({"embed": {"table": array("x")}, "layers": [array("x")]}, array())
except ValueError as error:
    print(error)
"""


def test_what_jax_really_says() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROVOKE], env=worker_environment("cpu:2"), capture_output=True, text=True, check=True
    )
    explained = explain_error(done.stdout)
    assert [e.mismatch.argument for e in explained] == ["params['embed']['table']", "params['layers'][0]", "x"]
    table, layer, _ = explained
    assert table.expected.stated.text == "bf16[4,6]{0,1}"
    assert table.found.stated.text == "bf16[4,6]{1,0}"
    assert table.expected.nbytes == 48
    assert table.differences == ("dimension order: {0,1} (minor to major) expected, {1,0} (minor to major) found",)
    assert "sharding" in layer.differences[0]
    assert "mesh or partition" in layer.cause
    spec = dataclasses.replace(
        TABLE, number=0, shape=(4, 6), partition=((), ()), shard_shape=(2, 6), major_to_minor=(1, 0), tiles=()
    )
    listed = dataclasses.replace(spec, number=1, path=("layers", "0"))
    signature = dataclasses.replace(
        SIGNATURE, parameters=(spec, listed, dataclasses.replace(spec, argument="x", path=()))
    )
    named = explain_error(done.stdout, signature, installed=SAME)
    assert [e.parameter and (e.parameter.argument, e.parameter.path) for e in named] == [
        ("params", ("embed", "table")),
        ("params", ("layers", "0")),
        ("x", ()),
    ]
    assert "the executable is the export's" in named[0].cause


def test_jax_on_tpu_tiles() -> None:
    text = (
        "Computation was compiled for input layouts that disagree with the layouts of arguments passed to it. Here are "
        "the 1 mismatches:\nArgument w with shape int4[64,64@x]:\n"
        "  Passed layout: Layout(major_to_minor=(0, 1), tiling=((8, 128), (8, 1)), sub_byte_element_size_in_bits=4)\n"
        "  Required layout: Layout(major_to_minor=(1, 0), tiling=((-9223372036854775808, 128),))"
    )
    found = one(text)
    assert found.found.stated.text == "s4[64,64]{1,0:T(8,128)(8,1)E(4)}"
    assert found.expected.stated.text == "s4[64,64]{0,1:T(*,128)}"


def test_a_log_that_repeats_itself() -> None:
    assert len(read_message(f"host 0: {E0102}\nhost 1: {E0102}\nhost 2: {SPACE_NAMED}")) == 2


@pytest.mark.parametrize("text", ["", "hello", "bf16[2]{0}", "expected parameter x of size y"])
def test_other_texts_are_an_error_that_shows_what_was_looked_for(text: str) -> None:
    with pytest.raises(UnknownMessageError, match="no message about layouts") as caught:
        explain_error(text)
    assert "expected parameter N of size BYTES" in str(caught.value.expected)


PIECES = st.sampled_from(
    [*E0102.split(" "), *SPACE_NAMED.split(" "), "{2,", "Argument a with shape f32[", "(", "'", ":"]
)


@given(st.one_of(st.text(), st.lists(PIECES).map(" ".join), st.lists(st.sampled_from(E0102)).map("".join)))
def test_garbage_neither_crashes_nor_hangs(text: str) -> None:
    for whole in (text, E0102.replace("5242880", text), E0102.replace("40]{", text), text + E0102):
        try:
            for explained in explain_error(whole, SIGNATURE, installed=SAME):
                json.dumps(explained.to_json())
        except UnknownMessageError:
            pass


@pytest.mark.parametrize(
    "piece",
    [
        "(",
        "Executable(",
        "expected parameter 1 of size 1 (",
        "x" * 300 + "[",
        "Argument ",
        "Argument a with shape f[1]: ",
        "layouts that disagree with the layouts Argument a with shape f32[1]: Passed layout: ",
        "expected parameter 1 of size 1 but got buffer with incompatible size 9 ",
    ],
)
def test_long_texts_take_no_time(piece: str) -> None:
    text = piece * (2_000_000 // len(piece))
    started = time.monotonic()
    with contextlib.suppress(UnknownMessageError):
        explain_error(text)
    assert time.monotonic() - started < 20


@st.composite
def shapes(draw: st.DrawFn) -> ArrayShape:
    dimensions = tuple(draw(st.lists(st.integers(0, 300), max_size=4)))
    tiles = draw(
        st.sampled_from(
            [(), ((8, 128),), ((8, 128), (2, 1)), ((256,),), ((-1, 128),), ((8, 128), (16, 1)), ((2, 4), (3, 3))]
        )
    )
    order = tuple(draw(st.permutations(range(len(dimensions)))))
    dtype, bits = draw(st.sampled_from([("bf16", 0), ("s4", 4), ("s4", 0), ("s2", 2), ("pred", 0), ("c64", 0)]))
    return ArrayShape(dtype, dimensions, Layout(order, tiles, draw(st.sampled_from([1, 512])), bits))


@given(shapes())
def test_the_words_end_in_the_bytes(shape: ArrayShape) -> None:
    words = padding_words(shape)
    if 0 in shape.dimensions:
        return
    assert words[-1].endswith(f"= {shape.device_bytes:,} bytes")
    factors = [int(factor) for factor in words[-1].partition(" elements")[0].split(" x ")]
    product = 1
    for factor in factors:
        product *= factor
    elements = 1
    for extent in shape.tiled_dimensions:
        elements *= extent
    assert product == elements


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "s4[3,40]{1,0:T(8,128)(16,1)E(4)}",
            [
                "the minor dimension is 1, of extent 40",
                "tile (8,128): dimension 0 is padded from 3 to 8; dimension 1 is padded from 40 to 128",
                "tile (16,1) of that: dimension 0 within a tile is padded from 8 to 16",
                "1 x 1 x 1 x 128 x 16 x 1 elements x 4 bits (packed s4) = 1,024 bytes",
            ],
        ),
        ("f32[]{:T(256)}", ["tile (256): a leading 1 is padded from 1 to 256", "256 elements x 4 bytes = 1,024 bytes"]),
        (
            "s4[2]{0}",
            [
                "the minor dimension is 0, of extent 2",
                "no tiles: nothing is padded",
                "2 elements x 1 byte (an unpacked s4) = 2 bytes",
            ],
        ),
    ],
)
def test_the_words(text: str, lines: list[str]) -> None:
    shape = parse(text)
    assert isinstance(shape, ArrayShape)
    assert list(padding_words(shape)) == lines


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "migrate.cli", "explain", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    file.write_text(E0102)
    by_argument, by_file, by_stdin = command(E0102), command("--file", str(file)), command(input=E0102)
    assert by_argument.returncode == 0, by_argument.stderr
    assert by_argument.stdout == by_file.stdout == by_stdin.stdout == command(str(file)).stdout
    assert "dimension 2 is padded from 40 to 128" in by_argument.stdout
    document = json.loads(command(E0102, "--json").stdout)
    assert document["mismatches"][0]["expected"]["device_bytes"] == 5_242_880


def test_the_commands_errors(tmp_path: Path) -> None:
    unknown = command("hello", "--json")
    assert unknown.returncode == 2
    assert json.loads(unknown.stdout)["error"] == "UnknownMessageError"
    assert "incompatible size" in unknown.stderr
    assert "--file" in unknown.stderr
    assert command("x" * 5000).returncode == 2
    assert command(E0102, "--file", "x").returncode == 2
    assert command("--file", str(tmp_path / "none")).returncode == 2


def test_the_api() -> None:
    assert migrate.explain_error is explain_error
