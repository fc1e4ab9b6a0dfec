// Which variant of an operation runs: the group measures them while it works, and takes the fastest.
//
// Variants are the same plan in other chunks, or with the system's copies between private buffers instead of rings; the
// bits are the same. Which is faster depends on the machine, on the pages that the program's buffers have (Linux copies
// huge ones three times as fast), and on virtual machines on the moment. So there is no constant for it.
//
// Rank 0 decides for all. A decision lies in shared memory with the number of the first call that it is for. That is two
// calls ahead: a rank that begins call s knows what rank 0 stored before it began call s − 1, for it has seen that begin.
// Of a decision for later calls no call takes notice. Times are of the whole collective: from the last rank's begin to
// the last rank's end, on the clock that all processes of a host share.
#pragma once

#include <cstdint>
#include <vector>

#include "comm.h"

namespace blink {

// Rank 0's policy, which knows no clock and no memory: tries each variant for a few calls, then keeps to the fastest for
// many, then tries again. One that was far behind is tried less often.
class VariantTrials {
 public:
  explicit VariantTrials(int variants);
  // What the next call should run, and whether ranks should note when.
  struct Order {
    int variant;
    bool timed;
  };
  // Of every call, before it.
  Order next();
  // What a timed call took that ran `variant`.
  void observe(int variant, std::int64_t ns);

 private:
  void begin_trial();
  bool is_due(std::size_t variant) const;
  void next_variant();

  std::vector<std::int64_t> median_ns_;  // of the last trial
  std::size_t best_ = 0, tried_ = 0;
  std::vector<std::int64_t> observed_;  // of the variant that is tried
  int uncounted_ = 0;
  std::int64_t settled_calls_ = 0;  // left, until the next trial
  std::uint64_t trials_ = 0;
};

// One operation's end of it, on one rank.
class VariantChoice {
 public:
  // `key`: a number that all ranks have for this operation, and for no other.
  VariantChoice(blink_comm& comm, std::uint64_t key, int variants);
  // How this rank's buffers lie: what is fastest differs with that.
  struct Placement {
    bool in_place, shared;
    std::size_t number() const { return static_cast<std::size_t>(shared) * 2 + static_cast<std::size_t>(in_place); }
  };
  // The variant for the call that begins now.
  int begin(Placement placement);
  // After it, if it did not fail.
  void end();

 private:
  struct Pending {
    std::uint64_t sequence = 0;  // 0: none
    int variant = 0;
    Placement placement{};
  };

  VariantLine* find();
  void collect();
  void decide(std::uint64_t sequence, Placement placement);

  blink_comm& comm_;
  std::uint64_t key_;
  VariantLine* line_ = nullptr;
  std::size_t number_ = 0;  // of the line
  // Of the call that runs.
  std::uint64_t sequence_ = 0;
  std::int64_t began_ns_ = 0;
  bool timed_ = false;
  std::uint64_t calls_ = 0;
  // Rank 0's.
  std::vector<VariantTrials> trials_;  // by the number of a placement
  Pending pending_[kVariantTimes];
};

}  // namespace blink
