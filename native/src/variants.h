// Selection of the variant of an operation that runs: the group measures all variants during its calls and uses the
// fastest.
//
// Variants are the same plan with other chunks, or with the system's copies between private buffers instead of rings.
// The results have the same bits. Which variant is faster depends on the machine, on the pages of the program's buffers
// (Linux copies huge ones three times as fast), and, on virtual machines, on the time. So no constant can select it.
//
// Rank 0 decides for all ranks. It stores a decision in shared memory with the number of the first call that it applies
// to, two calls ahead: a rank that begins call s has seen rank 0 begin call s − 1, and so sees all decisions stored
// before. Calls before a decision's first call ignore it. A time is that of the whole collective, from the last rank's
// begin to the last rank's end, on the clock that all processes of a host share.
#pragma once

#include <cstdint>
#include <vector>

#include "comm.h"

namespace blink {

// Rank 0's policy, without a clock or shared memory: it tries each variant for a few calls, uses the fastest for many
// calls, then tries again. A variant that was much slower is tried less often.
class VariantTrials {
 public:
  explicit VariantTrials(int variants);
  // The variant for the next call, and whether the ranks should time it.
  struct Order {
    int variant;
    bool timed;
  };
  // To be called once before every call.
  Order next();
  // Reports the time of a timed call that ran `variant`.
  void observe(int variant, std::int64_t ns);

 private:
  void begin_trial();
  bool is_due(std::size_t variant) const;
  void next_variant();

  std::vector<std::int64_t> median_ns_;  // of the last trial
  std::size_t best_ = 0, tried_ = 0;
  std::vector<std::int64_t> observed_;  // times of the current trial's variant
  int uncounted_ = 0;
  std::int64_t settled_calls_ = 0;  // calls left until the next trial
  std::uint64_t trials_ = 0;
};

// The selection for one operation on one rank.
class VariantChoice {
 public:
  // `key`: a number that is equal on all ranks for this operation, and differs from those of other operations.
  VariantChoice(blink_comm& comm, std::uint64_t key, int variants);
  // The placement of this rank's buffers, on which the fastest variant depends.
  struct Placement {
    bool in_place, shared;
    std::size_t number() const { return static_cast<std::size_t>(shared) * 2 + static_cast<std::size_t>(in_place); }
  };
  // Returns the variant for the call that begins now.
  int begin(Placement placement);
  // To be called after the call, unless it failed.
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
  // State of the current call.
  std::uint64_t sequence_ = 0;
  std::int64_t began_ns_ = 0;
  bool timed_ = false;
  std::uint64_t calls_ = 0;
  // Used by rank 0 only.
  std::vector<VariantTrials> trials_;  // by the number of a placement
  Pending pending_[kVariantTimes];
};

}  // namespace blink
