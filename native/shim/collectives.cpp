// The collectives and messages: Blink runs those that the communicator takes, NCCL the rest. In a group Blink's wait
// for the group's end. Also the operations that callers create: NCCL numbers them, and Blink keeps their factors.

#include <unistd.h>

#include <cstring>
#include <functional>

#include "call_arguments.h"
#include "exports.h"
#include "groups.h"
#include "log.h"
#include "members.h"
#include "real_nccl.h"

namespace blink::shim {
namespace {

CUstream stream_of(cudaStream_t stream) { return reinterpret_cast<CUstream>(stream); }

bool operation_known(Member& member, Operation* operation) {
  if (!reduces(operation->collective)) return true;
  if (operation->op < 0) return false;
  if (operation->op < kPremulSum) return true;
  const std::lock_guard<std::mutex> lock(member.mutex);
  const auto scalar = member.scalars.find(operation->op);
  if (scalar == member.scalars.end() || scalar->second.dtype != operation->dtype) return false;
  operation->op = kPremulSum;
  operation->scalar = scalar->second;  // a copy, since the caller may destroy the operation before the group ends
  return true;
}

bool buffers_there(const Member& member, const Operation& operation) {
  const bool root = operation.root == member.place.rank;
  const bool sends = root || (operation.collective != Collective::kBroadcast &&
                              operation.collective != Collective::kScatter);
  const bool keeps = root || (operation.collective != Collective::kReduce &&
                              operation.collective != Collective::kGather);
  return (operation.send != nullptr || !sends) && (operation.recv != nullptr || !keeps);
}

// True if NCCL would accept this call: type, operation, root, and buffers where this rank needs them. Otherwise NCCL
// gets the call, so that the caller sees NCCL's own error. Stores the scalar of a premul_sum in `operation`.
bool acceptable(Member& member, Operation* operation) {
  if (size_of(operation->dtype) == 0) return false;
  if (has_root(operation->collective) && (operation->root < 0 || operation->root >= member.place.nranks)) return false;
  return operation_known(member, operation) && buffers_there(member, *operation);
}

// Runs the call in NCCL, ordered among Blink's calls of the communicator.
template <class Forward>
ncclResult_t leave(const std::shared_ptr<Member>& member, CUstream stream, Forward forward) {
  if (Group* const group = Group::current()) {
    group->leaves(member, stream);
    return forward();
  }
  const ncclResult_t before = member->before_nccl(stream);
  const ncclResult_t result = member->after_nccl(stream, forward());
  return failed(before) && !failed(result) ? before : result;
}

bool promises_order(Collective collective) {
  static const bool promised = order_promised();
  return promised && reduces(collective);
}

// An error if NCCL would sum in another order than the promised one; on all ranks, since all decide the same.
ncclResult_t refuse(const Member& member, const std::string& why) {
  if (member.place.rank == 0) {
    write_all(STDERR_FILENO, "blink: error: BLINK_DETERMINISTIC=order needs Blink for this call, as NCCL sums in "
                             "its own order: " + why + "; unset BLINK_DETERMINISTIC to let NCCL run the call\n");
  }
  return ncclInvalidUsage;
}

// Empty calls go to NCCL, too: it checks the arguments and launches nothing.
template <class Forward>
ncclResult_t run(ncclComm_t comm, Operation operation, const ncclCollConfig_t* config, Forward forward) {
  const auto member = operation.count == 0 ? nullptr : find_member(comm);
  if (member == nullptr) return forward();
  Group* const group = Group::current();
  if (group != nullptr) group->uses(member.get(), operation.stream);
  const bool sensible = acceptable(*member, &operation);
  const bool promised = sensible && promises_order(operation.collective);
  std::string why = member->ended ? "the communicator was finalized, revoked or suspended, or has a registered window"
                                  : "the call has a configuration of its own";
  const bool ours = sensible && !member->ended && !tuned(config) &&
                    member->takes(operation, promised ? &why : nullptr);
  if (!ours) return promised ? refuse(*member, why) : leave(member, operation.stream, forward);
  if (group == nullptr) return member->enqueue(operation);
  group->add(member, operation);
  return ncclSuccess;
}

// One end of a message. NCCL gets messages to the rank itself and messages that it must refuse.
ncclResult_t run_message(ncclComm_t comm, const Operation& message, const std::function<ncclResult_t()>& forward) {
  const bool sends = message.collective == Collective::kSend;
  const auto member = message.count == 0 ? nullptr : find_member(comm);
  if (member == nullptr) return forward();
  Group* const group = Group::current();
  if (group != nullptr) group->uses(member.get(), message.stream);
  const bool sensible = size_of(message.dtype) != 0 && (sends ? message.send : message.recv) != nullptr &&
                        0 <= message.root && message.root < member->place.nranks && message.root != member->place.rank;
  if (member->ended || !sensible || !member->takes(message)) return leave(member, message.stream, forward);
  if (group != nullptr) {
    group->add(member, message);
    return ncclSuccess;
  }
  member->fork(message.stream);
  return member->enqueue({message}, message.stream);
}

PremulSum scalar_of(const void* scalar, int dtype, int residence) {
  PremulSum premul{dtype, residence == kScalarDevice ? scalar : nullptr, 0};
  if (premul.at == nullptr) std::memcpy(&premul.bits, scalar, size_of(dtype));
  return premul;
}

}  // namespace

#define BLINK_OPERATION(collective, send, recv, op, root) \
  Operation{Collective::collective, send, recv, count, datatype, op, root, stream_of(stream), {}}
#define BLINK_LIST(...) __VA_ARGS__

// A collective and its variant with a configuration. `parameters` are NCCL's between the type and the communicator,
// each followed by a comma; `arguments` passes them on.
#define BLINK_COLLECTIVE(name, collective, op, root, parameters, arguments)                                          \
  ncclResult_t ours::name(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,               \
                          BLINK_LIST parameters ncclComm_t comm, cudaStream_t stream) {                              \
    return run(comm, BLINK_OPERATION(collective, sendbuff, recvbuff, op, root), nullptr, [&] {                       \
      return real::name(sendbuff, recvbuff, count, datatype, BLINK_LIST arguments comm, stream);                     \
    });                                                                                                              \
  }                                                                                                                  \
  ncclResult_t ours::name##Config(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,       \
                                  BLINK_LIST parameters ncclComm_t comm, cudaStream_t stream,                        \
                                  const ncclCollConfig_t* config) {                                                  \
    return run(comm, BLINK_OPERATION(collective, sendbuff, recvbuff, op, root), config, [&] {                        \
      return real::name##Config(sendbuff, recvbuff, count, datatype, BLINK_LIST arguments comm, stream, config);     \
    });                                                                                                              \
  }

