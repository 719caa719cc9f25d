"""What must be one in a process is one, however many threads ask for it first."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import threading
from migrate import rewrite, storage

barrier, seen = threading.Barrier(16), []

def ask():
    barrier.wait()
    seen.append((rewrite.writer_id(), id(storage.context())))

threads = [threading.Thread(target=ask) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(set(seen)))
"""


def test_one_writer_name_and_one_context_a_process() -> None:
    """Two names made an item's receipt point at a database that did not hold its chunks."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "1"
