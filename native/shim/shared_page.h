// What the ranks of a communicator tell each other while it lives. One page of shared memory that all of them map: who is
// done with whose memory, whether somebody gave up, what is in force from which call on (a chunk size, and which of two
// programs), and what each rank measured under it. Behind it lies the memory in which a plan's messages are staged.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace blink::shim {

constexpr std::uint64_t kHistory = 64;
constexpr double kPatienceS = 1.0;

// Which value call number k uses (what it means is chunk_searches.h's matter): the same on every rank, though ranks make
// their calls at different times and rank 0 changes the value while they run; without waiting for each other.
//
// In shared memory lie, per search:
//   reached[r]   1 + the number of the call that rank r makes or has made last; only r writes it
//   measured[r]  what rank r found under one decision, and under which; only r writes it
//   proposed     0, or a call K from which on there may be another value; only rank 0 writes it, like the rest
//   decisions    pairs (K, value) in the order in which they were made, the last kHistory of them; and their number
//
// Rank 0 decides:  1. K := the largest reached + 2
//                  2. proposed := K
//                  3. reads all reached again; if one is above K (its call is K or later), proposed := 0: withdrawn
//                  4. else the pair is written, their number raised, then proposed := 0
// Rank r, call k:  1. reached[r] := k + 1
//                  2. reads proposed; while it is a K with 0 < K ≤ k, reads it again
//                  3. uses the last decision with K ≤ k; without one the value that all began with
//
// Why all ranks agree on call k. Of a decision with K > k nobody takes notice at call k, whether he sees it or not.
// Let K ≤ k, and take any rank's call k. All stores and loads of `reached` and `proposed` are sequentially consistent,
// so there is one order of them all. In it, either the rank's store of k + 1 comes before rank 0's second reading of
// its reached: then that reads k + 1 > K or more, and the decision is withdrawn, and nobody ever uses it. Or it comes
// after, and so after the store of K to proposed, and the rank's load of proposed gives K or something that was stored
// later. K makes it read again. What was stored later was stored with the verdict or after it, and who reads that sees
// the pair, if there is one. So a decision is either seen by every rank at every call k ≥ K, or made by nobody. Which
// of the decisions with K ≤ k is the last is the same for all, too: they are all seen, and lie in one order.
//
// K never falls from one decision to the next, since reached never falls.
//
// Decisions in the ring are overwritten only when nobody needs them: number i is needed at calls below the K of i + 1.
// Before rank 0 overwrites it, the smallest reached must be above that K, so that every rank is at, or past, a call
// for which i + 1 or a later one is used. A rank looks for its decision from the last to the first and stops there: it
// never comes to the one that is being overwritten.
//
// Rank 0 may die between steps 2 and 4. Then ranks wait in step 2, no longer than kPatienceS.
class Agreement {
 public:
  struct alignas(64) Line {
    std::atomic<std::uint64_t> value;
  };
  struct Decision {
    std::atomic<std::uint64_t> from, value;
  };
  struct Reading {
    std::uint64_t value = 0, number = 0;  // number: of the decision, from 1 on; 0: what all began with
  };
  struct alignas(64) Shared {
    Line proposed, decided;
    Decision decisions[kHistory];
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share them");

  // `shared`, and lines `reached` and behind them `measured`, `nranks` of each; all zero when fresh.
  Agreement(Shared* shared, Line* lines, int nranks)
      : shared_(*shared), reached_(lines), measured_(lines + nranks), nranks_(nranks) {}

  // Rank `rank` makes call `call`, which is no earlier than its last. False if rank 0 died over its proposal.
  bool value_for(int rank, std::uint64_t call, std::uint64_t initial, Reading* reading);

  // Rank 0 only: the call from which on the value counts, or 0: withdrawn, or a rank is too far behind. `pause` is
  // called between the steps; tests let time pass there.
  std::uint64_t decide(std::uint64_t value, void (*pause)() = nullptr);

  // What rank `rank` found under decision `number`: above 0, in any unit of which more is better.
  void say(int rank, std::uint64_t number, float measured);
  // The least of what the ranks found under decision `number`; 0 until all have said it.
  float least_said(std::uint64_t number) const;

  // The steps of decide(), for tests that leave one out.
  std::uint64_t pick() const;             // K; 0: a rank is too far behind
  void propose(std::uint64_t from) { shared_.proposed.value.store(from); }
  bool passed(std::uint64_t from) const;  // whether some rank has reached call K
  void commit(std::uint64_t from, std::uint64_t value);
  void withdraw() { shared_.proposed.value.store(0); }

 private:
  Shared& shared_;
  Line *reached_, *measured_;
  int nranks_;
};

// So many rows of a plan are searched for at once: for eight ranks that is every collective, root and size class.
constexpr int kSearches = 512;

class SharedPage {
 public:
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  // A new page as a memory file without a name, with `staging` bytes behind it; its descriptor is to be shared by
  // Bootstrap::share_descriptor.
  static int create(int nranks, std::uint64_t staging, std::string* why);
  // Maps it; takes the descriptor.
  static std::unique_ptr<SharedPage> map(int descriptor, int nranks, int rank, std::string* why);

  // Abort: anybody may raise it, everybody sees it. The word can be registered with the GPU, whose kernels poll it.
  volatile std::uint32_t* abort_word();
  // The part with the abort word as memory for cuMemHostRegister: address and size, whole pages. The rest is not shown.
  void* memory() { return memory_; }
  std::size_t bytes() const;
  // The memory behind it, likewise: all zero when fresh.
  void* staging() const;
  std::size_t staging_bytes() const { return staging_bytes_; }

  // This rank writes into nobody's memory any more / all ranks have said so: now memory may be used for something else.
  void done();
  bool all_done() const;

  // --- one value for all ranks ------------------------------------------------------------------------------------
  // Call number `call` (0, 1, 2, … the same on all ranks) of search `slot`: the value to use, `initial` until rank 0
  // has decided otherwise. The same answer on every rank for the same call, however far apart ranks make their calls;
  // a rank's own calls only go forward, one at a time. Never waits for another rank's call; at most for the few
  // instructions between a proposal of rank 0 and its verdict, and no longer than a second: then `initial` is never
  // used, false is returned and the caller must give up the communicator (rank 0 died there).
  bool value_for(int slot, std::uint64_t call, std::uint64_t initial, Agreement::Reading* reading);
  // Rank 0: from some call on that no rank has reached, use this. Returns that call; 0 if the proposal had to be
  // withdrawn because somebody was about to pass it, or if a rank is so far behind that it still needs the decision
  // before the last 63 (try again later). From one thread at a time. See Agreement.
  std::uint64_t decide(int slot, std::uint64_t value);
  // What this rank found under a decision; and the least that any of them did, 0 until all have said it.
  void say(int slot, std::uint64_t number, float measured);
  float least_said(int slot, std::uint64_t number) const;

 private:
  struct Flags;
  SharedPage(unsigned char* memory, int nranks, int rank, std::size_t staging_bytes)
      : memory_(memory), nranks_(nranks), rank_(rank), staging_bytes_(staging_bytes) {}
  Flags& flags(int rank) const;
  Agreement agreement(int slot) const;

  unsigned char* const memory_;
  const int nranks_, rank_;
  const std::size_t staging_bytes_;
};

}  // namespace blink::shim
