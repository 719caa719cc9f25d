"""The C library's settings, seen from outside: page faults and resident bytes of a process of its own."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="only with glibc")

TOOLS = """
import gc, resource
from pathlib import Path
from migrate.allocator import give_back, kept_buffers

PAGE = resource.getpagesize()

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE

def faults(nbytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffer = bytearray(nbytes)
    del buffer
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", TOOLS + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_buffers_are_kept_while_it_lasts_and_given_back_afterwards() -> None:
    run("""
nbytes = 64 << 20
before = resident()
with kept_buffers():
    faults(nbytes)
    assert resident() - before > nbytes // 2, "given back at once"
    assert faults(nbytes) < nbytes // PAGE // 10, "cleared again"
assert resident() - before < nbytes // 8, "not given back"
first = faults(nbytes)
assert resident() - before < nbytes // 8, "a later buffer is kept, too"
""")


def test_settings_are_restored_after_an_error() -> None:
    run("""
try:
    with kept_buffers():
        raise KeyError
except KeyError:
    pass
before = resident()
faults(64 << 20)
assert resident() - before < 8 << 20
""")


def test_no_more_than_a_bound_is_kept() -> None:
    run("""
before = resident()
with kept_buffers():
    faults(512 << 20)
    assert resident() - before < 300 << 20
""")


def test_what_lies_free_between_used_memory_is_given_back() -> None:
    run("""
before = resident()
blocks = [bytearray(100_000) for _ in range(1000)]
del blocks[:-1]  # the last one keeps the heap's end where it is
assert resident() - before > 50_000_000
give_back()
assert resident() - before < 10_000_000
""")
