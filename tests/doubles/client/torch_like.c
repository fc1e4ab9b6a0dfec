// A library that needs libnccl.so.2, as torch's does: whoever opens it with RTLD_LOCAL has NCCL in a local scope.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "nccl_client/cuda_calls.h"

// One communicator of one rank, one AllReduce. 0: the sum is right.
__attribute__((visibility("default"))) int torch_like_run(int (*find)(const char* name, void** function));

struct Cuda cuda;

int torch_like_run(int (*find)(const char* name, void** function)) {
#define FIND(name, arguments) \
  if (find(#name, (void**)&cuda.name)) return 2;
  CUDA_CALLS(FIND)
#undef FIND
  ncclComm_t comm;
  ncclUniqueId id;
  CUcontext context;
  cudaStream_t stream;
  CUdeviceptr memory;
  int version, in[4] = {1, 2, 3, 4}, out[4];
  if (cuda.cuInit(0) || cuda.cuDevicePrimaryCtxRetain(&context, 0) || cuda.cuCtxSetCurrent(context)) return 3;
  if (cuda.cuStreamCreate(&stream, 1) || cuda.cuMemAlloc_v2(&memory, sizeof in)) return 3;
  if (ncclGetVersion(&version) || ncclGetUniqueId(&id) || ncclCommInitRank(&comm, 1, id, 0)) return 4;
  if (cuda.cuMemcpyHtoDAsync_v2(memory, in, sizeof in, stream)) return 5;
  if (ncclAllReduce((void*)memory, (void*)memory, 4, ncclInt32, ncclSum, comm, stream)) return 6;
  if (ncclBcast((void*)memory, 4, ncclInt32, 0, comm, stream)) return 6;
  if (cuda.cuMemcpyDtoHAsync_v2(out, memory, sizeof out, stream) || cuda.cuStreamSynchronize(stream)) return 7;
  if (ncclCommDestroy(comm) || cuda.cuMemFree_v2(memory)) return 8;
  Dl_info where;
  printf("{\"version\": %d, \"allreduce_in\": \"%s\"}\n", version,
         dladdr((void*)ncclAllReduce, &where) ? where.dli_fname : "?");
  return memcmp(in, out, sizeof in) ? 1 : 0;
}
