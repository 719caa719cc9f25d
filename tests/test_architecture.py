"""The structure that docs/architecture.md promises, read from the syntax trees and from what really gets imported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("migrate", "pipelines")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def imports(module: str, *, type_checking: bool = False) -> set[str]:
    """Modules that ``module`` names in import statements, also inside functions; those for type checkers on request."""
    tree = ast.parse(MODULES[module].read_text())
    return {name for node in _nodes(tree, type_checking) for name in _named(node)}


def _nodes(tree: ast.AST, type_checking: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not type_checking:
            yield from (n for other in node.orelse for n in [other, *_nodes(other, type_checking)])
            continue
        yield node
        yield from _nodes(node, type_checking)


def _named(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute here"
        # `from migrate import storage` imports migrate.storage
        inner = {f"{node.module}.{alias.name}" for alias in node.names}
        return inner & set(MODULES) or {str(node.module)}
    return set()


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def users(*packages: str) -> set[str]:
    """Modules that import anything of ``packages``."""
    return {module for module in MODULES if any(within(name, *packages) for name in imports(module))}


def ours(module: str) -> set[str]:
    return {name for name in imports(module) if within(name, "migrate", "pipelines")}


def test_the_walk_sees_imports_everywhere() -> None:
    """A test of absences is worth what its search finds."""
    assert "jax" in imports("migrate.loader")
    assert "tensorstore" in imports("migrate.storage")  # inside functions only
    assert "jax.sharding" not in imports("migrate.program")  # for type checkers only
    assert "jax.sharding" in imports("migrate.program", type_checking=True)
    assert "migrate.planner" in imports("migrate.driver")
    assert len(MODULES) > 40


def test_migrate_never_imports_beam_or_the_pipelines() -> None:
    assert {module for module in users("apache_beam", "pipelines") if within(module, "migrate")} == set()


def test_only_what_compiles_or_loads_programs_imports_jax() -> None:
    allowed = ("migrate.compiler", "migrate.program", "migrate.loader", "migrate.demo")
    assert {module for module in users("jax", "jaxlib", "flax") if not within(module, *allowed)} == set()


PURE = [
    "errors",
    "layout",
    "box",
    "signature",
    "topologies",
    "zarr",
    "mapping",
    "planner",
    "messages",
    "padding",
    "explain",
    "difference",
    "costs",
    "bisect",
    "causes",
]


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_name_neither_jax_nor_tensorstore(module: str) -> None:
    assert not {name for name in imports(f"migrate.{module}") if within(name, "jax", "tensorstore", "orbax")}


LAYERS = {
    # module: all it may import of ours
    "errors": set(),
    "layout": {"errors"},
    "box": set(),
    "signature": {"errors", "layout", "report"},  # for notebooks
    "messages": {"errors", "layout"},
    "padding": {"layout"},
    "causes": {"layout", "messages", "padding", "signature"},
    "explain": {"causes", "layout", "messages", "padding", "signature"},
    "environment": {"errors", "signature"},
    "difference": {"chunking", "layout", "report", "signature"},
    "bisect": set(),
    "yaml_files": {"errors"},
    "pointer": {"errors", "manifest", "storage"},
    "retention": set(),
    "durations": set(),
    "overrides": {"config", "errors"},
    "zarr": {"box", "errors", "layout"},
    "local_files": set(),
    "topologies": {"errors"},
    "storage": {"errors", "local_files"},
    "rules": {"errors", "layout"},
    "layout_rules": {"rules"},
    "config": {"errors", "layout_rules", "rules", "storage", "yaml_files"},
    "costs": {"signature"},
    "reshape": {"box"},
    "transposition": set(),
    "views": {"box", "cast", "reshape", "sources", "transposition"},
    "cast": {"box", "errors", "sources"},
    "transforms": {"cast", "reshape", "rules", "sources", "views"},
    "mapping": {"cast", "errors", "rules", "signature", "sources", "transforms", "views", "zarr"},
    "chunking": set(),
    "planner": {"box", "chunking", "errors", "mapping", "report", "signature", "sources", "zarr"},
}


@pytest.mark.parametrize("module", LAYERS)
def test_layers_of_the_core(module: str) -> None:
    found = {name.split(".")[1] for name in ours(f"migrate.{module}")}
    assert found <= LAYERS[module]


def test_planner_and_mapping_need_only_the_protocol_of_the_sources() -> None:
    for module in ("migrate.planner", "migrate.mapping", "migrate.transforms", "migrate.views", "migrate.cast"):
        assert {name for name in imports(module) if within(name, "migrate.sources")} <= {"migrate.sources.base"}


def test_sources_know_nothing_of_what_is_done_with_them() -> None:
    allowed = ("migrate.sources", "migrate.errors", "migrate.box", "migrate.storage", "migrate.transposition")
    for module in MODULES:
        if within(module, "migrate.sources"):
            assert {name for name in ours(module) if not within(name, *allowed)} == set(), module


def test_the_writer_and_the_commit_run_on_workers_without_job_or_driver() -> None:
    above = ("migrate.driver", "migrate.cli", "migrate.report", "migrate.compiler", "migrate.program", "migrate.loader")
    for module in ("rewrite", "verify", "commit", "arrays", "receipt", "failures", "ledger", "export", "manifest"):
        assert not {name for name in ours(f"migrate.{module}") if within(name, *above)}, module


def test_nothing_imports_the_command_line() -> None:
    assert {module for module in users("migrate.cli") if not within(module, "migrate.cli")} == set()


def test_only_the_command_line_imports_click_and_only_the_reports_import_rich() -> None:
    assert {module for module in users("click") if not within(module, "migrate.cli")} == set()
    assert {module for module in users("rich") if not within(module, "migrate.report")} == set()


def test_imports_form_no_circle() -> None:
    """Statements inside functions count too: a circle there is still a circle."""
    graph = {module: ours(module) - {module} for module in MODULES if module != "migrate"}
    # a package's __init__ gathers its own modules
    packages = {module for module in graph if MODULES[module].name == "__init__.py"}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module in done or module not in graph:
            return
        for name in graph[module]:
            if not (module in packages and within(name, module)):
                visit(name, (*path, module))
        done.add(module)

    for module in graph:
        visit(module, ())


LIGHT = {
    # module: heavy ones that must not come with it
    "migrate": ("jax", "tensorstore", "apache_beam", "numpy", "pydantic", "orbax"),
    "migrate.errors": ("numpy", "pydantic"),
    "migrate.layout": ("numpy", "pydantic"),
    "migrate.box": ("numpy", "pydantic"),
    "migrate.signature": ("jax", "tensorstore", "numpy"),
    "migrate.topologies": ("jax", "numpy", "pydantic"),
    "migrate.zarr": ("jax", "tensorstore", "numpy", "pydantic"),
    "migrate.explain": ("jax", "tensorstore", "numpy", "pydantic"),
    "migrate.check": ("jax", "apache_beam", "orbax"),
    "migrate.environment": ("jax", "tensorstore", "numpy", "pydantic"),
    "migrate.storage": ("jax", "tensorstore", "numpy", "pydantic"),
    "migrate.mapping": ("jax", "tensorstore", "orbax", "apache_beam"),
    "migrate.planner": ("jax", "tensorstore", "orbax", "apache_beam"),
    "migrate.config": ("jax", "tensorstore", "numpy", "apache_beam"),
    "migrate.cli": ("jax", "tensorstore", "apache_beam", "numpy", "pydantic", "rich"),  # `reexport --help`
    "migrate.report.html.contents": ("jax", "tensorstore", "apache_beam", "numpy", "rich"),
    "migrate.report.notebook": ("jax", "tensorstore", "apache_beam", "numpy", "rich", "pydantic", "jinja2"),
    "migrate.report.html.page": ("jax", "tensorstore", "apache_beam", "numpy", "rich"),
    "migrate.compiler": ("jax", "jaxlib", "libtpu", "apache_beam"),
    "migrate.compiler.toolchains": ("jax", "jaxlib", "libtpu"),
    "migrate.driver": ("jax", "apache_beam", "orbax"),
    "migrate.fleet": ("jax", "tensorstore", "apache_beam"),
    "migrate.publication": ("jax", "tensorstore", "apache_beam"),
    "migrate.reconcile": ("jax", "apache_beam", "orbax"),
    # a Beam worker
    "migrate.rewrite": ("jax", "apache_beam", "orbax"),
    "migrate.commit": ("jax", "apache_beam", "orbax"),
    "pipelines.transforms": ("jax", "orbax"),
}


@pytest.fixture(scope="session")
def loaded() -> dict[str, set[str]]:
    """Top-level packages that each module of ``LIGHT`` really loads, each in a process of its own."""
    code = "import sys, importlib; importlib.import_module(sys.argv[1]); print(*{m.split('.')[0] for m in sys.modules})"
    running = {
        module: subprocess.Popen([sys.executable, "-Wignore", "-c", code, module], stdout=subprocess.PIPE, text=True)
        for module in LIGHT
    }
    return {module: set(process.communicate(timeout=60)[0].split()) for module, process in running.items()}


@pytest.mark.parametrize("module", LIGHT)
def test_light_imports(module: str, loaded: dict[str, set[str]]) -> None:
    assert "migrate" in loaded[module], "the import failed"
    assert loaded[module].isdisjoint(LIGHT[module])


def test_every_public_name_of_the_package_exists() -> None:
    code = "import migrate; print(all(getattr(migrate, name) is not None for name in migrate.__all__))"
    result = subprocess.run([sys.executable, "-Wignore", "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "True", result.stderr
    import migrate

    assert sorted(migrate.__all__) == migrate.__all__ == dir(migrate)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = migrate.no_such_name


def test_the_package_docstring_lists_every_module() -> None:
    import migrate

    names = {path.stem for path in (ROOT / "migrate").glob("*.py")} | {
        path.name for path in (ROOT / "migrate").iterdir() if (path / "__init__.py").exists()
    }
    missing = {name for name in names - {"__init__"} if not re.search(rf"\b{name}\b", migrate.__doc__)}
    assert missing == set()
