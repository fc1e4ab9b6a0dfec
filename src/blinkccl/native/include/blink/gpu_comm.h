// Libblink.so's plain C interface for callers without NCCL. Its communicators run on trees only, without a fallback to
// NCCL. benchmarks/gpu_day.py uses it, because NCCL before 2.30 refuses several ranks on one GPU.
//
// A communicator is used by one thread at a time. Functions return an ncclResult_t and write the error text, if any, to
// `why`.
#ifndef BLINK_GPU_COMM_H
#define BLINK_GPU_COMM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct blink_shim_comm blink_shim_comm;

// All ranks call it with the same `key`, a text that no other communicator has. Returns within the planning timeout.
// Each size uses the program that is predicted to be the fastest.
int blink_shim_comm_create(blink_shim_comm** comm, const char* key, int nranks, int rank, int device, char* why,
                           size_t why_bytes);
// Enqueues a collective (enum blink_collective) on `stream` and returns at once. `dtype` and `op` are nccl.h's, without
// operations that scale; `root` is -1 without a root. ncclInvalidUsage if no program serves the call.
int blink_shim_comm_run(blink_shim_comm* comm, int collective, const void* send, void* recv, size_t count, int dtype,
                        int op, int root, void* stream);
// The kernels' state since creation: ncclSuccess, or ncclRemoteError if one gave up waiting.
int blink_shim_comm_error(blink_shim_comm* comm);
int blink_shim_comm_destroy(blink_shim_comm* comm);

#ifdef __cplusplus
}
#endif

#endif
