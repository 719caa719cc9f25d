"""XLA's text form of shapes, and the bytes that follow from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrate.errors import LayoutSyntaxError
from migrate.layout import ArrayShape, Layout, TupleShape, dtype_bits, find, parse, parse_layout, xla_dtype

E0102 = (
    "INVALID_ARGUMENT: Executable(jit_embedding_pipeline_step_fn) expected parameter 2482 of size 5242880 "
    "(bf16[16,1280,40]{2,1,0:T(8,128)(2,1)}) but got buffer with incompatible size 1638400 "
    "(bf16[16,1280,40]{1,2,0:T(8,128)(2,1)})"
)

# text as XLA prints it, bytes on the device
SHAPES = [
    ("bf16[16,1280,40]{2,1,0:T(8,128)(2,1)}", 5_242_880),  # minor 40 padded to 128
    ("bf16[16,1280,40]{1,2,0:T(8,128)(2,1)}", 1_638_400),  # minor 1280, nothing to pad
    ("f32[]", 4),
    ("f32[]{:T(128)}", 512),  # scalars tile too
    ("f32[]{:T(256)}", 1024),
    ("s32[4]{0:T(128)}", 512),
    ("f32[8,128]", 4096),
    ("f32[8,128]{1,0}", 4096),
    ("f32[3,5]{1,0:T(8,128)}", 4096),
    ("bf16[64]{0:T(256)(128)(2,1)}", 512),  # three tiles
    ("pred[8]{0:T(512)(128)(4,1)}", 512),
    ("s8[4,2]{0,1:T(4,128)(4,1)}", 512),
    ("s4[64,64]{1,0:T(8,128)(8,1)E(4)}", 4096),  # packed: 64 x 128 half bytes
    ("s4[7]{0}", 7),  # not packed: a byte an element
    ("s4[7]{0:E(4)}", 4),  # 28 bits
    ("f32[5]{0:L(8)}", 32),
    ("f32[5]{0:L(8)S(5)}", 32),
    ("f32[128]{0:S(5)}", 512),
    ("u8[0,4]{1,0:T(8,128)(4,1)}", 0),  # no elements, no bytes
    ("f32[2,3,4]{2,1,0:T(*,4)}", 96),  # 2 and 3 combined, then cut by 4
    ("c64[3]{0}", 24),
    ("f8e4m3fn[16]{0}", 16),
    ("()", 0),
    ("(f32[], s32[4]{0:T(128)})", 516),
    ("((bf16[2]{0}, pred[]), f32[1]{0})", 9),
]


@pytest.mark.parametrize(("text", "device_bytes"), SHAPES)
def test_text_and_bytes(text: str, device_bytes: int) -> None:
    shape = parse(text)
    assert str(shape) == text
    assert shape.device_bytes == device_bytes


def test_e0102_names_both_sizes() -> None:
    expected, found = find(E0102)
    assert (expected.device_bytes, found.device_bytes) == (5_242_880, 1_638_400)
    assert expected.layout is not None
    assert expected.layout.major_to_minor == (0, 1, 2)
    assert found.layout is not None
    assert found.layout.major_to_minor == (0, 2, 1)
    assert expected.numpy_dtype == "bfloat16"


def test_spaces_and_tuple_indices_are_read() -> None:
    text = "( f32[ 2, 3 ]{1,0}, /*index=5*/ s32[])"
    assert parse(text) == TupleShape((ArrayShape("f32", (2, 3), Layout((1, 0))), ArrayShape("s32", ())))


BAD = [
    "",
    "f32",
    "f32[",
    "f32[2",
    "f32[2]]",
    "f32[-1]",
    "f32[2.5]",
    "f32[2,,3]",
    "f33[2]",
    "[2]",
    "f32[2]{1}",  # not a permutation
    "f32[2,3]{0}",  # rank differs
    "f32[2,3]{0,0}",
    "f32[2]{0:T}",
    "f32[2]{0:T()}",
    "f32[2]{0:T(0)}",
    "f32[2]{0:T(4,*)}",
    "f32[2]{0:T(128)T(2)}",
    "f32[2]{0:E(4)E(4)}",
    "f32[2]{0:L(0)}",
    "f32[2]{0:X(3)}",
    "f32[2]{0:T(128}",
    "(f32[2]",
    "(f32[2] s32[])",
    "f32[2] f32[2]",
    "(" * 100 + ")" * 100,
    "f32[" + "9" * 40 + "]",
    "f32[2]{0:S(" + "9" * 40 + ")}",
]


@pytest.mark.parametrize("text", BAD)
def test_bad_text_is_a_typed_error(text: str) -> None:
    with pytest.raises(LayoutSyntaxError) as caught:
        parse(text)
    assert caught.value.expected


@pytest.mark.parametrize("text", ["", "{", "1,0", "{1}", "{0:Q(1)}"])
def test_bad_layout_is_a_typed_error(text: str) -> None:
    with pytest.raises(LayoutSyntaxError):
        parse_layout(text)


@given(st.text(alphabet="fsbpredu1234568[]{}(),:TLES*/ ", max_size=60))
def test_any_text_parses_or_is_a_typed_error(text: str) -> None:
    try:
        shape = parse(text)
    except LayoutSyntaxError:
        return
    assert parse(str(shape)) == shape


def test_unknown_dtypes() -> None:
    with pytest.raises(LayoutSyntaxError, match="no element type"):
        xla_dtype("object")
    with pytest.raises(LayoutSyntaxError, match="unknown XLA element type"):
        dtype_bits("f12")


DTYPES = ["pred", "s4", "u2", "s8", "bf16", "f16", "f32", "f64", "c128", "f8e4m3fn", "f4e2m1fn"]
# XLA's own tiles have one or two dimensions; three and four cover shapes shorter than their tile.
TILES = st.lists(st.lists(st.sampled_from([1, 2, 3, 4, 8, 128, 256]), min_size=1, max_size=4).map(tuple), max_size=3)


@st.composite
def array_shapes(draw: st.DrawFn) -> ArrayShape:
    dimensions = tuple(draw(st.lists(st.integers(0, 300), max_size=5)))
    layout = Layout(
        minor_to_major=tuple(draw(st.permutations(range(len(dimensions))))),
        tiles=tuple(draw(TILES)),
        tail_padding_elements=draw(st.sampled_from([1, 2, 8, 1024])),
        element_bits=draw(st.sampled_from([0, 2, 4])),
        memory_space=draw(st.sampled_from([0, 0, 1, 5])),
    )
    return ArrayShape(draw(st.sampled_from(DTYPES)), dimensions, draw(st.sampled_from([layout, None])))


SHAPE_TREES = st.recursive(
    array_shapes(), lambda inner: st.lists(inner, max_size=4).map(lambda parts: TupleShape(tuple(parts))), max_leaves=8
)


@given(SHAPE_TREES)
def test_round_trip(shape: ArrayShape | TupleShape) -> None:
    text = str(shape)
    again = parse(text)
    # A scalar's empty layout prints as nothing; everything else comes back as it was.
    assert str(again) == text
    if "[]" not in text:
        assert again == shape


@given(array_shapes())
def test_tiling_only_adds_bytes(shape: ArrayShape) -> None:
    packed = shape.layout is not None and shape.layout.element_bits != 0
    if not packed:
        assert shape.device_bytes >= shape.dense_bytes
    assert (shape.device_bytes == 0) == (0 in shape.dimensions)


@given(array_shapes())
def test_tiles_hold_every_element(shape: ArrayShape) -> None:
    physical = 1
    for extent in shape.tiled_dimensions:
        physical *= extent
    logical = 1
    for extent in shape.dimensions:
        logical *= extent
    assert physical >= logical
