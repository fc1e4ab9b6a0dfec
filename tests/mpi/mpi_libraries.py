"""The MPI libraries of the tests: those on PATH, or those in ``BLINK_TEST_MPI``, as in ``blink bench --peer``.

``BLINK_TEST_MPI=openmpi=/tmp/openmpi,mpich=/tmp/mpich,impi=/tmp/impi-devel``
"""

import os

from blinkccl.bench.peers.registry import parse

LIBRARIES = parse(os.environ.get("BLINK_TEST_MPI", "openmpi,mpich"))
