#include "births.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include "boundary.h"
#include "real_nccl.h"

namespace blink::shim {
namespace {

// Ranks of a child are told that it exists by NCCL, and not all at the same moment.
constexpr double kChildGraceS = 5;

// Those that do not block. Locked while they are begun: who sees one complete must find it in the table.
struct Awaited {
  std::mutex mutex;
  std::vector<Birth> births;
  std::atomic<bool> any{false};
};

Awaited& awaited() {
  static Awaited* const the = new Awaited;
  return *the;
}

// NCCL has freed this handle without our knowing and given it to another.
void drop_stale(std::shared_ptr<Member> member) {
  if (member == nullptr) return;
  member->ended = true;
  member->communicator->abort();
}

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclInternalError;
  const ncclResult_t result = real::ncclCommGetAsyncError(comm, &state);
  return result == ncclSuccess ? state : result;
}

// Who are we in the communicator that `birth.real` is? False for one rank alone, which has nobody to meet.
bool identify(Birth* birth) {
  if (birth->rank < 0 && (real::ncclCommCount(birth->real, &birth->nranks) != ncclSuccess ||
                          real::ncclCommUserRank(birth->real, &birth->rank) != ncclSuccess)) {
    return false;
  }
  return birth->nranks > 1;
}

// The real communicator is complete.
std::shared_ptr<Member> begin(Birth birth) {
  drop_stale(table().take(birth.real));
  int device = -1;
  if (!identify(&birth) || real::ncclCommCuDevice(birth.real, &device) != ncclSuccess) return nullptr;
  const bool child = birth.meeting == nullptr && birth.why_not.empty();
  if (child) birth.meeting = Meeting::announce(birth.key, birth.rank, &birth.why_not);
  auto member = std::make_shared<Member>();
  member->real = birth.real;
  member->nranks = birth.nranks;
  member->rank = birth.rank;
  member->blocking = birth.blocking;
  member->communicator = Communicator::make(birth.key, std::move(birth.meeting), birth.why_not);
  table().insert(member);
  member->communicator->begin(birth.real, birth.nranks, birth.rank, device, child ? kChildGraceS : 0);
  return member;
}

// begin(), and if that throws, nothing of it is left.
std::shared_ptr<Member> try_begin(Birth birth) {
  const ncclComm_t real = birth.real;
  std::shared_ptr<Member> member;
  const ncclResult_t result = guarded([&] {
    member = begin(std::move(birth));
    return ncclSuccess;
  });
  if (result != ncclSuccess) {
    table().take(real);
    warn("a communicator could not be made: NCCL runs everything of it");
  }
  return member;
}

void settle(const std::vector<std::shared_ptr<Member>>& members) {
  for (const auto& member : members) member->communicator->settle();
}

// What has become of a birth that is waited for.
enum class Stage { kWaits, kComplete, kGone };

// What NCCL has written there. A caller who has learnt the handle may have let go of the place since, so the kernel
// reads it, which says no where a load would end the process.
ncclComm_t handle_in(ncclComm_t* slot) {
  ncclComm_t handle = nullptr;
  const iovec here = {&handle, sizeof handle};
  const iovec there = {slot, sizeof handle};
  if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) == static_cast<ssize_t>(sizeof handle)) return handle;
  if (errno == EFAULT) return nullptr;
  return __atomic_load_n(slot, __ATOMIC_ACQUIRE);  // a sandbox without that call
}

// `comm` is in state `state`. A child's handle becomes known by its parent's state, or when somebody uses it.
Stage stage_of(Birth* birth, ncclComm_t comm, ncclResult_t state) {
  if (birth->real == nullptr) {
    const bool parent = birth->parent == comm;
    if (comm == nullptr || (parent && state == ncclInProgress)) return Stage::kWaits;
    if (parent && state != ncclSuccess) return Stage::kGone;
    const ncclComm_t handle = handle_in(birth->slot);
    if (!parent && handle != comm) return Stage::kWaits;
    if (handle == nullptr) return Stage::kGone;
    birth->real = handle;
  }
  const ncclResult_t now = birth->real == comm ? state : state_of(birth->real);
  if (now == ncclInProgress) return Stage::kWaits;
  return now == ncclSuccess ? Stage::kComplete : Stage::kGone;
}

void wait_for(Birth birth) {
  Awaited& all = awaited();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.births.push_back(std::move(birth));
  all.any = true;
}

}  // namespace

Birth announced(std::string key, int nranks, int rank) {
  Birth birth;
  birth.key = std::move(key);
  birth.nranks = nranks;
  birth.rank = rank;
  birth.meeting = Meeting::announce(birth.key, rank, &birth.why_not);
  if (birth.meeting == nullptr && birth.why_not.empty()) birth.why_not = "this rank cannot be announced";
  return birth;
}

Birth child_of(const Member& parent, const std::string& what, ncclComm_t* slot) {
  Birth birth;
  birth.key = derived_key(parent.communicator->key(), what);
  birth.slot = slot;
  birth.parent = parent.real;
  birth.blocking = parent.blocking;
  return birth;
}

void deliver(std::vector<Birth> births, ncclResult_t result) {
  if (failed(result)) return;
  const ncclResult_t ours = guarded([&] {
    std::vector<std::shared_ptr<Member>> begun;
    bool waiting = false;
    for (Birth& birth : births) {
      birth.blocking = birth.blocking && result == ncclSuccess;
      // A child that does not block is there when its parent's state says so, which may be now.
      const bool filled = result == ncclSuccess || birth.parent == nullptr;
      if (filled && birth.real == nullptr) birth.real = __atomic_load_n(birth.slot, __ATOMIC_ACQUIRE);
      if (filled && birth.real == nullptr) continue;  // not a part of the split
      if (!birth.blocking) {
        wait_for(std::move(birth));
        waiting = true;
      } else if (auto member = try_begin(std::move(birth))) {
        begun.push_back(std::move(member));
      }
    }
    settle(begun);
    if (waiting) advance(nullptr, ncclInProgress);
    return ncclSuccess;
  });
  if (ours != ncclSuccess) warn("communicators could not be made: NCCL runs everything of them");
}

void advance(ncclComm_t comm, ncclResult_t state) {
  Awaited& all = awaited();
  if (!all.any) return;
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<Birth> kept;
  kept.reserve(all.births.size());
  for (Birth& birth : all.births) {
    const Stage stage = stage_of(&birth, comm, state);
    if (stage == Stage::kWaits) kept.push_back(std::move(birth));
    if (stage == Stage::kComplete) try_begin(std::move(birth));
  }
  all.births.swap(kept);
  all.any = !all.births.empty();
}

std::shared_ptr<Member> find_member(ncclComm_t comm) {
  if (auto member = table().find(comm)) return member;
  if (comm == nullptr || !awaited().any) return nullptr;
  advance(comm, state_of(comm));
  return table().find(comm);
}

std::shared_ptr<Member> take_member(ncclComm_t comm) {
  Awaited& all = awaited();
  if (all.any) {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto ends = [comm](const Birth& birth) {
      return birth.real == comm || (birth.real == nullptr && birth.parent == comm);
    };
    all.births.erase(std::remove_if(all.births.begin(), all.births.end(), ends), all.births.end());
    all.any = !all.births.empty();
  }
  return table().take(comm);
}

}  // namespace blink::shim
