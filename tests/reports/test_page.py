"""The page in a real browser: it draws, sorts, searches, and neither complains nor asks the network for anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import migrate
from migrate.difference import compare_signatures
from migrate.report.html import contents

from .conftest import Opened
from .signatures import HOSTILE, many, odd, parameter, signature

Show = Callable[..., Opened]

ROWS = "#table tbody tr:not(.space)"


def test_an_export(export: migrate.Export, show: Show) -> None:
    opened = show(contents.of_export(export, source=migrate.open_checkpoint(export.manifest.source.uri)))
    names = opened.column("parameter")
    assert names == [f"{p.argument}/{p.name}".rstrip("/") for p in export.signature().parameters]
    assert opened.page.text_content("#count") == f"{len(names)} parameters"
    assert opened.column("shard and layout") == [str(p.shard) for p in export.signature().parameters]
    opened.page.locator(ROWS, has_text="params/dense/kernel").click()
    assert opened.page.text_content("#detail h3") == "params/dense/kernel"
    figures = opened.texts("#detail figcaption")
    assert figures[:2] == ["Before: in the source", "After: in the export"]
    assert len(figures) == 5
    assert opened.page.locator("#detail .arithmetic li").count() >= 3


def test_sorting(show: Show) -> None:
    shapes = {"b10": 40, "b9": 300, "a": 130}
    made = [parameter(name, shape=(16, 1280, n), shard_shape=(16, 320, n)) for name, n in shapes.items()]
    opened = show(contents.of_signature(signature(made), "s"))
    click = opened.page.locator("#table thead button").filter(has_text="parameter").click
    assert opened.column("parameter") == ["params/b10", "params/b9", "params/a"]  # as the program has them
    click()
    assert opened.column("parameter") == ["params/a", "params/b9", "params/b10"]  # numbers in names count
    assert opened.page.locator("th[aria-sort=ascending]").count() == 1
    click()
    assert opened.column("parameter") == ["params/b10", "params/b9", "params/a"]
    opened.page.locator("#table thead button").filter(has_text="per device").click()
    assert opened.column("parameter") == ["params/b9", "params/a", "params/b10"]  # the largest first
    opened.page.locator("#table thead button").filter(has_text="padding").click()
    assert opened.column("padding") == ["69 %", "49 %", "22 %"]
    for _ in range(2):
        opened.page.locator("#table thead button").filter(has_text="padding").click()
    assert opened.column("parameter") == ["params/b10", "params/b9", "params/a"]


def test_searching(show: Show) -> None:
    opened = show(contents.of_signature(signature([*odd(), parameter("kernel", tiles=())]), "s"))
    search = opened.page.locator("#search")
    search.fill("KERNEL")
    opened.expect("#count", "1 of 11 parameters")
    assert opened.column("parameter") == ["params/kernel"]
    search.fill("")
    opened.expect("#count", "11 parameters")
    search.fill("int4 t(8,128)")  # words in any column, in any order
    opened.expect("#count", "1 of 11 parameters")
    assert opened.column("parameter") == ["params/packed"]
    search.fill("nothing like this")
    opened.expect("#count", "0 of 11 parameters")
    assert opened.page.locator(ROWS).count() == 0
    search.fill("")
    opened.expect("#count", "11 parameters")
    opened.page.select_option("#show", "padded only")
    padded = [p for p in odd() if p.device_bytes > p.unpadded_bytes]
    assert len(opened.column("parameter")) == len(padded)


def test_every_odd_layout_can_be_drawn(show: Show) -> None:
    opened = show(contents.of_signature(signature(odd()), "s"))
    for index, case in enumerate(odd()):
        opened.page.locator(ROWS).nth(index).click()
        assert opened.page.text_content("#detail h3") == f"params/{case.name}"
        assert opened.page.locator("#detail svg.drawing").count() == (2 if 0 in case.shape else 3)
        assert "NaN" not in opened.page.inner_html("#detail")


@pytest.mark.parametrize(
    ("partition", "shards"),
    [
        (((), ("model",)), [[0, 1, 2, 3], [0, 1, 2, 3]]),
        ((("data",), ("model",)), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ((("model",), ("data",)), [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ((("model", "data"), ()), [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ((("data",), ()), [[0, 0, 0, 0], [1, 1, 1, 1]]),
        (((), ()), [[0, 0, 0, 0], [0, 0, 0, 0]]),
    ],
)
def test_the_mesh_shows_which_shard_a_device_holds(
    partition: tuple[tuple[str, ...], ...], shards: list[list[int]], show: Show
) -> None:
    """And so does jax."""
    extent = {"data": 2, "model": 4}
    shape, shard = (64, 256), []
    for size, axes in zip(shape, partition, strict=True):
        for axis in axes:
            size //= extent[axis]  # noqa: PLW2901
        shard.append(size)
    case = parameter("w", shape=shape, partition=partition, shard_shape=tuple(shard), major_to_minor=(0, 1))
    opened = show(contents.of_signature(signature([case]), "s"))
    drawn = opened.page.locator("#gallery figure").nth(1).locator("[data-shard]")
    numbers = [int(cell.get_attribute("data-shard") or -1) for cell in drawn.all()]
    assert numbers == [number for row in shards for number in row]
    assert numbers == placed_by_jax(shape, partition)


def placed_by_jax(shape: tuple[int, ...], partition: tuple[tuple[str, ...], ...]) -> list[int]:
    """For each device of a 2 x 4 mesh the number of its shard, in C order of the shards' places."""
    import jax
    import numpy as np

    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:8]).reshape(2, 4), ("data", "model"))
    spec = jax.sharding.PartitionSpec(*[axes or None for axes in partition])
    places = jax.sharding.NamedSharding(mesh, spec).devices_indices_map(shape)
    starts = {device: tuple(part.start or 0 for part in index) for device, index in places.items()}
    order = {start: number for number, start in enumerate(sorted(set(starts.values())))}
    return [order[starts[device]] for device in mesh.devices.flat]


