"""A rank of an NCCL program that sums the same numbers in buffers of several sizes and saves the results.

``python ordered_client.py LIBBLINK RANKS RANK ID DIRECTORY COUNT…``: the float32 of ``DIRECTORY/in.RANK`` are repeated
in each buffer, and the result of a call is ``DIRECTORY/NAME.COUNT.RANK``. A failed call is a line on stdout.
"""

import ctypes as c
import os
import sys
from pathlib import Path

import numpy as np
from opened_client import FLOAT32, SUM, identity_of, must


def main(library: str, ranks: int, rank: int, identity: Path, directory: Path, counts: list[int]) -> None:
    cuda, nccl = c.CDLL(os.environ["BLINK_CUDA_LIB"]), c.CDLL(library)
    context, stream, send, recv, comm = c.c_void_p(), c.c_void_p(), c.c_uint64(), c.c_uint64(), c.c_void_p()
    most = c.c_size_t(4 * ranks * max(counts))
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(c.byref(context), rank))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuStreamCreate(c.byref(stream), 1))
    must(cuda.cuMemAlloc_v2(c.byref(send), most))
    must(cuda.cuMemAlloc_v2(c.byref(recv), most))
    must(nccl.ncclCommInitRank(c.byref(comm), ranks, identity_of(nccl, rank, identity), rank))
    tile = np.fromfile(directory / f"in.{rank}", np.float32)

    def called(name: str, count: int, blocks: int, *root: int) -> None:
        values = np.resize(tile, blocks * count)
        must(cuda.cuMemcpyHtoDAsync_v2(send, c.c_void_p(values.ctypes.data), c.c_size_t(values.nbytes), stream))
        code = getattr(nccl, f"nccl{name}")(send, recv, c.c_size_t(count), FLOAT32, SUM, *root, comm, stream)
        if code:
            print(f"{name} {count} {code}")
            return
        result = np.zeros(count, np.float32)
        must(cuda.cuMemcpyDtoHAsync_v2(c.c_void_p(result.ctypes.data), recv, c.c_size_t(result.nbytes), stream))
        must(cuda.cuStreamSynchronize(stream))
        result.tofile(directory / f"{name}.{count}.{rank}")

    for count in counts:
        called("AllReduce", count, 1)
        called("Reduce", count, 1, count % ranks)
        called("ReduceScatter", count, ranks)
    must(nccl.ncclBroadcast(send, recv, c.c_size_t(1), FLOAT32, 0, comm, stream))
    must(cuda.cuStreamSynchronize(stream))
    must(nccl.ncclCommDestroy(comm))


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0], int(words[1]), int(words[2]), Path(words[3]), Path(words[4]), [int(word) for word in words[5:]])
