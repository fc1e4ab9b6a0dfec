// Communicators as callers make, split and end them: the real NCCL creates them, and Blink keeps a member beside each.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "exports.h"
#include "groups.h"
#include "log.h"
#include "members.h"
#include "real_nccl.h"

namespace blink::shim {
namespace {

// Every rank passes its rank and the unique ids, from which the key is derived.
template <class Call>
ncclResult_t join(ncclComm_t* slot, int nranks, int rank, const void* ids, std::size_t bytes,
                  const ncclConfig_t* config, Call call) {
  std::vector<Pending> one;
  beside([&] {
    if (slot == nullptr || ids == nullptr || bytes == 0 || rank < 0 || rank >= nranks) return;
    one.push_back(announced(key_of(ids, bytes), nranks, rank, slot, config));
  });
  const ncclResult_t result = call();
  begin_or_defer(std::move(one), result);
  return result;
}

// Within one process the key is not exchanged, but it must be unique on this host.
std::string own_key() {
  static std::atomic<std::uint64_t> count{0};
  const std::string text = "init all " + std::to_string(getpid()) + " " + std::to_string(count++) + " " +
                           std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
  return key_of(text.data(), text.size());
}

// `call` creates a child and stores its handle at the given place. After a failed call the handle is null.
template <class Call>
ncclResult_t make_child(Pending pending, ncclComm_t* newcomm, Call call) {
  const ncclResult_t result = call(pending.written != nullptr ? pending.written : newcomm);
  if (pending.member == nullptr) return result;
  pending.deliver();
  if (failed(result) && pending.member->real == nullptr) *newcomm = nullptr;
  std::vector<Pending> one;
  one.push_back(std::move(pending));
  begin_or_defer(std::move(one), result);
  return result;
}

// Excluded ranks do not call, so a common counter would differ; each set of excluded ranks has its own counter.
std::string shrink_text(Member& parent, const int* excluded, int count) {
  std::vector<int> ranks(excluded, excluded + count);
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (const int rank : ranks) text += std::to_string(rank) + ",";
  const std::lock_guard<std::mutex> lock(parent.mutex);
  const int number = parent.shrinks[text]++;
  return "shrink:" + std::to_string(number) + ":" + text;
}

// NCCL's kernels load and store through a window, so from here on NCCL runs all calls. All ranks register it together,
// so they switch at the same call. Blink's calls under way end normally.
void leave_to_nccl(ncclComm_t comm) {
  beside([&] {
    const auto member = find_member(comm);
    if (member == nullptr || member->ended.exchange(true) || member->place.rank != 0) return;
    info("communicator " + member->key().substr(0, 8) + " has a registered window: NCCL runs all later calls");
  });
}

enum class End { kAbort, kFinalize };

// Ends Blink's part of a communicator, which NCCL keeps, or frees if `freed`.
ncclResult_t end_ours(ncclComm_t comm, End how, bool freed) {
  ncclResult_t result = ncclSuccess;
  beside([&] {
    const auto member = freed ? take_member(comm) : find_member(comm);
    if (member == nullptr) return;
    const bool ended = member->ended.exchange(true);
    if (how == End::kAbort && (freed || !ended)) member->abort();
    // A non-blocking communicator is waited for only when it is freed.
    if (how == End::kFinalize && !ended && (freed || member->place.wishes.blocking)) result = member->finalize();
  });
  return result;
}

}  // namespace

ncclResult_t ours::ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return join(comm, nranks, rank, &commId, sizeof commId, nullptr,
              [&] { return real::ncclCommInitRank(comm, nranks, commId, rank); });
}

ncclResult_t ours::ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                          ncclConfig_t* config) {
  return join(comm, nranks, rank, &commId, sizeof commId, config,
              [&] { return real::ncclCommInitRankConfig(comm, nranks, commId, rank, config); });
}

