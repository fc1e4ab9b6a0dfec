"""NCCL's wheels, cached between sessions of tests."""

import os
import subprocess
from pathlib import Path

import pytest
from nccl_wheel import fetched, newest

from blinkccl.private_files import cache_directory


def wheel_cache() -> Path:
    """Return a cache outside of the session's own BLINK_CACHE."""
    lasting = {name: value for name, value in os.environ.items() if name != "BLINK_CACHE"}
    directory = cache_directory(lasting, "nccl")
    if directory is None:
        pytest.skip("NCCL's wheels need a directory: neither HOME nor XDG_CACHE_HOME is set")
    return directory


def wheel(version: str) -> Path:
    """Return the library of that version, or the ``newest`` one; its headers are in ``include`` beside it."""
    try:
        return fetched(newest() if version == "newest" else version, wheel_cache())
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"pip cannot fetch NCCL: {error}")
