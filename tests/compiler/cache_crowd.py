"""One of several processes that use one cache at random: CACHE DIRECTORY SEED. Prints how many finds were hits."""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

from migrate.compiler.cache import CompileCache
from migrate.compiler.digests import FileDigests
from migrate.compiler.inputs import Inputs, Roots

KEY = "k" * 64


def main(uri: str, directory: Path, seed: int) -> int:
    """Fails on anything but a whole result or none."""
    directory.mkdir()
    cache, choose, hits = CompileCache(uri), random.Random(seed), 0
    roots, digests = Roots.of(directory, ()), FileDigests(directory)
    for _ in range(60):
        number = choose.randrange(4)
        content = f"result {number} ".encode() * 5000
        match choose.randrange(8):
            case 0:
                cache.prune(choose.choice([0, 200_000]))
            case 1 | 2 | 3:
                inputs = Inputs({}, {}, {}, {"NUMBER": hashlib.sha256(str(number).encode()).hexdigest()})
                cache.store(KEY, f"program {number}", inputs, {"executable.bin": content}, 1.0)
            case _:
                if cache.find(KEY, roots, {"NUMBER": str(number)}, digests, directory) is not None:
                    assert (directory / "executable.bin").read_bytes() == content
                    hits += 1
    return hits


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))  # noqa: T201 -- for the test that started it
