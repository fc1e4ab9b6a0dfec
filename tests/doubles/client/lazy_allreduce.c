// A library whose AllReduce does nothing. Preloaded, so that a test can see the client's errors.
#include "nccl_abi.h"

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  (void)send, (void)recv, (void)count, (void)type, (void)op, (void)comm, (void)stream;
  return ncclSuccess;
}
