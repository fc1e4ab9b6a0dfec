// The shared state of a communicator's ranks: one page of shared memory that all of them map. It holds a done mark of
// each rank, the abort word, the chunk size and program in force from a call on, and the rates that ranks measured. The
// memory for staging a plan's messages follows it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace blink::shim {

// The value that call number k uses (chunk_searches.h defines its meaning). All ranks use the same, without waiting for
// each other, though they make their calls at different times and rank 0 changes the value meanwhile.
//
// Shared memory holds a sequence of decisions, each a word and a value. A word is *open* and holds the number of calls
// that have passed it, or *sealed* and holds the call K from which its value applies. Both change by compare and swap.
//
// Rank 0 decides:  1. writes the value of the first open decision
//                  2. seals its word with the word's number of calls, but at least with the K before
// Rank r, call k:  1. walks the decisions that are sealed with a K ≤ k, and uses the last one's value
//                  2. at an open one raises the word to k + 1
//
// Claim: all ranks use the same value in call k. The swaps of a word are ordered, and the seal is the last. A rank
// whose call k reaches a word before its seal leaves at least k + 1 there, so K > k, and the value does not apply to
// call k. A rank that comes later reads K, and the value written before. So every rank uses the value exactly in the
// calls from K on that reach it. As K never decreases, a rank that stops at a sealed word with K > k misses nothing.
//
// No rank waits, so a dead rank 0 blocks no other.
class Agreement {
 public:
  struct Decision {
    std::atomic<std::uint64_t> word, value;
  };
  struct Reading {
    std::uint64_t value = 0, number = 0;  // number: of the decision, from 1 on; 0: the initial value
  };
  // More than MIAD ever needs: it doubles upwards and goes down by sixteenths.
  static constexpr std::uint64_t kDecisions = 64;
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share them");

  // kDecisions decisions, and a word for each rank; all zero at first.
  Agreement(Decision* decisions, std::atomic<std::uint64_t>* measured, int nranks)
      : decisions_(decisions), measured_(measured), nranks_(nranks) {}

  // The value for a rank's call `call`; a rank's calls never decrease.
  Reading value_for(std::uint64_t call, std::uint64_t initial);
  // Rank 0 only: decides and returns the first call that uses the value; −1 after kDecisions decisions.
  std::int64_t decide(std::uint64_t value);

  // Stores rank `rank`'s measurement under decision `number`: positive, in any unit in which more is better.
  void say(int rank, std::uint64_t number, float measured);
  // The least measurement of the ranks under decision `number`; 0 until all have stored theirs.
  float least_said(std::uint64_t number) const;

 private:
  Decision* const decisions_;
  std::atomic<std::uint64_t>* const measured_;
  const int nranks_;
};

// Rows of a plan that are searched at the same time: for eight ranks every collective, root and size class.
constexpr int kSearches = 512;

class SharedPage {
 public:
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  // A new page as an anonymous memory file with `staging` more bytes; Bootstrap::all_gather passes on its descriptor.
  static int create(int nranks, std::uint64_t staging, std::string* why);
  // Maps the page and closes the descriptor.
  static std::unique_ptr<SharedPage> map(int descriptor, int nranks, int rank, std::string* why);

  // The abort word: any rank sets it, all see it. It can be registered with the GPU, whose kernels poll it.
  volatile std::uint32_t* abort_word();
  // The part with the abort word, for cuMemHostRegister: address and size in whole pages. The rest stays unregistered.
  void* memory() { return memory_; }
  std::size_t bytes() const;
  // The memory behind the page, also in whole pages; all zero at first.
  void* staging() const;
  std::size_t staging_bytes() const { return staging_bytes_; }

  // done(): this rank no longer writes into peers' memory. all_done(): no rank does, so memory may be reused.
  void done();
  bool all_done() const;

  // The search number `slot`, below kSearches, shared by all ranks.
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