BLINK_COLLECTIVE(ncclAllReduce, kAllReduce, op, -1, (ncclRedOp_t op, ), (op, ))
BLINK_COLLECTIVE(ncclBroadcast, kBroadcast, kSum, root, (int root, ), (root, ))
BLINK_COLLECTIVE(ncclReduce, kReduce, op, root, (ncclRedOp_t op, int root, ), (op, root, ))
BLINK_COLLECTIVE(ncclAllGather, kAllGather, kSum, -1, (), ())
BLINK_COLLECTIVE(ncclReduceScatter, kReduceScatter, op, -1, (ncclRedOp_t op, ), (op, ))
BLINK_COLLECTIVE(ncclAlltoAll, kAllToAll, kSum, -1, (), ())
BLINK_COLLECTIVE(ncclGather, kGather, kSum, root, (int root, ), (root, ))
BLINK_COLLECTIVE(ncclScatter, kScatter, kSum, root, (int root, ), (root, ))

ncclResult_t ours::ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                            cudaStream_t stream) {
  return run_message(comm, BLINK_OPERATION(kSend, sendbuff, nullptr, kSum, peer),
                     [&] { return real::ncclSend(sendbuff, count, datatype, peer, comm, stream); });
}

ncclResult_t ours::ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                            cudaStream_t stream) {
  return run_message(comm, BLINK_OPERATION(kRecv, nullptr, recvbuff, kSum, peer),
                     [&] { return real::ncclRecv(recvbuff, count, datatype, peer, comm, stream); });
}

// The old broadcast, always in place.
ncclResult_t ours::ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                             cudaStream_t stream) {
  return run(comm, BLINK_OPERATION(kBroadcast, buff, buff, kSum, root), nullptr,
             [&] { return real::ncclBcast(buff, count, datatype, root, comm, stream); });
}

ncclResult_t ours::ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                            ncclScalarResidence_t residence, ncclComm_t comm) {
  const ncclResult_t result = real::ncclRedOpCreatePreMulSum(op, scalar, datatype, residence, comm);
  const auto member = result == ncclSuccess ? find_member(comm) : nullptr;
  if (member == nullptr) return result;
  const std::lock_guard<std::mutex> lock(member->mutex);
  member->scalars[*op] = scalar_of(scalar, datatype, residence);
  return result;
}

ncclResult_t ours::ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  const ncclResult_t result = real::ncclRedOpDestroy(op, comm);
  const auto member = result == ncclSuccess ? find_member(comm) : nullptr;
  if (member == nullptr) return result;
  const std::lock_guard<std::mutex> lock(member->mutex);
  member->scalars.erase(op);
  return result;
}

}  // namespace blink::shim
