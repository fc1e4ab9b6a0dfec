#include "standalone.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "communicator.h"

using blink::shim::Collective;
using blink::shim::Communicator;
using blink::shim::Bootstrap;
using blink::shim::Operation;
using blink::shim::PremulSum;

struct blink_shim_comm {
  std::shared_ptr<Communicator> communicator;
};

namespace {

// Ranks may come seconds apart: there is no NCCL that has gathered them before.
constexpr double kGrace = 60;

// C++ errors end here.
template <class Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const std::exception&) {
    return blink::shim::ncclSystemError;
  }
}

}  // namespace

extern "C" {

int blink_shim_comm_create(blink_shim_comm** comm, const char* key, int nranks, int rank, int device,
                           const char* algorithm, char* why, std::size_t why_bytes) {
  return guarded([&]() -> int {
    if (comm == nullptr || key == nullptr || nranks < 2 || rank < 0 || rank >= nranks) {
      return blink::shim::ncclInvalidArgument;
    }
    const std::string name = blink::shim::key_of(key, std::strlen(key));
    std::string trouble;
    auto made = std::make_unique<blink_shim_comm>();
    std::unique_ptr<Bootstrap> bootstrap = Bootstrap::announce(name, nranks, rank, &trouble);
    made->communicator = std::make_shared<Communicator>(name, std::move(bootstrap), trouble);
    made->communicator->rely(algorithm == nullptr ? "" : algorithm);
    made->communicator->begin(nranks, rank, device, kGrace);
    made->communicator->settle();
    trouble = made->communicator->why_not();
    if (trouble.empty()) {
      *comm = made.release();
      return blink::shim::ncclSuccess;
    }
    if (why != nullptr && why_bytes > 0) std::snprintf(why, why_bytes, "%s", trouble.c_str());
    return blink::shim::ncclInvalidUsage;
  });
}

int blink_shim_comm_run(blink_shim_comm* comm, int collective, const void* send, void* recv, std::size_t count,
                        int dtype, int op, int root, void* stream) {
  return guarded([&]() -> int {
    if (comm == nullptr || collective < 0 || collective > static_cast<int>(Collective::kAllToAll) || dtype < 0 ||
        dtype >= blink::shim::kDataTypes || op < 0) {
      return blink::shim::ncclInvalidArgument;
    }
    Operation operation;
    operation.collective = static_cast<Collective>(collective);
    operation.send = send;
    operation.recv = recv;
    operation.count = count;
    operation.dtype = dtype;
    operation.op = op;
    operation.root = root;
    operation.stream = static_cast<blink::shim::CUstream>(stream);
    if (count == 0) return blink::shim::ncclSuccess;
    if (!comm->communicator->takes(operation)) return blink::shim::ncclInvalidUsage;
    return comm->communicator->enqueue(operation);
  });
}

int blink_shim_comm_premul_sum(blink_shim_comm* comm, int op, int dtype, const void* scalar) {
  return guarded([&]() -> int {
    const std::size_t bytes = blink::shim::size_of(dtype);
    if (comm == nullptr || scalar == nullptr || op < blink::shim::kRedOps || bytes == 0) {
      return blink::shim::ncclInvalidArgument;
    }
    PremulSum row;
    row.dtype = dtype;
    std::memcpy(row.scalar, scalar, bytes);
    comm->communicator->know(op, row);
    return blink::shim::ncclSuccess;
  });
}

int blink_shim_comm_error(blink_shim_comm* comm) {
  return guarded([&]() -> int {
    return comm == nullptr ? static_cast<int>(blink::shim::ncclInvalidArgument) : comm->communicator->async_error();
  });
}

int blink_shim_comm_abort(blink_shim_comm* comm) {
  return guarded([&]() -> int {
    if (comm == nullptr) return blink::shim::ncclInvalidArgument;
    comm->communicator->abort();
    return blink::shim::ncclSuccess;
  });
}

int blink_shim_comm_destroy(blink_shim_comm* comm) {
  return guarded([&]() -> int {
    if (comm == nullptr) return blink::shim::ncclInvalidArgument;
    const std::unique_ptr<blink_shim_comm> owned(comm);
    owned->communicator->finalize();
    return blink::shim::ncclSuccess;
  });
}

}  // extern "C"
