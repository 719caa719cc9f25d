"""Lower, compile and export a program whose arguments are abstract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh

from migrate.compiler.arguments import AbstractLeaf
from migrate.compiler.failures import compile_failure, trace_failure
from migrate.compiler.plain_trees import plain_function, plain_tree
from migrate.errors import ProgramError
from migrate.program import Program

# jax.export's words on trees that it cannot write
_NOT_SERIALIZABLE = ("unregistered type", "only for dictionaries with string keys")


def lower(
    program: Program, mesh: Mesh, leaves: Sequence[AbstractLeaf], layouts: Sequence[Any], *, free_results: bool
) -> jax.stages.Lowered:
    """The program traced and lowered to StableHLO.

    ``layouts`` has an entry a leaf: a ``Layout``, ``Layout.AUTO`` (XLA chooses), or None (the platform's default).
    With ``free_results`` XLA chooses those of the results, so that a donated buffer can be reused in place; a result
    that can take the place of a donated array has the layout prescribed for that, and comes back as it went in.
    ``keep_unused``: without it an unused argument vanishes and later HLO parameter numbers move. ``mesh`` is the
    context mesh meanwhile: models name its axes in sharding constraints. Raises :class:`ProgramError` with what the
    function raised.
    """
    formats = [
        leaf.sharding if layout is None else Format(layout, leaf.sharding)
        for leaf, layout in zip(leaves, layouts, strict=True)
    ]
    try:
        with jax.set_mesh(mesh):
            jitted = jax.jit(
                program.function,
                in_shardings=_unflatten(program, formats),
                out_shardings=_results(program, leaves, layouts, free_results=free_results),
                donate_argnums=program.donated,
                keep_unused=True,
            )
            return jitted.lower(*_unflatten(program, [leaf.struct for leaf in leaves]))
    except (Exception, SystemExit) as error:  # whatever the user's function raises under tracing
        raise trace_failure(error) from error


def _results(program: Program, leaves: Sequence[AbstractLeaf], layouts: Sequence[Any], *, free_results: bool) -> Any:
    """``out_shardings``: one for all results, unless a donated array's layout is decided otherwise than theirs.

    Then those that are not to take a donated array's place have default layouts: libtpu ignores what is prescribed for
    some results if it may choose others (seen with 0.0.42.1: a donated cache comes back in another layout).
    """
    donated = [(leaf, layout) for leaf, layout in zip(leaves, layouts, strict=True) if leaf.is_donated]
    general = Layout.AUTO if free_results else None
    if all(layout is general for _, layout in donated):
        return Format(Layout.AUTO) if free_results else None

    def result(value: Any) -> Any:
        for number, (leaf, layout) in enumerate(donated):
            if (leaf.shape, leaf.dtype) == (value.shape, value.dtype):
                del donated[number]  # as jax pairs them: each once, in order
                if layout is None or layout is Layout.AUTO:
                    return layout and Format(layout)
                return Format(layout, leaf.sharding)
        return None

    return jax.tree.map(
        result, jax.eval_shape(program.function, *_unflatten(program, [leaf.struct for leaf in leaves]))
    )


def compile_lowered(
    lowered: jax.stages.Lowered, flags: Mapping[str, str | bool | int | float], where: str
) -> jax.stages.Compiled:
    """The executable; ``flags`` are XLA compiler options, ``where`` names program and topology for errors.

    Raises :class:`ConfigError` for a flag that the compiler does not take, :class:`CompileError` for anything else
    that it refuses.
    """
    try:
        # Booleans as they are, jax asks for that; XLA parses numbers from text.
        options = {name: value if isinstance(value, bool) else str(value) for name, value in flags.items()}
        return lowered.compile(compiler_options=options or None)
    except Exception as error:  # compilers raise RuntimeError, ValueError, NotImplementedError, ...
        raise compile_failure(error, flags, where) from error


def export_program(program: Program, mesh: Mesh, leaves: Sequence[AbstractLeaf], platform: str) -> bytes:
    """The portable ``jax.export`` artifact: StableHLO with shardings, without layouts or a compiler's output.

    Where its trees hold node types that are not registered for serialization, such as Flax NNX's, or keys that are not
    texts, the artifact's have plain containers in their place.

    Raises :class:`ProgramError` if the program cannot be exported.
    """
    structs = _unflatten(program, [leaf.struct for leaf in leaves])
    shardings = _unflatten(program, [leaf.sharding for leaf in leaves])
    try:
        with jax.set_mesh(mesh):
            try:
                return _exported(program.function, structs, shardings, program.donated, platform)
            except (TypeError, ValueError) as error:
                if not any(words in str(error) for words in _NOT_SERIALIZABLE):
                    raise
            plain = plain_function(program.function, structs)
            plain_structs, plain_shardings = tuple(map(plain_tree, structs)), tuple(map(plain_tree, shardings))
            return _exported(plain, plain_structs, plain_shardings, program.donated, platform)
    except Exception as error:  # ValueError for unregistered nodes and unstable custom calls, and what they wrap
        raise ProgramError(
            "the program cannot be written as a jax.export artifact",
            where="Program",
            found=f"{type(error).__name__}: {error}"[:2000],
            remedy="jax.export says in its documentation which programs it can write",
        ) from error


def _exported(
    function: Callable[..., Any], structs: Any, shardings: Any, donated: tuple[int, ...], platform: str
) -> bytes:
    jitted = jax.jit(function, in_shardings=shardings, donate_argnums=donated, keep_unused=True)
    return bytes(jax.export.export(jitted, platforms=[platform])(*structs).serialize())


def _unflatten(program: Program, flat: Sequence[Any]) -> Any:
    return jax.tree.unflatten(jax.tree.structure(program.arguments), flat)
