// libblink.so's plain C interface for callers without NCCL: communicators that run on trees or not at all. A GPU day
// (benchmarks/gpu_day.py) calls it, as NCCL before 2.30 refuses several ranks on one GPU.
//
// A communicator is used by one thread at a time. Functions return an ncclResult_t; the words for it, where there are
// any, are in `why`.
#ifndef BLINK_GPU_COMM_H
#define BLINK_GPU_COMM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct blink_shim_comm blink_shim_comm;

// All ranks call it with the same `key` (any text that no other communicator has); ends within the planning deadline.
// At each size the program that is predicted to be the fastest serves it.
int blink_shim_comm_create(blink_shim_comm** comm, const char* key, int nranks, int rank, int device, char* why,
                           size_t why_bytes);
// A collective (enum blink_collective); `dtype` and `op` (none that scales) as in nccl.h, `root` -1 where it has none.
// Enqueued on `stream`, returns at once. ncclInvalidUsage where no program serves the call.
int blink_shim_comm_run(blink_shim_comm* comm, int collective, const void* send, void* recv, size_t count, int dtype,
                        int op, int root, void* stream);
// What kernels have said since: ncclSuccess, or ncclRemoteError when one gave up waiting.
int blink_shim_comm_error(blink_shim_comm* comm);
int blink_shim_comm_destroy(blink_shim_comm* comm);

#ifdef __cplusplus
}
#endif

#endif