ncclResult_t ours::ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                                            ncclConfig_t* config) {
  const std::size_t ids = nId > 0 && nId <= nranks ? static_cast<std::size_t>(nId) : 0;
  return join(newcomm, nranks, myrank, commIds, ids * sizeof(ncclUniqueId), config,
              [&] { return real::ncclCommInitRankScalable(newcomm, nranks, myrank, nId, commIds, config); });
}

ncclResult_t ours::ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  std::vector<Pending> all;
  beside([&] {
    const std::string key = own_key();
    for (int rank = 0; comm != nullptr && rank < ndev; ++rank) {
      all.push_back(announced(key, ndev, rank, comm + rank, nullptr));
    }
  });
  const ncclResult_t result = real::ncclCommInitAll(comm, ndev, devlist);
  begin_or_defer(std::move(all), result);
  return result;
}

// All ranks of the parent draw a number for the child, also those that do not join it.
ncclResult_t ours::ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  Pending pending;
  beside([&] {
    const auto parent = find_member(comm);
    if (parent == nullptr) return;
    const std::string number = std::to_string(parent->next_child());
    if (color == kSplitNoColor || newcomm == nullptr) return;
    pending = child_of(*parent, "split:" + number + ":" + std::to_string(color), newcomm, config);
  });
  return make_child(std::move(pending), newcomm,
                    [&](ncclComm_t* made) { return real::ncclCommSplit(comm, color, key, made, config); });
}

ncclResult_t ours::ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                                  ncclConfig_t* config, int shrinkFlags) {
  Pending pending;
  beside([&] {
    const auto parent = find_member(comm);
    if (parent == nullptr) return;
    if ((shrinkFlags & kShrinkAbort) != 0) {
      parent->ended = true;
      parent->abort();
    }
    const bool some = excludeRanksList != nullptr && 0 < excludeRanksCount && excludeRanksCount < parent->place.nranks;
    if (newcomm == nullptr || !some) return;
    pending = child_of(*parent, shrink_text(*parent, excludeRanksList, excludeRanksCount), newcomm, config);
  });
  return make_child(std::move(pending), newcomm, [&](ncclComm_t* made) {
    return real::ncclCommShrink(comm, excludeRanksList, excludeRanksCount, made, config, shrinkFlags);
  });
}

// New ranks know the unique id and old ranks the parent, so no key is common to both. A grown communicator therefore
// belongs to NCCL, and so do its children.
ncclResult_t ours::ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                                ncclComm_t* newcomm, ncclConfig_t* config) {
  const ncclResult_t result = real::ncclCommGrow(comm, nRanks, uniqueId, rank, newcomm, config);
  if (!failed(result)) {
    info("a communicator was grown to " + std::to_string(nRanks) + " ranks: NCCL runs all of its calls");
  }
  return result;
}

// The last call that can report a failed call of another rank, as in NCCL: nobody reads the state afterwards.
ncclResult_t ours::ncclCommFinalize(ncclComm_t comm) {
  const ncclResult_t ours = end_ours(comm, End::kFinalize, false), result = real::ncclCommFinalize(comm);
  return failed(result) ? result : failed(ours) ? ours : result;
}

ncclResult_t ours::ncclCommDestroy(ncclComm_t comm) {
  end_ours(comm, End::kFinalize, true);
  return real::ncclCommDestroy(comm);
}

// Blink's part ends first: NCCL waits for streams on which Blink's kernels may wait for a rank that is gone.
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

// All ranks suspend together to free memory. Blink's part ends, and its memory is kept for later communicators. After
// ncclCommResume NCCL runs all calls.
ncclResult_t ours::ncclCommSuspend(ncclComm_t comm, int flags) {
  end_ours(comm, End::kFinalize, false);
  return real::ncclCommSuspend(comm, flags);
}

ncclResult_t ours::ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  const ncclResult_t result = real::ncclCommGetAsyncError(comm, asyncError);
  if (result != ncclSuccess || asyncError == nullptr) return result;
  begin_completed(comm, *asyncError);
  if (*asyncError != ncclSuccess) return result;
  if (const auto member = find_member(comm)) *asyncError = member->async_error();
  return result;
}

}  // namespace blink::shim
