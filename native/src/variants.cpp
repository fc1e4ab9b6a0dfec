#include "variants.h"

#include <algorithm>

#include "clock.h"

namespace blink {
namespace {

constexpr int kUncounted = 1;  // calls of each variant in a trial that are not timed, because the memory is cold
constexpr std::size_t kObserved = 4;
// Calls between trials; fewer after the first trials, in which a program's memory was cold.
constexpr std::int64_t kSettledCalls = 512;
constexpr std::int64_t kSettledAtFirst = 32;
constexpr double kHopeless = 1.5;    // variants that many times slower than the fastest join only every eighth trial
constexpr std::uint64_t kSeldom = 8;
constexpr std::uint64_t kEarly = 2;  // first trials with all variants, as the memory may have been cold in the first;
constexpr double kBetter = 0.97;     // the best variant changes only for one below this part of its time
constexpr std::int64_t kUnknown = INT64_MAX;

// A decision in one word, so that no rank reads half of one.
struct Decision {
  std::uint64_t from;  // the first call with variant `now`;
  bool timed;
  int now, before;     // the variant from that call on, and until then

  static Decision read(std::uint64_t word) {
    return {word >> 16, (word >> 8 & 1) != 0, static_cast<int>(word >> 4 & 15), static_cast<int>(word & 15)};
  }
  std::uint64_t word() const {
    return from << 16 | static_cast<std::uint64_t>(timed) << 8 | static_cast<std::uint64_t>(now) << 4 |
           static_cast<std::uint64_t>(before);
  }
  int variant(std::uint64_t sequence) const { return sequence >= from ? now : before; }
};

}  // namespace

VariantTrials::VariantTrials(int variants) : median_ns_(static_cast<std::size_t>(variants), kUnknown) { begin_trial(); }

void VariantTrials::begin_trial() {
  tried_ = 0;
  observed_.clear();
  uncounted_ = 0;
  settled_calls_ = 0;
  if (!is_due(0)) next_variant();
}

bool VariantTrials::is_due(std::size_t variant) const {
  if (trials_ < kEarly || trials_ % kSeldom == 0 || median_ns_[variant] == kUnknown || variant == best_) return true;
  return static_cast<double>(median_ns_[variant]) < kHopeless * static_cast<double>(median_ns_[best_]);
}

void VariantTrials::next_variant() {
  observed_.clear();
  uncounted_ = 0;
  while (++tried_ < median_ns_.size() && !is_due(tried_)) {
  }
  if (tried_ < median_ns_.size()) return;
  const auto fastest = std::min_element(median_ns_.begin(), median_ns_.end());
  if (static_cast<double>(*fastest) < kBetter * static_cast<double>(median_ns_[best_])) {
    best_ = static_cast<std::size_t>(fastest - median_ns_.begin());
  }
  settled_calls_ = trials_ < 8 ? std::min(kSettledAtFirst << trials_, kSettledCalls) : kSettledCalls;
  ++trials_;
}

VariantTrials::Order VariantTrials::next() {
  if (tried_ == median_ns_.size() && settled_calls_-- == 0) begin_trial();
  const bool trial = tried_ < median_ns_.size();
  return {static_cast<int>(trial ? tried_ : best_), trial};
}

void VariantTrials::observe(int variant, std::int64_t ns) {
  if (tried_ >= median_ns_.size() || static_cast<std::size_t>(variant) != tried_) return;
  if (uncounted_++ < kUncounted) return;
  observed_.push_back(ns);
  const auto middle = observed_.begin() + static_cast<std::ptrdiff_t>(observed_.size() / 2);
  std::nth_element(observed_.begin(), middle, observed_.end());
  median_ns_[tried_] = *middle;
  if (observed_.size() == kObserved) next_variant();
}

VariantChoice::VariantChoice(blink_comm& comm, std::uint64_t key, int variants)
    : comm_(comm), key_(key == 0 ? 1 : key), trials_(4, VariantTrials(variants)) {}

// Returns the operation's line in shared memory. Rank 0 allocates one and never frees it, so that no rank sees another
// operation's decisions. Without a free line the first variant always runs.
VariantLine* VariantChoice::find() {
  for (std::size_t step = 0; step < kVariantLines; ++step) {
    const std::size_t number = (key_ + step) % kVariantLines;
    VariantLine& line = comm_.segment().variant(number);
    std::uint64_t key = line.key.load(std::memory_order_acquire);
    if (key == 0 && comm_.rank() == 0) line.key.store(key = key_, std::memory_order_release);
    if (key == key_) {
      number_ = number;
      return &line;
    }
    if (key == 0) break;
  }
  return nullptr;
}

// Collects the times of calls that all ranks have finished.
void VariantChoice::collect() {
  for (Pending& call : pending_) {
    if (call.sequence == 0) continue;
    std::int64_t began = 0, ended = 0;
    int known = 0;
    for (int rank = 0; rank < comm_.size(); ++rank) {
      for (const VariantTime& time : comm_.segment().variant_times(number_, rank).time) {
        if (time.sequence.load(std::memory_order_acquire) != call.sequence) continue;
        began = std::max(began, time.began_ns.load(std::memory_order_relaxed));
        ended = std::max(ended, time.ended_ns.load(std::memory_order_relaxed));
        ++known;
        break;
      }
    }
    if (known < comm_.size()) continue;
    trials_[call.placement.number()].observe(call.variant, std::max<std::int64_t>(1, ended - began));
    call.sequence = 0;
  }
}

void VariantChoice::decide(std::uint64_t sequence, Placement placement) {
  collect();
  const VariantTrials::Order wanted = trials_[placement.number()].next();
  const Decision last = Decision::read(line_->decision.load(std::memory_order_relaxed));
  // Another rank may still read the decision for the call before this one: the last decision must apply to that call.
  if (sequence <= last.from || (wanted.variant == last.now && wanted.timed == last.timed)) return;
  const Decision next{sequence + 2, wanted.timed, wanted.variant, last.now};
  line_->decision.store(next.word(), std::memory_order_release);
}

int VariantChoice::begin(Placement placement) {
  sequence_ = comm_.sequence() + 1;
  timed_ = false;
  if (line_ == nullptr) line_ = find();
  if (line_ == nullptr) return 0;
  if (comm_.rank() == 0) decide(sequence_, placement);
  const Decision decision = Decision::read(line_->decision.load(std::memory_order_acquire));
  const int variant = decision.variant(sequence_);
  timed_ = decision.timed && sequence_ >= decision.from;
  if (timed_) {
    ++calls_;
    if (comm_.rank() == 0) pending_[calls_ % kVariantTimes] = {sequence_, variant, placement};
    began_ns_ = now_ns();
  }
  return variant;
}

void VariantChoice::end() {
  if (!timed_) return;
  VariantTime& time = comm_.segment().variant_times(number_, comm_.rank()).time[calls_ % kVariantTimes];
  time.sequence.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  time.began_ns.store(began_ns_, std::memory_order_relaxed);
  time.ended_ns.store(now_ns(), std::memory_order_relaxed);
  time.sequence.store(sequence_, std::memory_order_release);
}

}  // namespace blink
