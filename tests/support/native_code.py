"""The mark of tests of what is in the native library alone."""

import pytest

from blinkccl.native import absent
from blinkccl.trees.packing import native_flows

needs_native_code = pytest.mark.skipif(native_flows.load() is None, reason=absent(native_flows.LIBRARY))
