"""What torch before 2.14 calls at the end of ``import torch``, so that it knows the backend "blink".

A module of its own: importing :mod:`blinkccl.torch_backend` registers the backend, and that is not wanted from
torch 2.14 on, which looks backends up by name when somebody asks for one.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module


def autoload() -> None:
    """Registers the backend with torch before 2.14. Never raises: ``import torch`` would fail with it."""
    try:
        major, minor = sys.modules["torch"].__version__.split(".")[:2]
        if (int(major), int(minor)) < (2, 14):
            import_module("blinkccl.torch_backend")
    except Exception as error:  # whatever it is: who imports torch may not want us at all
        logging.getLogger(__name__).warning("backend blink is not registered with torch: %s", error)
