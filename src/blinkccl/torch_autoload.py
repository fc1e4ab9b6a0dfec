"""Registration of the backend "blink" with torch before 2.14, which calls :func:`autoload` after ``import torch``.

This is a separate module because importing :mod:`blinkccl.torch_backend` registers the backend. From torch 2.14 on this
is not necessary: torch looks up a backend by name when a program requests it. Every torch calls :func:`autoload`, so it
reads the switch ``BLINK_FOR`` too (:mod:`blinkccl.torch_backend.for_gloo`).
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module


def autoload() -> None:
    """Register the backend with torch before 2.14. It never raises, since ``import torch`` would fail too."""
    try:
        major, minor = sys.modules["torch"].__version__.split(".")[:2]
        if (int(major), int(minor)) < (2, 14):
            import_module("blinkccl.torch_backend")
        if backend := os.environ.get("BLINK_FOR"):
            if backend != "gloo":
                raise ValueError(f"BLINK_FOR: expected gloo, got {backend!r}")
            import_module("blinkccl.torch_backend.for_gloo").serve()
    except Exception as error:  # of any kind: a program that imports torch may not use Blink
        logging.getLogger(__name__).warning("backend blink is not registered with torch, or not for gloo: %s", error)
