"""A program that opens NCCL by a path and calls it through ctypes: an AllReduce over two GPUs of this process.

Knows nothing of Blink. ``ctypes_client.py PATH`` prints one line of JSON.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import sys

FLOAT32, SUM, COUNT = 7, 0, 1000


def must(what: str, code: int) -> None:
    if code:
        print(json.dumps({"what": what, "code": code}))
        sys.exit(1)


def main(path: str) -> None:
    nccl, cuda = c.CDLL(path), c.CDLL(os.environ["BLINK_CUDA_LIB"])
    must("cuInit", cuda.cuInit(0))
    comms = (c.c_void_p * 2)()
    must("ncclCommInitAll", nccl.ncclCommInitAll(comms, 2, None))
    rows = []
    for device in range(2):
        context, stream, memory = c.c_void_p(), c.c_void_p(), c.c_uint64()
        must("context", cuda.cuDevicePrimaryCtxRetain(c.byref(context), device))
        must("context", cuda.cuCtxSetCurrent(context))
        must("stream", cuda.cuStreamCreate(c.byref(stream), 1))
        must("memory", cuda.cuMemAlloc_v2(c.byref(memory), c.c_size_t(4 * COUNT)))
        values = (c.c_float * COUNT)(*(float(i % 11 + device) for i in range(COUNT)))
        must("copy", cuda.cuMemcpyHtoDAsync_v2(memory, values, c.c_size_t(4 * COUNT), stream))
        must("wait", cuda.cuStreamSynchronize(stream))
        rows.append((context, stream, memory, values))
    must("ncclGroupStart", nccl.ncclGroupStart())
    for comm, (_, stream, memory, _) in zip(comms, rows, strict=True):
        here = c.c_void_p(memory.value)
        code = nccl.ncclAllReduce(here, here, c.c_size_t(COUNT), FLOAT32, SUM, c.c_void_p(comm), stream)
        must("ncclAllReduce", code)
    must("ncclGroupEnd", nccl.ncclGroupEnd())
    for context, stream, memory, values in rows:
        must("context", cuda.cuCtxSetCurrent(context))
        must("copy", cuda.cuMemcpyDtoHAsync_v2(values, memory, c.c_size_t(4 * COUNT), stream))
        must("wait", cuda.cuStreamSynchronize(stream))
        must("a wrong sum", int(list(values) != [float(2 * (i % 11) + 1) for i in range(COUNT)]))
    for comm in comms:
        must("ncclCommDestroy", nccl.ncclCommDestroy(c.c_void_p(comm)))
    print(json.dumps({"what": "done", "code": 0}))


if __name__ == "__main__":
    main(sys.argv[1])
