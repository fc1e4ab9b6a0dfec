#include "arguments.h"

namespace blink::shim {
namespace {

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

bool rooted(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

bool operation_known(Member& member, Operation* operation) {
  if (!reduces(operation->collective)) return true;
  if (operation->op < 0) return false;
  if (operation->op < kRedOps) return true;
  const std::lock_guard<std::mutex> lock(member.mutex);
  const auto scalar = member.scalars.find(operation->op);
  if (scalar == member.scalars.end() || scalar->second.dtype != operation->dtype) return false;
  operation->op = scalar->second.number;
  return true;
}

bool buffers_there(const Member& member, const Operation& operation) {
  const bool root = operation.root == member.rank;
  const bool sends = root || (operation.collective != Collective::kBroadcast &&
                              operation.collective != Collective::kScatter);
  const bool keeps = root || (operation.collective != Collective::kReduce &&
                              operation.collective != Collective::kGather);
  return (operation.send != nullptr || !sends) && (operation.recv != nullptr || !keeps);
}

}  // namespace

bool acceptable(Member& member, Operation* operation) {
  if (size_of(operation->dtype) == 0) return false;
  if (rooted(operation->collective) && (operation->root < 0 || operation->root >= member.nranks)) return false;
  return operation_known(member, operation) && buffers_there(member, *operation);
}

}  // namespace blink::shim
