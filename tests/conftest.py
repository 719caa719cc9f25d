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
