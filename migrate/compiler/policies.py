"""Layout policies, applied: which layout each array of a program may have, before and after the compiler has chosen.

Pure but for :func:`fetch`, which reads the signatures that policies pin; neither imports jax.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from migrate import export
from migrate.config import ProgramConfig, Target
from migrate.errors import ConfigError, ProgramError
from migrate.layout import Layout
from migrate.layout_rules import CopiedLayout, LayoutRule, StatedLayout
from migrate.signature import ParameterSpec

if TYPE_CHECKING:
    from migrate.compiler.arguments import AbstractLeaf
    from migrate.compiler.request import Request

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """What one array's layout may be."""

    kind: Literal["auto", "default", "fixed"]
    """``fixed``: exactly ``layout``."""
    chosen_by: str
    """One of :data:`migrate.signature.CHOSEN_BY`."""
    layout: Layout | None = None
    """Without tiles the compiler adds those of the dimension order."""
    max_padding: float | None = None
    """Of ``auto``: device bytes over unpadded bytes that are still taken; None: any."""


def fetch(target: Target, program: ProgramConfig) -> dict[str, tuple[ParameterSpec, ...]]:
    """Path -> parameters, for every signature that a policy of ``target`` or ``program`` pins.

    Of an export the program of the same name is taken, else its primary one. Raises :class:`ConfigError` if no
    signature lies there, and what opening an export raises.
    """
    policies = [program.layout or target.layout, *(rule.layout for rule in (*program.layouts, *target.layouts))]
    found = {}
    for uri in dict.fromkeys(policy.pinned for policy in policies if isinstance(policy, CopiedLayout)):
        signature = export.find_signature(uri, program.name)
        if signature is None:
            raise ConfigError(
                "there is no signature whose layouts could be taken",
                where="layout: pinned",
                expected="a signature file, an export, or an output",
                found=uri,
            )
        found[uri] = signature.parameters
    return found


def choose(leaves: Sequence[AbstractLeaf], request: Request) -> list[Choice]:
    """What each of ``leaves`` may have by the program's own policies; a layout that the model's code demands is not
    among them, see :attr:`AbstractLeaf.pinned`.

    The first rule that matches decides, the program's before the target's. A rule's pattern matches ``argument/path``
    of any array, or the path alone of one that the checkpoint fills. Raises :class:`ConfigError` if a rule of the
    program matches nothing, a rule states an order of another rank, or a pinned signature lacks an array or has it with
    another shape, dtype or shard.
    """
    target, program = request.target, request.program
    rules = (*program.layouts, *target.layouts)
    choices = []
    for leaf in leaves:
        policy: Any = next((rule.layout for rule in rules if matches(rule.parameters, leaf)), None)
        choices.append(_choice(policy or program.layout or target.layout, leaf, request))
    check_rules(program.layouts, leaves, f"program {program.name}: layouts")
    return choices


def check_rules(rules: Sequence[LayoutRule], arrays: Sequence[AbstractLeaf | ParameterSpec], where: str) -> None:
    """Refuse a rule that matches none of ``arrays``. Raises :class:`ConfigError` naming ``where``."""
    for number, rule in enumerate(rules):
        if not any(matches(rule.parameters, array) for array in arrays):
            names = [_name(array) for array in arrays]
            close = difflib.get_close_matches(rule.parameters, names, n=_SHOWN, cutoff=0.5)
            more = ", ..." if len(names) > _SHOWN else ""
            raise ConfigError(
                "a layout rule matches no array",
                where=f"{where}[{number}].parameters",
                expected=f"a regular expression for the whole path of: {', '.join((close or names)[:_SHOWN])}{more}",
                found=repr(rule.parameters),
            )


def _name(array: AbstractLeaf | ParameterSpec) -> str:
    return "/".join((array.argument, *array.path))


def matches(pattern: str, array: AbstractLeaf | ParameterSpec) -> bool:
    """Whether ``pattern`` is for ``array``: the whole of ``argument/path``, or of the path of a weight."""
    if re.fullmatch(pattern, _name(array)):
        return True
    return array.is_weight and re.fullmatch(pattern, "/".join(array.path)) is not None


def _choice(policy: Any, leaf: AbstractLeaf, request: Request) -> Choice:
    match policy:
        case CopiedLayout():
            return Choice("fixed", "pinned", _copied(leaf, policy.pinned, request.copied[policy.pinned]))
        case StatedLayout():
            if len(policy.major_to_minor) != len(leaf.shape):
                raise ConfigError(
                    "a layout rule states another number of dimensions than the array has",
                    where=_name(leaf),
                    expected=f"{len(leaf.shape)} dimensions, shape {leaf.shape}",
                    found=f"major_to_minor {list(policy.major_to_minor)}",
                )
            return Choice("fixed", "pinned", Layout(policy.major_to_minor[::-1]))
        case "auto-bounded":
            return Choice("auto", "auto", max_padding=request.target.max_padding)
        case "default":
            return Choice("default", "default")
    return Choice("auto", "auto")


