// blink/gpu_comm.h: communicators without NCCL, for the project's own runs on one GPU.

#include "blink/gpu_comm.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "communicator.h"
#include "exports.h"

using namespace blink::shim;

struct blink_shim_comm : Communicator {
  using Communicator::Communicator;
};

namespace {

// Seconds to wait for peers, since no NCCL has synchronised the ranks before.
constexpr double kGrace = 60;

}  // namespace

extern "C" {

int blink_shim_comm_create(blink_shim_comm** comm, const char* key, int nranks, int rank, int device, char* why,
                           std::size_t why_bytes) {
  return guarded([&]() -> int {
    if (comm == nullptr || key == nullptr || nranks < 2 || rank < 0 || rank >= nranks) {
      return ncclInvalidArgument;
    }
    auto created = std::make_unique<blink_shim_comm>(key_of(key, std::strlen(key)));
    created->place.nranks = nranks;
    created->place.rank = rank;
    created->place.device = device;
    created->place.grace_s = kGrace;
    created->place.without_nccl = true;
    created->begin();
    const std::string trouble = created->why_not();
    if (trouble.empty()) {
      *comm = created.release();
      return ncclSuccess;
    }
    if (why != nullptr && why_bytes > 0) std::snprintf(why, why_bytes, "%s", trouble.c_str());
    return ncclInvalidUsage;
  });
}

int blink_shim_comm_run(blink_shim_comm* comm, int collective, const void* send, void* recv, std::size_t count,
                        int dtype, int op, int root, void* stream) {
  return guarded([&]() -> int {
    if (comm == nullptr || collective < 0 || collective > static_cast<int>(Collective::kAllToAll) ||
        size_of(dtype) == 0 || op < 0 || op >= kPremulSum) {
      return ncclInvalidArgument;
    }
    if (count == 0) return ncclSuccess;
    const Operation operation{static_cast<Collective>(collective), send, recv, count, dtype, op, root,
                              static_cast<CUstream>(stream), {}};
    if (!comm->takes(operation)) return ncclInvalidUsage;
    return comm->enqueue(operation);
  });
}

int blink_shim_comm_error(blink_shim_comm* comm) {
  return guarded([&]() -> int {
    return comm == nullptr ? static_cast<int>(ncclInvalidArgument) : comm->async_error();
  });
}

int blink_shim_comm_destroy(blink_shim_comm* comm) {
  return guarded([&]() -> int {
    if (comm == nullptr) return ncclInvalidArgument;
    const std::unique_ptr<blink_shim_comm> owned(comm);
    owned->finalize();
    return ncclSuccess;
  });
}

}  // extern "C"
