#include "pending_communicators.h"

#include <algorithm>
#include <unordered_map>

#include "exports.h"
#include "real_nccl.h"

namespace blink::shim {
namespace {

// By NCCL's handle, which it gives to the next communicator as soon as it has freed it. Never destroyed: NCCL may be
// called while the process ends.
struct Table {
  std::mutex mutex;
  std::unordered_map<ncclComm_t, std::shared_ptr<Member>> members;
};

Table& table() {
  static Table* const the = new Table;
  return *the;
}

std::shared_ptr<Member> find(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  const auto at = table().members.find(comm);
  return at == table().members.end() ? nullptr : at->second;
}

std::shared_ptr<Member> take(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  auto node = table().members.extract(comm);
  return node.empty() ? nullptr : std::move(node.mapped());
}

// Ranks of a child are told that it exists by NCCL, and not all at the same moment.
constexpr double kChildGraceS = 5;

// Those that do not block. Locked while they are begun: who sees one complete must find it in the table.
struct Awaited {
  std::mutex mutex;
  std::vector<PendingCommunicator> pending;
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

// Fills in this rank and the number of ranks. False for one rank alone, which has nobody to meet.
bool identify(PendingCommunicator* pending) {
  if (pending->rank < 0 && (real::ncclCommCount(pending->real, &pending->nranks) != ncclSuccess ||
                          real::ncclCommUserRank(pending->real, &pending->rank) != ncclSuccess)) {
    return false;
  }
  return pending->nranks > 1;
}

// The real communicator is complete.
std::shared_ptr<Member> begin(PendingCommunicator pending) {
  drop_stale(take(pending.real));
  int device = -1;
  if (!identify(&pending) || real::ncclCommCuDevice(pending.real, &device) != ncclSuccess) return nullptr;
  const bool child = pending.bootstrap == nullptr && pending.why_not.empty();
  if (child) pending.bootstrap = Bootstrap::announce(pending.key, pending.nranks, pending.rank, &pending.why_not);
  auto member = std::make_shared<Member>();
  member->real = pending.real;
  member->nranks = pending.nranks;
  member->rank = pending.rank;
  member->wishes = pending.wishes;
  member->communicator = std::make_shared<Communicator>(pending.key, std::move(pending.bootstrap), pending.why_not);
  {
    const std::lock_guard<std::mutex> lock(table().mutex);
    table().members[member->real] = member;
  }
  member->communicator->wish(member->wishes);
  member->communicator->begin(pending.nranks, pending.rank, device, child ? kChildGraceS : 0);
  return member;
}

// begin(), and if that throws, nothing of it is left.
std::shared_ptr<Member> try_begin(PendingCommunicator pending) {
  const ncclComm_t real = pending.real;
  std::shared_ptr<Member> member;
  const ncclResult_t result = guarded([&] {
    member = begin(std::move(pending));
    return ncclSuccess;
  });
  if (result != ncclSuccess) {
    take(real);
    warn("a communicator could not be made: NCCL runs everything of it");
  }
  return member;
}

void settle(const std::vector<std::shared_ptr<Member>>& members) {
  for (const auto& member : members) member->communicator->settle();
}

// What has become of a pending that is waited for.
enum class Stage { kWaits, kComplete, kGone };

// `comm` is in state `state`. A child's handle becomes known by its parent's state.
Stage stage_of(PendingCommunicator* pending, ncclComm_t comm, ncclResult_t state) {
  if (pending->real == nullptr) {
    if (comm == nullptr || pending->parent != comm || state == ncclInProgress) return Stage::kWaits;
    pending->deliver();
    if (state != ncclSuccess || pending->real == nullptr) return Stage::kGone;
  }
  const ncclResult_t now = pending->real == comm ? state : state_of(pending->real);
  if (now == ncclInProgress) return Stage::kWaits;
  return now == ncclSuccess ? Stage::kComplete : Stage::kGone;
}

void wait_for(PendingCommunicator pending) {
  Awaited& all = awaited();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.pending.push_back(std::move(pending));
  all.any = true;
}

}  // namespace

PendingCommunicator announced(std::string key, int nranks, int rank) {
  PendingCommunicator pending;
  pending.key = std::move(key);
  pending.nranks = nranks;
  pending.rank = rank;
  pending.bootstrap = Bootstrap::announce(pending.key, nranks, rank, &pending.why_not);
  if (pending.bootstrap == nullptr && pending.why_not.empty()) pending.why_not = "this rank cannot be announced";
  return pending;
}

void PendingCommunicator::deliver() {
  if (real != nullptr || slot == nullptr) return;
  real = __atomic_load_n(written != nullptr ? written : slot, __ATOMIC_ACQUIRE);
  if (written == nullptr || real == nullptr) return;
  __atomic_store_n(slot, real, __ATOMIC_RELEASE);
  delete written;
  written = nullptr;
}

PendingCommunicator child_of(const Member& parent, const std::string& what, ncclComm_t* slot) {
  PendingCommunicator pending;
  pending.key = derived_key(parent.communicator->key(), what);
  pending.slot = slot;
  pending.written = new ncclComm_t(nullptr);
  pending.parent = parent.real;
  pending.wishes = parent.wishes;
  return pending;
}

void begin_all(std::vector<PendingCommunicator> all, ncclResult_t result) {
  for (PendingCommunicator& pending : all) {
    if (pending.parent != nullptr || !failed(result)) pending.deliver();
  }
  if (failed(result)) return;
  const ncclResult_t ours = guarded([&] {
    std::vector<std::shared_ptr<Member>> begun;
    bool waiting = false;
    for (PendingCommunicator& pending : all) {
      pending.wishes.blocking = pending.wishes.blocking && result == ncclSuccess;
      // A child that does not block is there when its parent's state says so, which may be now.
      const bool filled = result == ncclSuccess || pending.parent == nullptr;
      if (filled && pending.real == nullptr) continue;  // not a part of the split
      if (!pending.wishes.blocking) {
        wait_for(std::move(pending));
        waiting = true;
      } else if (auto member = try_begin(std::move(pending))) {
        begun.push_back(std::move(member));
      }
    }
    settle(begun);
    if (waiting) begin_completed(nullptr, ncclInProgress);
    return ncclSuccess;
  });
  if (ours != ncclSuccess) warn("communicators could not be made: NCCL runs everything of them");
}

void begin_completed(ncclComm_t comm, ncclResult_t state) {
  Awaited& all = awaited();
  if (!all.any) return;
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<PendingCommunicator> kept;
  kept.reserve(all.pending.size());
  for (PendingCommunicator& pending : all.pending) {
    const Stage stage = stage_of(&pending, comm, state);
    if (stage == Stage::kWaits) kept.push_back(std::move(pending));
    if (stage == Stage::kComplete) try_begin(std::move(pending));
  }
  all.pending.swap(kept);
  all.any = !all.pending.empty();
}

std::shared_ptr<Member> find_member(ncclComm_t comm) {
  if (auto member = find(comm)) return member;
  if (comm == nullptr || !awaited().any) return nullptr;
  begin_completed(comm, state_of(comm));
  return find(comm);
}

std::shared_ptr<Member> take_member(ncclComm_t comm) {
  Awaited& all = awaited();
  if (all.any) {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto ends = [comm](const PendingCommunicator& pending) {
      return pending.real == comm || (pending.real == nullptr && pending.parent == comm);
    };
    all.pending.erase(std::remove_if(all.pending.begin(), all.pending.end(), ends), all.pending.end());
    all.any = !all.pending.empty();
  }
  return take(comm);
}

}  // namespace blink::shim
