// The plain C interface for callers without NCCL: communicators that run on trees or not at all. PyTorch's backend
// "cuda:blink" is one of them.
//
// A communicator is used by one thread at a time. Functions return an ncclResult_t; the words for it, where there are
// any, are in `why`.
#pragma once

#include <cstddef>
#include <cstdint>

#define BLINK_SHIM_API __attribute__((visibility("default")))

extern "C" {

typedef struct blink_shim_comm blink_shim_comm;

// All ranks call it with the same `key` (any text that no other communicator has); ends within the planning deadline.
// `algorithm`: the name of one, or "" for the best at each size.
BLINK_SHIM_API int blink_shim_comm_create(blink_shim_comm** comm, const char* key, int nranks, int rank, int device,
                                          const char* algorithm, char* why, std::size_t why_bytes);
// A collective by its number in bundle.h; `dtype` and `op` as in nccl.h, `root` −1 where it has none. Enqueued on
// `stream`, returns at once. ncclInvalidUsage where no program serves the call.
BLINK_SHIM_API int blink_shim_comm_run(blink_shim_comm* comm, int collective, const void* send, void* recv,
                                       std::size_t count, int dtype, int op, int root, void* stream);
// Makes premul_sum with this scalar (an element of type `dtype`) number `op`, 5 or more, the same on all ranks.
BLINK_SHIM_API int blink_shim_comm_premul_sum(blink_shim_comm* comm, int op, int dtype, const void* scalar);
// What kernels have said since: ncclSuccess, or ncclRemoteError when one gave up waiting.
BLINK_SHIM_API int blink_shim_comm_error(blink_shim_comm* comm);
// Kernels that wait give up, here and on all other ranks.
BLINK_SHIM_API int blink_shim_comm_abort(blink_shim_comm* comm);
BLINK_SHIM_API int blink_shim_comm_destroy(blink_shim_comm* comm);

}  // extern "C"
