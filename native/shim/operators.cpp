// Operations that callers make: the real NCCL numbers them, and we remember what they multiply with.

#include <cstring>

#include "pending_communicators.h"
#include "boundary.h"
#include "exports.h"
#include "groups.h"
#include "real_nccl.h"

namespace blink::shim {
namespace {

PremulSum scalar_of(const void* scalar, int dtype, int residence) {
  PremulSum premul;
  premul.dtype = dtype;
  premul.stored = residence == kScalarDevice;
  if (premul.stored) {
    premul.at = scalar;
  } else {
    std::memcpy(premul.scalar, scalar, size_of(dtype));
  }
  return premul;
}

// NCCL's number, or the next one that no call means any more.
int free_number(const Member& member, int op) {
  const auto taken = [&](int number) {
    if (member.lingering.count(number) != 0) return true;
    for (const auto& [real, scalar] : member.scalars) {
      if (real != op && scalar.number == number) return true;
    }
    return false;
  };
  int number = op;
  while (taken(number)) ++number;
  return number;
}

void remember(ncclComm_t comm, int op, const PremulSum& premul) {
  const auto member = find_member(comm);
  if (member == nullptr) return;
  int number = op;
  {
    const std::lock_guard<std::mutex> lock(member->mutex);
    number = free_number(*member, op);
    member->scalars[op] = {number, premul.dtype};
  }
  member->communicator->know(number, premul);
}

void forget(ncclComm_t comm, int op) {
  const auto member = find_member(comm);
  if (member == nullptr) return;
  Group* const group = Group::current();
  int number = op;
  {
    const std::lock_guard<std::mutex> lock(member->mutex);
    const auto at = member->scalars.find(op);
    if (at == member->scalars.end()) return;
    number = at->second.number;
    member->scalars.erase(at);
    if (group != nullptr && group->keeps(member, number)) {
      member->lingering.insert(number);
      return;
    }
  }
  member->communicator->forget(number);
}

}  // namespace
}  // namespace blink::shim

using namespace blink::shim;

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  const ncclResult_t result = real::ncclRedOpCreatePreMulSum(op, scalar, datatype, residence, comm);
  if (passes(BLINK_CALLER) || result != ncclSuccess) return result;
  return guarded([&] {
    remember(comm, *op, scalar_of(scalar, datatype, residence));
    return result;
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  const ncclResult_t result = real::ncclRedOpDestroy(op, comm);
  if (passes(BLINK_CALLER) || result != ncclSuccess) return result;
  return guarded([&] {
    forget(comm, op);
    return result;
  });
}
