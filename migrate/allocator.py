"""The C library's allocator, told to keep the large buffers of a rewrite instead of giving them back.

By default glibc maps every large buffer anew and unmaps it when it is freed; the kernel then clears each of its pages
at the next use. That took a fifth of the CPU time of a rewrite (docs/performance.md).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

# malloc.h of glibc
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_KEPT_BYTES = 256 << 20
"""Free memory at the heap's end above this goes back to the system."""
_DEFAULT_TRIM_BYTES, _DEFAULT_MAPPINGS, _ARENAS_BY_CPUS = 128 << 10, 65536, 0


@contextlib.contextmanager
def kept_buffers() -> Iterator[None]:
    """Keep freed buffers for the next item; at the end the defaults are set again, and what is free is given back.

    Does nothing where the C library is not glibc. For the whole process.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        yield
        return
    library.mallopt(_M_ARENA_MAX, 1)  # other arenas cannot hold large buffers
    library.mallopt(_M_MMAP_MAX, 0)
    library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    try:
        yield
    finally:
        library.mallopt(_M_MMAP_MAX, _DEFAULT_MAPPINGS)
        library.mallopt(_M_TRIM_THRESHOLD, _DEFAULT_TRIM_BYTES)
        library.mallopt(_M_ARENA_MAX, _ARENAS_BY_CPUS)
        library.malloc_trim(0)


def give_back() -> None:
    """Return to the system what the C library holds of freed memory; nothing happens where it is not glibc.

    Threads that are done, as TensorStore's are after loading, otherwise keep their buffers for good.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
