"""The frame of a benchmark's own kernel: one text for a GPU, its emulation, and the double of the driver.

A kernel's argument is at least as long as a :class:`LaunchCall`, because all three pass on this number of bytes. It is
0 in the place of a call's status, which the emulation reads.
"""

from __future__ import annotations

import ctypes as c
from typing import Any

from blinkccl.native.headers import header

CALL_HEADER = header("call.h")
#: Threads of a block in libblink.so's launches.
THREADS = 512


@CALL_HEADER.layout("Connection")
class ConnectionEnd(c.Structure):
    """``blink::Connection``: one end of a connection."""


@CALL_HEADER.layout("Status")
class LaunchStatus(c.Structure):
    """``blink::Status``: the reason of a launch that ended early."""


@CALL_HEADER.layout("Call")
class LaunchCall(c.Structure):
    """``blink::Call``: the argument of a kernel."""


#: BENCH_KERNEL makes a kernel of the function ``body(argument, block)``; BENCH_SHARED names memory of the block.
FRAME = """\
#ifdef BLINK_CUDA
#define BENCH_SHARED(Type, name) __shared__ Type name
#define BENCH_KERNEL(name, Argument, body)                                                             \\
  extern "C" __global__ void __launch_bounds__(::blink::kMostThreads, ::blink::kBlocksAtOnce)          \\
      name(const __grid_constant__ Argument argument) {                                                \\
    body(argument, blockIdx.x);                                                                        \\
  }
#else
#ifdef BLINK_EMULATED
#define BENCH_SHARED(Type, name) Type& name = ::blink::device::block_state<Type>()
#else
#define BENCH_SHARED(Type, name) Type name
#endif
#define BENCH_KERNEL(name, Argument, body)                                                             \\
  extern "C" __attribute__((visibility("default"))) void name(const Argument* argument, uint32_t block) { \\
    body(*argument, block);                                                                            \\
  }
#endif
"""


def as_long_as_a_call(*fields: tuple[str, Any]) -> list[tuple[str, Any]]:
    """The fields of a kernel's argument, widest first, padded to the size of a call."""
    taken = sum(c.sizeof(kind) for _, kind in fields)
    assert taken <= c.sizeof(LaunchCall), f"{taken} bytes are more than a call has"
    return [*fields, ("rest", c.c_char * (c.sizeof(LaunchCall) - taken))]
