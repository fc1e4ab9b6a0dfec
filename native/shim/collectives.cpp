// The collectives: ours where the communicator takes them, else NCCL's. In a group ours wait for its end.

#include "arguments.h"
#include "pending_communicators.h"
#include "boundary.h"
#include "exports.h"
#include "groups.h"
#include "real_nccl.h"

namespace blink::shim {
namespace {

CUstream stream_of(cudaStream_t stream) { return reinterpret_cast<CUstream>(stream); }

// Nothing to move is NCCL's too: it checks the arguments and runs nothing.
template <class Forward>
ncclResult_t run(ncclComm_t comm, Operation operation, const ncclCollConfig_t* config, Forward forward) {
  if (operation.count == 0 || tuned(config)) return forward();
  const auto member = find_member(comm);
  if (member == nullptr || member->ended || !acceptable(*member, &operation)) return forward();
  if (!member->communicator->takes(operation)) return forward();
  if (Group* const group = Group::current()) {
    group->add(member, operation);
    return ncclSuccess;
  }
  return member->communicator->enqueue(operation);
}

}  // namespace
}  // namespace blink::shim

using namespace blink::shim;

#define BLINK_LIST(...) __VA_ARGS__

// The function and the one with a configuration: `parameters` and `arguments` in parentheses, then the Operation.
#define BLINK_COLLECTIVE(name, parameters, arguments, ...)                                              \
  ncclResult_t name parameters {                                                                        \
    const auto forward = [&] { return real::name arguments; };                                          \
    if (passes(BLINK_CALLER)) return forward();                                                         \
    return guarded([&] { return run(comm, __VA_ARGS__, nullptr, forward); });                           \
  }                                                                                                     \
  ncclResult_t name##Config(BLINK_LIST parameters, const ncclCollConfig_t* config) {                    \
    const auto forward = [&] { return real::name##Config(BLINK_LIST arguments, config); };              \
    if (passes(BLINK_CALLER)) return forward();                                                         \
    return guarded([&] { return run(comm, __VA_ARGS__, config, forward); });                            \
  }

#define BLINK_OPERATION(collective, send, recv, op, root) \
  Operation{Collective::collective, send, recv, count, datatype, op, root, stream_of(stream)}

BLINK_COLLECTIVE(ncclAllReduce,
                 (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                  ncclComm_t comm, cudaStream_t stream),
                 (sendbuff, recvbuff, count, datatype, op, comm, stream),
                 BLINK_OPERATION(kAllReduce, sendbuff, recvbuff, op, -1))

BLINK_COLLECTIVE(ncclBroadcast,
                 (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                  ncclComm_t comm, cudaStream_t stream),
                 (sendbuff, recvbuff, count, datatype, root, comm, stream),
                 BLINK_OPERATION(kBroadcast, sendbuff, recvbuff, kSum, root))

BLINK_COLLECTIVE(ncclReduce,
                 (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                  int root, ncclComm_t comm, cudaStream_t stream),
                 (sendbuff, recvbuff, count, datatype, op, root, comm, stream),
                 BLINK_OPERATION(kReduce, sendbuff, recvbuff, op, root))

BLINK_COLLECTIVE(ncclAllGather,
                 (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                  cudaStream_t stream),
                 (sendbuff, recvbuff, count, datatype, comm, stream),
                 BLINK_OPERATION(kAllGather, sendbuff, recvbuff, kSum, -1))

BLINK_COLLECTIVE(ncclReduceScatter,
                 (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                  ncclComm_t comm, cudaStream_t stream),
                 (sendbuff, recvbuff, count, datatype, op, comm, stream),
                 BLINK_OPERATION(kReduceScatter, sendbuff, recvbuff, op, -1))

BLINK_COLLECTIVE(ncclAlltoAll,
                 (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                  cudaStream_t stream),
                 (sendbuff, recvbuff, count, datatype, comm, stream),
                 BLINK_OPERATION(kAllToAll, sendbuff, recvbuff, kSum, -1))

BLINK_COLLECTIVE(ncclGather,
                 (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                  ncclComm_t comm, cudaStream_t stream),
                 (sendbuff, recvbuff, count, datatype, root, comm, stream),
                 BLINK_OPERATION(kGather, sendbuff, recvbuff, kSum, root))

BLINK_COLLECTIVE(ncclScatter,
                 (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                  ncclComm_t comm, cudaStream_t stream),
                 (sendbuff, recvbuff, count, datatype, root, comm, stream),
                 BLINK_OPERATION(kScatter, sendbuff, recvbuff, kSum, root))

// The old broadcast, always in place.
ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  const auto forward = [&] { return real::ncclBcast(buff, count, datatype, root, comm, stream); };
  if (passes(BLINK_CALLER)) return forward();
  return guarded([&] {
    return run(comm, BLINK_OPERATION(kBroadcast, buff, buff, kSum, root), nullptr, forward);
  });
}
