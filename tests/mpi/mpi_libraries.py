"""Which MPI libraries the tests use: those on PATH, or those that ``BLINK_TEST_MPI`` names as ``blink bench --peer``.

``BLINK_TEST_MPI=openmpi=/tmp/openmpi,mpich=/tmp/mpich,impi=/tmp/impi-devel``
"""

from __future__ import annotations

import os

from blinkccl.bench.peers.registry import parse

LIBRARIES = parse(os.environ.get("BLINK_TEST_MPI", "openmpi,mpich"))
