"""reexport: rewrite old JAX checkpoints into the sharding and physical layout a new executable expects.

The data flow, one line a module, in order:

errors          every error a user can meet
layout, box     XLA shapes with layouts and their device bytes; boxes and grids            (pure)
signature       what an executable expects of every parameter, and the difference of two  (pure)
zarr            how an array lies in an export                                            (pure)
topologies      names of TPU slices, and what such a slice has                             (pure)
yaml_files      files that people write, with the line of every key
rules, layout_rules, config    job files: the mapping rules, the layout policies, and all the rest
storage         files and objects through TensorStore; conditional writes
local_files     small files on a local disk, whole and durable
sources/        old checkpoint -> leaves that are read box by box
program         the model: a function and its abstract arguments
compiler/       program and target -> signature, executable, jax.export artifact, in a subprocess
mapping         which leaf fills which parameter, and how: applies the rules
transforms      what each rule makes of an array
transposition   copies with permuted dimensions, as fast as memory allows                 (pure)
views, cast     arrays computed from other arrays, box by box
reshape         boxes of a reshaped array                                                 (pure)
durations       spans of time as people write them                                      (pure)
content         a digest of what an array holds, whatever its chunks                      (pure)
chunking        stored chunks within shards, items that read little twice                 (pure)
planner         storage grids, and items of bounded bytes                                 (pure)
deadline        calls that may never return
rewrite         one item -> chunks on storage and a receipt                    \\
verify          read back and compare                                           | called by pipelines/
commit          merge, record, publish: the export exists                      /
allocator       the C library's allocator while a rewrite goes                              (pure)
dispatch        work as it travels to the workers: the plan as a file, items as ranges of numbers
arrays          the OCDBT databases that hold the arrays
receipt, ledger, failures, lease    state of a run
manifest, orbax_metadata, export    what lies in an export; opening and checking one
pointer         LATEST: the current export of an output, and those before it
publication     make an export current, go back to an earlier one, wait for one
retention       which exports and arrays may go                                           (pure)
collector       hides and deletes them
fleet           fleet files: models x targets, each pair a job
audit           a full check of an export
comparison      an export against its source, or another export, by content
environment     versions and devices: what a program needs, and what is here
loader          export -> a callable and its parameters, without relayout
preparation     a job up to its plan
execution       runs the pipeline, which lies in another package
session         a job's hold on its output: lease, receipts, and the work that is left
reuse           arrays that the current export holds as a new one wants them
conflict        what an output holds already, beside what a job would put there
driver          one job from source to export
batch           many jobs in one pipeline; one that fails, fails alone
assessment      a model x target of a fleet: what is current, what is wanted, what that costs
smoke, notify, metrics, history    a fleet's surroundings: a command, a webhook, Prometheus, what was done
outcome, reconcile    make a fleet current with the least work
messages        error messages about layouts -> what they say                               (pure)
padding         what a layout costs on a device, in words                                 (pure)
causes          what is likely to have caused such a message                              (pure)
explain         a message, and a signature -> the parameter, what layouts cost, cause, cure (pure)
bisect          where a sequence changes                                                   (pure)
costs           what layouts cost on a device, and where programs disagree on them         (pure)
difference      two signatures -> what changes, and which stored arrays must be rewritten (pure)
overrides       keys of a job's target, set from outside
sides           an export, a signature file or a job -> its signature, for a comparison
upgrade         which version of libtpu changed what a job expects, in a range
check           whether an export runs as it is, here or as its job is compiled today
cli/, report/   the command line and what it prints
demo/           a small decoder and its checkpoint

Importing this package imports neither jax, tensorstore nor apache_beam; only compiler/, program, loader and demo/
import jax, so a Beam worker starts without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from migrate import errors, layout
    from migrate.audit import verify_export
    from migrate.check import Check, check_export
    from migrate.config import Job, load_job
    from migrate.difference import Difference, compare_signatures
    from migrate.driver import Result, run
    from migrate.explain import Explained, explain_error
    from migrate.export import Export, open_export
    from migrate.loader import LoadedProgram, load
    from migrate.planner import Plan
    from migrate.preparation import compile_program, plan
    from migrate.program import Program
    from migrate.publication import wait_for
    from migrate.signature import Signature
    from migrate.sources import Leaf, SourceCheckpoint, open_checkpoint

_ORIGIN = {
    "Check": "check",
    "Difference": "difference",
    "Explained": "explain",
    "Export": "export",
    "Job": "config",
    "Leaf": "sources",
    "LoadedProgram": "loader",
    "Plan": "planner",
    "Program": "program",
    "Result": "driver",
    "Signature": "signature",
    "SourceCheckpoint": "sources",
    "check_export": "check",
    "compare_signatures": "difference",
    "compile_program": "preparation",
    "explain_error": "explain",
    "load": "loader",
    "load_job": "config",
    "open_checkpoint": "sources",
    "open_export": "export",
    "plan": "preparation",
    "run": "driver",
    "verify_export": "audit",
    "wait_for": "publication",
}
_MODULES = ("errors", "layout")

__all__ = [
    "Check",
    "Difference",
    "Explained",
    "Export",
    "Job",
    "Leaf",
    "LoadedProgram",
    "Plan",
    "Program",
    "Result",
    "Signature",
    "SourceCheckpoint",
    "check_export",
    "compare_signatures",
    "compile_program",
    "errors",
    "explain_error",
    "layout",
    "load",
    "load_job",
    "open_checkpoint",
    "open_export",
    "plan",
    "run",
    "verify_export",
    "wait_for",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"migrate.{name}")
    if name in _ORIGIN:
        return getattr(importlib.import_module(f"migrate.{_ORIGIN[name]}"), name)
    raise AttributeError(f"module 'migrate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