def test_pointing_at_a_device_marks_its_shard(show: Show) -> None:
    opened = show(contents.of_signature(signature([parameter("w")]), "s"))
    mesh = opened.page.locator("#gallery figure").nth(1)
    assert mesh.locator(".on").count() == 2  # shard 0 and its copy
    mesh.locator("[data-shard='3']").first.hover()
    marked = opened.page.locator("#gallery figure").first.locator(".on")
    assert marked.get_attribute("data-shard") == "3"


def test_padding_is_drawn_where_it_is(show: Show) -> None:
    opened = show(contents.of_signature(signature([parameter("w")]), "s"))
    memory = opened.page.locator("#gallery figure").nth(2)
    tile, used = memory.locator(".tile").first, memory.locator(".element").first
    share = float(used.get_attribute("width") or 0) / float(tile.get_attribute("width") or 1)
    assert share == pytest.approx(40 / 128)
    assert "69 % padding" in (memory.text_content() or "")
    assert "Tiles of 8 × 128: 40 down, 1 across" in (memory.text_content() or "")  # noqa: RUF001


def test_a_difference(show: Show) -> None:
    before = signature([parameter("same"), parameter("turned"), parameter("gone")])
    after = signature([parameter("same"), parameter("turned", major_to_minor=(0, 2, 1)), parameter("new")])
    opened = show(contents.of_difference(compare_signatures(before, after), ("A", "B")))
    assert opened.column("parameter") == ["params/turned", "params/gone", "params/new"]  # only what changes, at first
    assert opened.column("changed") == ["dimension order", "removed", "added"]
    opened.page.select_option("#show", "all")
    assert len(opened.column("parameter")) == 4
    opened.page.locator(ROWS).nth(1).click()
    assert opened.texts("#detail .side > h4") == ["A", "B"]
    assert "Slowest to fastest: dim 0, dim 2 and dim 1." in (opened.page.text_content("#detail") or "")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_and_do_nothing(name: str, show: Show) -> None:
    opened = show(contents.of_signature(signature([parameter(name, name), parameter("w")]), name))
    opened.page.locator(ROWS).first.click()
    assert opened.page.evaluate("document.querySelectorAll('img, iframe, object, base').length") == 0
    assert opened.page.text_content("#detail h3") == opened.column("parameter")[0]


def test_twenty_thousand_parameters(show: Show) -> None:
    opened = show(contents.of_signature(many(20_000), "many"))
    assert opened.page.text_content("#count") == "20,000 parameters"
    assert opened.page.locator(ROWS).count() < 100  # of all rows only those that can be seen
    opened.page.locator("#table").focus()
    opened.page.keyboard.press("End")
    opened.page.wait_for_selector(f"{ROWS}.chosen")
    assert opened.page.text_content("#detail h3") == "params/layers/999/block_19/kernel"
    opened.page.locator("#table thead button").first.click()
    assert opened.column("parameter")[0] == "params/layers/0/block_0/kernel"
    opened.page.locator("#search").fill("layers/777/ block_7")
    opened.expect("#count", "1 of 20,000 parameters")


def test_printing_shows_rows_that_a_screen_scrolls_to(show: Show) -> None:
    opened = show(contents.of_signature(many(1000), "many"))
    assert opened.page.pdf().startswith(b"%PDF")
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.page.locator(ROWS).count() == 301
    assert "and 700 more" in opened.texts(ROWS)[-1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_reader(scheme: str, show: Show) -> None:
    opened = show(contents.of_signature(signature([parameter("w")]), "s"), color_scheme=scheme)
    red = opened.page.evaluate("parseInt(getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/)[0])")
    assert (red > 200) is (scheme == "light")


def test_a_narrow_page_does_not_scroll_sideways(show: Show) -> None:
    opened = show(contents.of_signature(signature(odd()), "s"), viewport={"width": 360, "height": 700})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
