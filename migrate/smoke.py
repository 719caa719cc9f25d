"""Runs the fleet's smoke command on an export before that becomes the current one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from migrate.errors import SmokeTestError

VARIABLE = "REEXPORT_EXPORT"
_LINES_SHOWN = 15
_GRACE_SECONDS = 5.0


def run_smoke(
    command: Sequence[str] | str, export_uri: str, timeout_seconds: float, *, current: str | None = None
) -> None:
    """Run ``command`` with the export's path or URI as its last argument and in ``REEXPORT_EXPORT``.

    A text is run by ``sh -c``, with the path as ``$1``. Programs of this Python environment are found first. The
    command reads nothing from standard input; it and what it started are ended after ``timeout_seconds``. ``current``
    is the id of the export that stays current if it fails.

    Raises :class:`SmokeTestError` with the last lines it printed, unless it exits with 0 in time.
    """
    words = ["sh", "-c", command, "smoke", export_uri] if isinstance(command, str) else [*command, export_uri]
    path = os.pathsep.join(filter(None, (str(Path(sys.executable).parent), os.environ.get("PATH"))))
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                words,
                env={**os.environ, "PATH": path, VARIABLE: export_uri},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise SmokeTestError(
                "the smoke command cannot be started",
                where=words[0],
                found=error.strerror,
                remedy="see `smoke.command`",
            ) from error
        ended = _wait(process, timeout_seconds)
        if ended == 0:
            return
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()[-_LINES_SHOWN:]
    how = f"ended with exit code {ended}"
    if ended is None:
        how = f"took longer than {timeout_seconds:g} seconds and was ended"
    elif ended < 0:
        how = f"was killed by signal {-ended}"
    raise SmokeTestError(
        f"the smoke command {how}",
        where=export_uri,
        found="its last lines:" + "".join(f"\n    {line}" for line in lines) if lines else "it printed nothing",
        remedy=(f"export {current} stays current" if current else "the output has no current export yet")
        + "; this one is kept, and is tried again by the next reconcile",
    )


def _wait(process: subprocess.Popen[bytes], timeout_seconds: float) -> int | None:
    """Exit code, negative for a signal; None if it ran out of time. What it started is ended with it."""
    ended: int | None = None
    try:
        ended = process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(_GRACE_SECONDS)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
    return ended
