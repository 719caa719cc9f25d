"""Settings that must be in place before any test imports jax."""

import os
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
