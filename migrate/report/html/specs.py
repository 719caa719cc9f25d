"""Parameters as plain data for the page. Layers of a model expect the same of many arrays: each layout is told once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from migrate.padding import padding_words
from migrate.report.text import format_grid, format_shape, printable
from migrate.signature import CHOSEN_BY, ParameterSpec

if TYPE_CHECKING:
    from migrate.box import Grid
    from migrate.zarr import StoredArray


class Interned:
    """Values in the order in which they first came, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any, value: Any = None) -> int:
        """Where ``value`` (default: ``key``) stands; ``key`` decides whether it is there already."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(key if value is None else value)
        return found


class ParameterTable:
    """The rows of the page's table, and the layouts they refer to."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._meshes = Interned()
        self._specs = Interned()
        self._texts = Interned()
        self._grids = Interned()

    def mesh(self, axes: tuple[tuple[str, int], ...]) -> int:
        """Number of a mesh, for :meth:`spec`."""
        return self._meshes.number(axes, [[printable(name), size] for name, size in axes])

    def spec(self, parameter: ParameterSpec | None, mesh: int) -> int | None:
        """Number of what an executable expects of a parameter."""
        if parameter is None:
            return None
        p = parameter
        physical = (p.shape, p.dtype, p.partition, p.shard_shape, p.major_to_minor, p.tiles, p.element_bits)
        key = (mesh, physical, p.memory_kind, p.chosen_by, p.wanted, p.default_device_bytes)
        return self._specs.number(key, _Lazy(p, mesh))

    def text(self, text: str) -> int | None:
        """Number of a text that many rows share; None for the empty one."""
        return self._texts.number(printable(text)) if text else None

    def grid(self, grid: Grid | None, stored: StoredArray | None = None) -> int | None:
        """Number of a cut into chunks; of a ``stored`` array with its dimension order."""
        if grid is None:
            return None
        order = None if stored is None else stored.major_to_minor
        zstd = stored is not None and stored.compression == "zstd"
        text = format_grid(grid)
        if order is not None and len(order) > 1:
            text += f", order {format_shape(order)}"
        value = {"text": text + (", zstd" if zstd else ""), "shape": grid.shape, "chunk": grid.chunk_shape}
        return self._grids.number((grid, order, zstd), value | {"order": order})

    def add(
        self,
        name: str,
        role: str,
        program: str = "",
        *,
        spec: int | None = None,
        was: int | None = None,
        source: str = "",
        source_grid: Grid | None = None,
        stored: StoredArray | None = None,
        changed: str = "",
        todo: str = "",
    ) -> None:
        """A row. ``was`` is the spec before, ``source_grid`` how the source is cut where it is known."""
        grids = self.grid(source_grid), None if stored is None else self.grid(stored.grid, stored)
        role_, program_, *words = map(self.text, (role, program, changed, todo))
        self.rows.append([printable(name), spec, was, printable(source), role_, program_, *grids, *words])

    def to_json(self) -> dict[str, Any]:
        """What the page's script reads; rows are lists to keep 20,000 of them small."""
        return {
            "meshes": self._meshes.values,
            "specs": [lazy.to_json() for lazy in self._specs.values],
            "texts": self._texts.values,
            "grids": self._grids.values,
            "rows": self.rows,
        }


class _Lazy:
    """A layout whose figures are computed once, when they are written."""

    def __init__(self, parameter: ParameterSpec, mesh: int) -> None:
        self._parameter = parameter
        self._mesh = mesh

    def to_json(self) -> dict[str, Any]:
        p = self._parameter
        wanted = None if p.wanted is None else f"{p.wanted}, {p.wanted_device_bytes:,} bytes"
        return {
            "mesh": self._mesh,
            "xla": str(p.shard),
            "dtype": p.dtype,
            "shape": p.shape,
            "partition": [list(map(printable, axes)) for axes in p.partition],
            "shard": p.shard_shape,
            "order": p.major_to_minor,
            "tiles": p.tiles,
            "memory": printable(p.memory_kind),
            "bytes": p.device_bytes,
            "dense": p.unpadded_bytes,
            "default": p.default_device_bytes,
            "words": padding_words(p.shard),
            "chosen": CHOSEN_BY.get(p.chosen_by, ""),
            "wanted": wanted,
        }


def role(parameter: ParameterSpec) -> str:
    """What a parameter is to a checkpoint."""
    if parameter.is_weight:
        return "weight"
    return "donated input" if parameter.donated else "input"
