#include "members.h"

#include <algorithm>
#include <unordered_map>

#include "real_nccl.h"

namespace blink::shim {
namespace {

// Never destroyed, since NCCL may be called while the process ends.
struct Table {
  std::mutex mutex;
  // By NCCL's handle, which NCCL reuses for the next communicator after freeing it.
  std::unordered_map<ncclComm_t, std::shared_ptr<Member>> members;

  // The non-blocking ones. Locked while they begin: a thread that sees one complete must find it among the members.
  std::mutex awaiting;
  std::vector<Pending> awaited;
  std::atomic<bool> awaits{false};
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

// NCCL tells the ranks of a child that it exists, at different times.
constexpr double kChildGraceS = 5;

// NCCL has freed this handle in a call that Blink did not see, and reused it.
void drop_stale(std::shared_ptr<Member> member) {
  if (member == nullptr) return;
  member->ended = true;
  member->abort();
}

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclInternalError;
  const ncclResult_t result = real::ncclCommGetAsyncError(comm, &state);
  return result == ncclSuccess ? state : result;
}

// Begins a member whose real communicator is complete. nullptr for a single rank, which has no peers.
std::shared_ptr<Member> begin(std::shared_ptr<Member> member) {
  drop_stale(take(member->real));
  Place& place = member->place;
  if (place.rank < 0 && (real::ncclCommCount(member->real, &place.nranks) != ncclSuccess ||
                         real::ncclCommUserRank(member->real, &place.rank) != ncclSuccess)) {
    return nullptr;
  }
  if (place.nranks < 2 || real::ncclCommCuDevice(member->real, &place.device) != ncclSuccess) return nullptr;
  {
    const std::lock_guard<std::mutex> lock(table().mutex);
    table().members[member->real] = member;
  }
  member->begin();
  return member;
}

// Calls begin(), and undoes it on an exception.
std::shared_ptr<Member> try_begin(const Pending& pending) {
  std::shared_ptr<Member> member;
  if (!beside([&] { member = begin(pending.member); })) take(pending.member->real);
  return member;
}

// The state of a communicator that NCCL is creating.
enum class Stage { kWaits, kComplete, kGone };

// `state` is that of `comm`. A child's handle is read once its parent's state allows it.
Stage stage_of(Pending* pending, ncclComm_t comm, ncclResult_t state) {
  const ncclComm_t& real = pending->member->real;
  if (real == nullptr) {
    if (comm == nullptr || pending->parent != comm || state == ncclInProgress) return Stage::kWaits;
    pending->deliver();
    if (state != ncclSuccess || real == nullptr) return Stage::kGone;
  }
  const ncclResult_t now = real == comm ? state : state_of(real);
  if (now == ncclInProgress) return Stage::kWaits;
  return now == ncclSuccess ? Stage::kComplete : Stage::kGone;
}

}  // namespace

Pending announced(const std::string& key, int nranks, int rank, ncclComm_t* slot, const ncclConfig_t* config) {
  Pending pending;
  pending.member = std::make_shared<Member>(key);
  pending.member->place.nranks = nranks;
  pending.member->place.rank = rank;
  pending.member->place.wishes = wishes_of(config, {});
  pending.slot = slot;
  if (nranks > 1) pending.member->announce();
  return pending;
}

void Pending::deliver() {
  if (member->real != nullptr) return;
  member->real = __atomic_load_n(written != nullptr ? written : slot, __ATOMIC_ACQUIRE);
  if (written == nullptr || member->real == nullptr) return;
  __atomic_store_n(slot, member->real, __ATOMIC_RELEASE);
  delete written;
  written = nullptr;
}

Pending child_of(const Member& parent, const std::string& what, ncclComm_t* slot, const ncclConfig_t* config) {
  Pending pending;
  pending.member = std::make_shared<Member>(derived_key(parent.key(), what));
  pending.member->place.wishes = wishes_of(config, parent.place.wishes);
  pending.member->place.grace_s = kChildGraceS;
  pending.slot = slot;
  pending.written = new ncclComm_t(nullptr);
  pending.parent = parent.real;
  return pending;
}

void begin_all(std::vector<Pending> all, ncclResult_t result) {
  for (Pending& pending : all) {
    if (pending.parent != nullptr || !failed(result)) pending.deliver();
  }
  if (failed(result)) return;
  beside([&] {
    std::vector<std::shared_ptr<Member>> begun;
    bool waiting = false;
    for (Pending& pending : all) {
      bool& blocking = pending.member->place.wishes.blocking;
      blocking = blocking && result == ncclSuccess;
      // A non-blocking child exists once its parent's state says it, possibly already.
      const bool filled = result == ncclSuccess || pending.parent == nullptr;
      if (filled && pending.member->real == nullptr) continue;  // this rank is not in the split
      if (!blocking) {
        const std::lock_guard<std::mutex> lock(table().awaiting);
        table().awaited.push_back(std::move(pending));
        table().awaits = waiting = true;
      } else if (auto member = try_begin(pending)) {
        begun.push_back(std::move(member));
      }
    }
    for (const auto& member : begun) member->settle();
    if (waiting) begin_completed(nullptr, ncclInProgress);
  });
}

void begin_completed(ncclComm_t comm, ncclResult_t state) {
  if (!table().awaits) return;
  const std::lock_guard<std::mutex> lock(table().awaiting);
  std::vector<Pending> kept;
  kept.reserve(table().awaited.size());
  for (Pending& pending : table().awaited) {
    const Stage stage = stage_of(&pending, comm, state);
    if (stage == Stage::kWaits) kept.push_back(std::move(pending));
    if (stage == Stage::kComplete) try_begin(pending);
  }
  table().awaited.swap(kept);
  table().awaits = !table().awaited.empty();
}

std::shared_ptr<Member> find_member(ncclComm_t comm) {
  if (auto member = find(comm)) return member;
  if (comm == nullptr || !table().awaits) return nullptr;
  begin_completed(comm, state_of(comm));
  return find(comm);
}

std::shared_ptr<Member> take_member(ncclComm_t comm) {
  if (table().awaits) {
    const std::lock_guard<std::mutex> lock(table().awaiting);
    std::vector<Pending>& all = table().awaited;
    const auto ends = [comm](const Pending& pending) {
      return pending.member->real == comm || (pending.member->real == nullptr && pending.parent == comm);
    };
    all.erase(std::remove_if(all.begin(), all.end(), ends), all.end());
    table().awaits = !all.empty();
  }
  return take(comm);
}

}  // namespace blink::shim
