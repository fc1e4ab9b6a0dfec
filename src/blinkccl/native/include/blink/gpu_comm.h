// libblink.so's plain C interface for callers without NCCL: communicators that run on trees or not at all. PyTorch's
// backend "cuda:blink" is one of them.
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
// `algorithm`: the name of one, or "" for the best at each size.
int blink_shim_comm_create(blink_shim_comm** comm, const char* key, int nranks, int rank, int device,
                           const char* algorithm, char* why, size_t why_bytes);
// A collective (enum blink_collective); `dtype` and `op` as in nccl.h, `root` -1 where it has none. `scale`: the element
// that premul_sum multiplies with, else not looked at. Enqueued on `stream`, returns at once. ncclInvalidUsage where no
// program serves the call.
int blink_shim_comm_run(blink_shim_comm* comm, int collective, const void* send, void* recv, size_t count, int dtype,
                        int op, const void* scale, int root, void* stream);
// One end of a message: `bytes` bytes at `at` go to rank `peer`, or come from it. It is enqueued on `stream` and waits for
// no other call of this communicator. All messages to one rank are on one stream, and all from one. ncclInvalidUsage where
// the plan has no path for it, or the stream is being captured.
int blink_shim_comm_message(blink_shim_comm* comm, int sends, void* at, size_t bytes, int peer, void* stream);
// What kernels have said since: ncclSuccess, or ncclRemoteError when one gave up waiting.
int blink_shim_comm_error(blink_shim_comm* comm);
// Kernels that wait give up, here and on all other ranks.
int blink_shim_comm_abort(blink_shim_comm* comm);
int blink_shim_comm_destroy(blink_shim_comm* comm);

#ifdef __cplusplus
}
#endif

#endif
