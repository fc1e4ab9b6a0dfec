// Communicators as callers make, split and end them: the real NCCL does it, and we keep ours beside.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "exports.h"
#include "groups.h"
#include "log.h"
#include "pending_communicators.h"
#include "real_nccl.h"

namespace blink::shim {
namespace {

// Our own steps beside a real one: what fails in them costs the trees, never NCCL's result.
template <class Body>
void beside(Body body) {
  const ncclResult_t result = guarded([&] {
    body();
    return ncclSuccess;
  });
  if (result != ncclSuccess) warn("a communicator could not be made: NCCL runs everything of it");
}

// Nobody to meet; but NCCL may give it the handle of one that it has freed without our knowing.
PendingCommunicator single_rank() {
  PendingCommunicator pending;
  pending.nranks = 1;
  pending.rank = 0;
  return pending;
}

// Every rank knows its rank and the unique ids, which make the key.
struct Newcomer {
  ncclComm_t* slot;
  int nranks, rank;
  const void* ids;
  std::size_t bytes;
  const ncclConfig_t* config;

  bool sensible() const { return slot != nullptr && ids != nullptr && bytes > 0 && 0 <= rank && rank < nranks; }
};

template <class Call>
ncclResult_t join(const Newcomer& newcomer, Call call) {
  PendingCommunicator pending;
  beside([&] {
    if (!newcomer.sensible()) return;
    const std::string key = key_of(newcomer.ids, newcomer.bytes);
    pending = newcomer.nranks > 1 ? announced(key, newcomer.nranks, newcomer.rank) : single_rank();
    pending.slot = newcomer.slot;
    pending.wishes = wishes_of(newcomer.config, {});
  });
  const ncclResult_t result = call();
  if (pending.slot != nullptr) begin_or_defer(std::move(pending), result);
  return result;
}

// One process, one thread: nobody else has to know the key, but no other communicator on this host may have it.
std::string own_key() {
  static std::atomic<std::uint64_t> count{0};
  const std::string text = "init all " + std::to_string(getpid()) + " " + std::to_string(count++) + " " +
                           std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
  return key_of(text.data(), text.size());
}

ncclResult_t init_all(ncclComm_t* comms, int ndev, const int* devlist) {
  std::vector<PendingCommunicator> all;
  beside([&] {
    if (comms == nullptr || ndev < 1) return;
    const std::string key = ndev > 1 ? own_key() : "";
    for (int rank = 0; rank < ndev; ++rank) {
      all.push_back(ndev > 1 ? announced(key, ndev, rank) : single_rank());
      all.back().slot = comms + rank;
      all.back().wishes = wishes_of(nullptr, {});
    }
  });
  const ncclResult_t result = real::ncclCommInitAll(comms, ndev, devlist);
  if (Group* const group = Group::current(); group == nullptr) {
    begin_all(std::move(all), result);
  } else if (!failed(result)) {
    beside([&] {
      for (PendingCommunicator& pending : all) group->add(std::move(pending));
    });
  }
  return result;
}

// `call` makes a child, whose handle goes where it is told. That of a call that fails is null.
template <class Call>
ncclResult_t child(PendingCommunicator pending, ncclComm_t* newcomm, Call call) {
  const ncclResult_t result = call(pending.written != nullptr ? pending.written : newcomm);
  if (pending.slot == nullptr) return result;
  pending.deliver();
  if (failed(result) && pending.real == nullptr) *newcomm = nullptr;
  begin_or_defer(std::move(pending), result);
  return result;
}

// The numbers of children are drawn on all ranks of the parent, whether or not they are in one.
ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  PendingCommunicator pending;
  beside([&] {
    const auto parent = find_member(comm);
    if (parent == nullptr) return;
    const std::string number = std::to_string(parent->communicator->next_child());
    if (color == kSplitNoColor || newcomm == nullptr) return;
    pending = child_of(*parent, "split:" + number + ":" + std::to_string(color), newcomm);
    pending.wishes = wishes_of(config, parent->wishes);
  });
  return child(std::move(pending), newcomm,
               [&](ncclComm_t* made) { return real::ncclCommSplit(comm, color, key, made, config); });
}

// The ranks that are left out do not call, so they cannot draw a number: the others count by who is left out.
std::string shrink_text(Member& parent, const int* excluded, int count) {
  std::vector<int> ranks(excluded, excluded + count);
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (const int rank : ranks) text += std::to_string(rank) + ",";
  const std::lock_guard<std::mutex> lock(parent.mutex);
  const int number = parent.shrinks[text]++;
  return "shrink:" + std::to_string(number) + ":" + text;
}

ncclResult_t shrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* newcomm, ncclConfig_t* config, int flags) {
  PendingCommunicator pending;
  beside([&] {
    const auto parent = find_member(comm);
    if (parent == nullptr) return;
    if ((flags & kShrinkAbort) != 0) {
      parent->ended = true;
      parent->communicator->abort();
    }
    if (newcomm == nullptr || excluded == nullptr || count < 1 || count >= parent->nranks) return;
    pending = child_of(*parent, shrink_text(*parent, excluded, count), newcomm);
    pending.wishes = wishes_of(config, parent->wishes);
  });
  return child(std::move(pending), newcomm,
               [&](ncclComm_t* made) { return real::ncclCommShrink(comm, excluded, count, made, config, flags); });
}