def _copied(leaf: AbstractLeaf, uri: str, specs: Iterable[ParameterSpec]) -> Layout:
    """The layout of ``leaf`` in the signature at ``uri``; arguments may have other names, weights are weights."""
    for spec in specs:
        if spec.path == leaf.path and (spec.argument == leaf.argument or (spec.is_weight and leaf.is_weight)):
            break
    else:
        raise ConfigError(
            "the signature whose layouts are pinned lacks an array of the program",
            where=f"{_name(leaf)}, pinned: {uri}",
            remedy="give it another policy with a rule under layouts, such as layout: auto",
        )
    shard_shape = tuple(leaf.sharding.shard_shape(leaf.shape))
    wanted = (leaf.dtype.name, leaf.shape, shard_shape)
    if (spec.dtype, spec.shape, spec.shard_shape) != wanted:
        raise ConfigError(
            "the signature whose layouts are pinned has an array with another shape, dtype or sharding",
            where=f"{_name(leaf)}, pinned: {uri}",
            expected=_described(*wanted),
            found=_described(spec.dtype, spec.shape, spec.shard_shape),
            remedy="give it another policy with a rule under layouts, such as layout: auto",
        )
    return spec.layout


def _described(dtype: str, shape: tuple[int, ...], shard_shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape)} in shards of {list(shard_shape)}"


def pair(leaves: Sequence[AbstractLeaf], shared: Sequence[ParameterSpec], program: str) -> dict[int, ParameterSpec]:
    """Number of a leaf -> the primary program's parameter of the same path, for the weights that both have.

    Raises :class:`ProgramError` if the two do not agree on what lies on each device.
    """
    by_path = {spec.path: spec for spec in shared}
    pairs = {n: by_path[leaf.path] for n, leaf in enumerate(leaves) if leaf.is_weight and leaf.path in by_path}
    for number, spec in pairs.items():
        _check_shared(leaves[number], spec, program)
    return pairs


def _check_shared(leaf: AbstractLeaf, spec: ParameterSpec, program: str) -> None:
    for what, own, primary in (
        ("shape", list(leaf.shape), list(spec.shape)),
        ("dtype", leaf.dtype.name, spec.dtype),
        ("sharding", _axes(leaf.partition), _axes(spec.partition)),
        ("memory kind", leaf.memory_kind, spec.memory_kind),
    ):
        if own != primary:
            raise ProgramError(
                f"two programs share a parameter but not its {what}",
                where=f"{spec.name} of program {program}",
                expected=f"{primary}, as in the primary program",
                found=str(own),
                remedy="give both entries the same, or the parameter another path in one of them",
            )


def _axes(partition: Sequence[Sequence[str]]) -> str:
    return "(" + ", ".join("+".join(axes) or "-" for axes in partition) + ")"


def exceeds(spec: ParameterSpec, max_padding: float) -> bool:
    """Whether the layout is padded above ``max_padding`` and the default one takes fewer bytes.

    The factor is device bytes over the shard's bytes without padding, so it can be stated without compiling. A small
    array fills a tile whatever its layout: it is not refused for what its default layout costs, too.
    """
    default = spec.default_device_bytes
    return (
        default is not None
        and default < spec.device_bytes
        and spec.device_bytes > max_padding * max(1, spec.unpadded_bytes)
    )


def policy_text(request: Request, specs: Sequence[ParameterSpec]) -> str:
    """The policies as the fingerprint has them: what was asked, and a digest of every layout that was prescribed."""
    policies = [request.program.layout or request.target.layout]
    rules = (*request.program.layouts, *request.target.layouts)
    policies += [rule.layout for rule in rules]  # type: ignore[misc]  # a rule may also state an order
    texts = [_policy_text(policy, request.target) for policy in policies]
    text = texts[0]
    if rules:
        text += "; " + ", ".join(f"{rule.parameters}: {policy}" for rule, policy in zip(rules, texts[1:], strict=True))
    prescribed = [spec for spec in specs if spec.chosen_by in {"pinned", "primary", "bound"}]
    if prescribed:
        lines = "\n".join(f"{spec.argument}/{spec.name} {spec.layout}" for spec in prescribed)
        text += f"; {len(prescribed)} prescribed ({hashlib.sha256(lines.encode()).hexdigest()[:12]})"
    return text


def _policy_text(policy: Any, target: Target) -> str:
    match policy:
        case CopiedLayout():
            return "pinned"  # not the path: the same layouts from elsewhere are the same
        case StatedLayout():
            return f"({','.join(map(str, policy.major_to_minor))})"
        case "auto-bounded":
            return f"auto-bounded {target.max_padding:g}"
    return str(policy)
