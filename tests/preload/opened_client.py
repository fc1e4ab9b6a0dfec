"""A rank that opens ``libblink.so`` by its path and calls NCCL's functions in it, as Python bindings of NCCL do.

``python opened_client.py LIBBLINK RANKS RANK ID CALLS [NCCL]``; NCCL, if given, is opened first, as torch does.
"""

import ctypes as c
import os
import sys
import time
from pathlib import Path

#: The functions that bindings look up in their NCCL library before the first call.
LOOKED_UP = (
    *("GetErrorString", "GetLastError", "GetVersion", "GetUniqueId", "CommInitRank", "CommInitRankConfig"),
    *("CommInitAll", "CommSplit", "CommFinalize", "CommDestroy", "CommAbort", "CommGetAsyncError", "CommCount"),
    *("CommCuDevice", "CommUserRank", "AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter"),
    *("Send", "Recv", "GroupStart", "GroupEnd", "MemAlloc", "MemFree", "CommRegister", "CommDeregister"),
    *("CommWindowRegister", "CommWindowDeregister", "RedOpCreatePreMulSum", "RedOpDestroy"),
)
FLOAT32, SUM, COUNT = 7, 0, 100_000
#: Seconds for rank 0 to write the id.
PATIENCE_S = 30.0


class UniqueId(c.Structure):
    _fields_ = (("internal", c.c_byte * 128),)


def must(result: int) -> None:
    if result != 0:
        sys.exit(f"a call returned {result}")


def identity_of(nccl: c.CDLL, rank: int, at: Path) -> UniqueId:
    """The unique id of rank 0, passed through a file."""
    identity = UniqueId()
    if rank == 0:
        must(nccl.ncclGetUniqueId(c.byref(identity)))
        part = at.with_suffix(".part")
        part.write_bytes(bytes(identity))
        part.rename(at)
        return identity
    deadline = time.monotonic() + PATIENCE_S
    while not at.exists():
        if time.monotonic() > deadline:
            sys.exit(f"no {at} after {PATIENCE_S} s")
        time.sleep(0.01)
    return UniqueId.from_buffer_copy(at.read_bytes())


def main(library: str, ranks: int, rank: int, identity: Path, calls: int, first: str = "") -> None:
    if first:
        c.CDLL(first, mode=c.RTLD_LOCAL)
    cuda, nccl = c.CDLL(os.environ["BLINK_CUDA_LIB"]), c.CDLL(library)
    missing = [name for name in LOOKED_UP if not hasattr(nccl, f"nccl{name}")]
    if missing:
        sys.exit(f"not there: {missing}")
    context, stream, buffer, comm = c.c_void_p(), c.c_void_p(), c.c_uint64(), c.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(c.byref(context), rank))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuStreamCreate(c.byref(stream), 1))
    must(cuda.cuMemAlloc_v2(c.byref(buffer), c.c_size_t(4 * COUNT)))
    must(nccl.ncclCommInitRank(c.byref(comm), ranks, identity_of(nccl, rank, identity), rank))
    for call in range(calls):
        values = (c.c_float * COUNT)(*[float(rank + call)] * COUNT)
        must(cuda.cuMemcpyHtoDAsync_v2(buffer, values, c.c_size_t(4 * COUNT), stream))
        must(nccl.ncclAllReduce(buffer, buffer, c.c_size_t(COUNT), FLOAT32, SUM, comm, stream))
        must(cuda.cuMemcpyDtoHAsync_v2(values, buffer, c.c_size_t(4 * COUNT), stream))
        must(cuda.cuStreamSynchronize(stream))
        expected = sum(float(other + call) for other in range(ranks))
        if set(values) != {expected}:
            sys.exit(f"call {call}: {set(values)}, expected {expected}")
    must(nccl.ncclCommDestroy(comm))


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0], int(words[1]), int(words[2]), Path(words[3]), int(words[4]), *words[5:])
