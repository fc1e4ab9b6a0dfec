// A stand-in for a library that needs libnccl.so.2 and is itself loaded at run time, where its symbols are nobody
// else's: as PyTorch's are.

#include "exports.h"

// Rank 0 of two makes a communicator and reduces `count` elements; returns the version of NCCL, or −1.
extern "C" int torch_like(size_t count) {
  ncclUniqueId id{};
  ncclComm_t comm = nullptr;
  int version = -1;
  float data = 0;
  if (ncclGetVersion(&version) != 0 || ncclCommInitRank(&comm, 2, id, 0) != 0) return -1;
  if (ncclAllReduce(&data, &data, count, 7, 0, comm, nullptr) != 0 || ncclCommDestroy(comm) != 0) return -1;
  return version;
}
