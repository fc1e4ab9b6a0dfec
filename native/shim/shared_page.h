// What the ranks of a communicator tell each other while it lives. One page of shared memory that all of them map: who
// is done with whose memory, whether somebody gave up, what is in force from which call on (a chunk size, and which of
// two programs), and what each rank measured under it. Behind it lies the memory in which a plan's messages are staged.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace blink::shim {

// Which value call number k uses (what it means is chunk_searches.h's matter): the same on every rank, though ranks
// make their calls at different times and rank 0 changes the value while they run; without waiting for each other.
//
// In shared memory lie decisions, one behind the other, each a word and a value. A word is *open* and holds how many
// calls have come by, or *sealed* and holds the call K from which on its value counts. Both only by compare and swap.
//
// Rank 0 decides:  1. writes the value of the first open decision
//                  2. seals its word with what that holds, the calls that have come by, but at least the K before
// Rank r, call k:  1. goes through the decisions while they are sealed with a K ≤ k: the last one's value counts
//                  2. where it finds an open one, it raises that word to k + 1
//
// Why all ranks agree on call k. The swaps of a word have one order, and the seal is the last of them. A rank whose
// call k comes to a word before its seal leaves k + 1 there or finds more: so K > k, and the value is not for call k.
// One that comes after it reads K, and the value that was written before. So every rank uses the value at exactly the
// calls from K on that get so far; and as no K is below the one before, who stops at a sealed word with K > k misses
// nothing.
//
// Nobody waits, so nobody waits for a rank 0 that has died.
class Agreement {
 public:
  struct Decision {
    std::atomic<std::uint64_t> word, value;
  };
  struct Reading {
    std::uint64_t value = 0, number = 0;  // number: of the decision, from 1 on; 0: what all began with
  };
  // More than MIAD ever takes: up by doubling, and down by sixteenths.
  static constexpr std::uint64_t kDecisions = 64;
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share them");

  // kDecisions, and a word for each rank; all zero when fresh.
  Agreement(Decision* decisions, std::atomic<std::uint64_t>* measured, int nranks)
      : decisions_(decisions), measured_(measured), nranks_(nranks) {}

  // A rank makes call `call`, which is no earlier than its last.
  Reading value_for(std::uint64_t call, std::uint64_t initial);
  // Rank 0 only: the call from which on the value counts; −1: there have been kDecisions.
  std::int64_t decide(std::uint64_t value);

  // What rank `rank` found under decision `number`: above 0, in any unit of which more is better.
  void say(int rank, std::uint64_t number, float measured);
  // The least of what the ranks found under decision `number`; 0 until all have said it.
  float least_said(std::uint64_t number) const;

 private:
  Decision* const decisions_;
  std::atomic<std::uint64_t>* const measured_;
  const int nranks_;
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

  // The search `slot`, below kSearches, among all ranks.
  Agreement agreement(int slot) const;

 private:
  SharedPage(unsigned char* memory, int nranks, int rank, std::size_t staging_bytes)
      : memory_(memory), nranks_(nranks), rank_(rank), staging_bytes_(staging_bytes) {}
  std::atomic<std::uint32_t>& done_of(int rank) const;

  unsigned char* const memory_;
  const int nranks_, rank_;
  const std::size_t staging_bytes_;
};

}  // namespace blink::shim