// A window is for kernels of NCCL's that load and store through it: from here on all calls are NCCL's. All ranks register
// it together, so they agree on the first call that is. What we run still ends as it would.
void leave_to_nccl(ncclComm_t comm) {
  beside([&] {
    const auto member = find_member(comm);
    if (member == nullptr || member->ended.exchange(true) || member->rank != 0) return;
    info("communicator " + member->communicator->key().substr(0, 8) + " has a registered window: NCCL runs what comes");
  });
}

enum class End { kAbort, kFinalize };

// Our part of a communicator that goes on existing without us, or that is freed now.
void end_ours(ncclComm_t comm, End how, bool freed) {
  beside([&] {
    const auto member = freed ? take_member(comm) : find_member(comm);
    if (member == nullptr) return;
    const bool ended = member->ended.exchange(true);
    if (how == End::kAbort && (freed || !ended)) member->communicator->abort();
    // What does not block is waited for when it is freed.
    if (how == End::kFinalize && !ended && (freed || member->wishes.blocking)) member->communicator->finalize();
  });
}

}  // namespace

ncclResult_t ours::ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return join({comm, nranks, rank, &commId, sizeof commId, nullptr},
              [&] { return real::ncclCommInitRank(comm, nranks, commId, rank); });
}

ncclResult_t ours::ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                          ncclConfig_t* config) {
  return join({comm, nranks, rank, &commId, sizeof commId, config},
              [&] { return real::ncclCommInitRankConfig(comm, nranks, commId, rank, config); });
}

ncclResult_t ours::ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                                            ncclConfig_t* config) {
  const std::size_t ids = nId > 0 && nId <= nranks ? static_cast<std::size_t>(nId) : 0;
  return join({newcomm, nranks, myrank, commIds, ids * sizeof(ncclUniqueId), config},
              [&] { return real::ncclCommInitRankScalable(newcomm, nranks, myrank, nId, commIds, config); });
}

ncclResult_t ours::ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  return init_all(comm, ndev, devlist);
}

ncclResult_t ours::ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  return split(comm, color, key, newcomm, config);
}

ncclResult_t ours::ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                                  ncclConfig_t* config, int shrinkFlags) {
  return shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags);
}

// New ranks know the unique id and old ones the parent; there is no key that both know. So a grown communicator is
// NCCL's, and so are its children.
ncclResult_t ours::ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                                ncclComm_t* newcomm, ncclConfig_t* config) {
  const ncclResult_t result = real::ncclCommGrow(comm, nRanks, uniqueId, rank, newcomm, config);
  if (!failed(result)) {
    info("a communicator was grown to " + std::to_string(nRanks) + " ranks: NCCL runs everything of it");
  }
  return result;
}

ncclResult_t ours::ncclCommFinalize(ncclComm_t comm) {
  end_ours(comm, End::kFinalize, false);
  return real::ncclCommFinalize(comm);
}

ncclResult_t ours::ncclCommDestroy(ncclComm_t comm) {
  end_ours(comm, End::kFinalize, true);
  return real::ncclCommDestroy(comm);
}

// First ours: the real one waits for streams on which our kernels may wait for a rank that is gone.
ncclResult_t ours::ncclCommAbort(ncclComm_t comm) {
  end_ours(comm, End::kAbort, true);
  return real::ncclCommAbort(comm);
}

ncclResult_t ours::ncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  end_ours(comm, End::kAbort, false);
  return real::ncclCommRevoke(comm, revokeFlags);
}

ncclResult_t ours::ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags) {
  leave_to_nccl(comm);
  return real::ncclCommWindowRegister(comm, buff, size, win, winFlags);
}

// All ranks suspend together, to have memory back. Ours is over, and kept for later communicators; after ncclCommResume NCCL runs
// everything.
ncclResult_t ours::ncclCommSuspend(ncclComm_t comm, int flags) {
  end_ours(comm, End::kFinalize, false);
  return real::ncclCommSuspend(comm, flags);
}

ncclResult_t ours::ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  const ncclResult_t result = real::ncclCommGetAsyncError(comm, asyncError);
  if (result != ncclSuccess || asyncError == nullptr) return result;
  begin_completed(comm, *asyncError);
  if (*asyncError != ncclSuccess) return result;
  if (const auto member = find_member(comm)) *asyncError = member->communicator->async_error();
  return result;
}

}  // namespace blink::shim
