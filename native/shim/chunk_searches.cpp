#include "chunk_searches.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>

#include "log.h"

namespace blink::shim {
namespace {

std::uint64_t larger(const Miad& miad) {
  // As Python computes it: the product in double, cut down to a whole number.
  const auto multiplied = static_cast<std::uint64_t>(static_cast<double>(miad.chunk_bytes) * miad.factor);
  return std::min(miad.most_bytes, std::max(miad.chunk_bytes + 1, multiplied));
}

std::uint64_t smaller(const Miad& miad) {
  const bool fits = miad.chunk_bytes > miad.least_bytes && miad.chunk_bytes - miad.least_bytes > miad.step_bytes;
  return fits ? miad.chunk_bytes - miad.step_bytes : miad.least_bytes;
}

void settle(Miad* miad) {
  miad->phase = Miad::Phase::kSteady;
  miad->chunk_bytes = miad->best_bytes;
}

}  // namespace

void Miad::observe(double throughput_gb_per_s) {
  if (steady()) return;
  const double observed = throughput_gb_per_s > 0.0 ? throughput_gb_per_s : 0.0;  // no number is no throughput
  const bool rises = last_gb_per_s < 0.0 || observed > last_gb_per_s * (1.0 + tolerance);
  last_gb_per_s = observed;
  if (observed > best_gb_per_s) {
    best_bytes = chunk_bytes;
    best_gb_per_s = observed;
  }
  if (phase == Phase::kIncrease && rises) {
    if (chunk_bytes >= most_bytes) return settle(this);
    chunk_bytes = larger(*this);
  } else if (phase == Phase::kIncrease || rises) {
    if (chunk_bytes <= least_bytes) return settle(this);
    chunk_bytes = smaller(*this);
    phase = Phase::kDecrease;
  } else {
    settle(this);
  }
}

namespace {

// Throughput must rise by more than the noise of a median of three.
constexpr double kNoise = 0.02;
constexpr std::uint64_t kLeastChunk = 16 << 10;

std::uint64_t whole_groups(std::uint64_t bytes) { return std::max<std::uint64_t>(bytes / 16 * 16, 16); }

void trace(int choice, const char* what, std::uint64_t chunk_bytes, std::uint64_t call) {
  if (log_level() < Level::kTrace) return;
  log(Level::kTrace, "row " + std::to_string(choice) + " of the plan " + what + " " + std::to_string(chunk_bytes) +
                         " B from call " + std::to_string(call) + " on");
}

}  // namespace

ChunkSearches::ChunkSearches(const Driver& driver, const Bundle& bundle, SharedPage* page, bool decides)
    : driver_(driver), bundle_(bundle), page_(page), decides_(decides), searches_(bundle.choices.size()) {
  for (std::size_t i = 0; i < searches_.size(); ++i) {
    Miad& miad = searches_[i].miad;
    const std::uint64_t capacity = bundle.capacity(bundle.choices[i].protocol);
    miad.first_bytes = whole_groups(std::min(bundle.choices[i].chunk_bytes, capacity));
    miad.most_bytes = std::max(miad.first_bytes, whole_groups(capacity));
    miad.least_bytes = std::min(miad.first_bytes, kLeastChunk);
    miad.step_bytes = whole_groups(miad.most_bytes / 16);
    miad.tolerance = kNoise;
    miad.start();
  }
}

ChunkSearches::~ChunkSearches() {
  for (Search& search : searches_) {
    if (search.timing.before != nullptr) driver_.event_destroy(search.timing.before);
    if (search.timing.after != nullptr) driver_.event_destroy(search.timing.after);
  }
}

bool ChunkSearches::next(int choice, bool captured, Use* use) {
  const Bundle::Choice& row = bundle_.choices[static_cast<std::size_t>(choice)];
  Search& search = searches_[static_cast<std::size_t>(choice)];
  const std::uint64_t call = search.calls++;
  *use = Use{};
  use->chunk_bytes = row.chunk_bytes;
  if (!row.search || choice >= kSearches) return true;
  // A capture must not ask the driver about events; its calls count all the same.
  if (decides_ && !captured) {
    measure(choice, &search);
    decide(choice, &search);
  }
  if (!page_->chunk_for(choice, call, search.miad.first_bytes, &use->chunk_bytes)) return false;
  if (use->chunk_bytes != search.used) {
    search.used = use->chunk_bytes;
    trace(choice, "uses chunks of", search.used, call);
  }
  const bool timed = decides_ && !captured && !search.miad.steady() && search.decided && call >= search.in_force &&
                     !search.timing.pending;
  if (timed) {
    Timing& timing = search.timing;
    const bool made = (timing.before != nullptr || driver_.event_create(&timing.before, 0) == kCudaSuccess) &&
                      (timing.after != nullptr || driver_.event_create(&timing.after, 0) == kCudaSuccess);
    if (made) {
      use->before = timing.before;
      use->after = timing.after;
    }
  }
  return true;
}

void ChunkSearches::launched(int choice, const Use& use, std::uint64_t bytes) {
  if (use.after == nullptr) return;
  Timing& timing = searches_[static_cast<std::size_t>(choice)].timing;
  timing.pending = true;
  timing.bytes = bytes;
}

// Takes in the timed call if it has ended; never waits for it.
void ChunkSearches::measure(int, Search* search) {
  Timing& timing = search->timing;
  if (!timing.pending || driver_.event_query(timing.after) == kCudaNotReady) return;
  timing.pending = false;
  float ms = 0;
  if (driver_.event_elapsed(&ms, timing.before, timing.after) != kCudaSuccess || !(ms > 0)) return;
  search->gb_per_s[static_cast<std::size_t>(search->tries++)] = static_cast<double>(timing.bytes) / (ms * 1e6);
  if (search->tries < kTries) return;
  search->tries = 0;
  std::sort(search->gb_per_s.begin(), search->gb_per_s.end());
  const std::uint64_t tried = search->miad.chunk_bytes;
  search->miad.observe(search->gb_per_s[kTries / 2]);
  search->miad.chunk_bytes = whole_groups(search->miad.chunk_bytes);
  search->decided = search->miad.chunk_bytes == tried;
}

void ChunkSearches::decide(int choice, Search* search) {
  if (search->decided) return;
  const std::uint64_t from = page_->decide(choice, search->miad.chunk_bytes);
  if (from == 0) return;  // somebody was just passing; the next call tries again
  search->in_force = from;
  search->decided = true;
  trace(choice, "will use chunks of", search->miad.chunk_bytes, from);
}

}  // namespace blink::shim

// For the test that compares this with miad.py: the state as plain memory, in the order of the header.
static_assert(std::is_standard_layout<blink::shim::Miad>::value && sizeof(blink::shim::Miad) == 88 &&
                  offsetof(blink::shim::Miad, phase) == 48 && offsetof(blink::shim::Miad, chunk_bytes) == 56,
              "the layout that the test declares");

extern "C" __attribute__((visibility("default"))) void blink_shim_miad_observe(blink::shim::Miad* miad,
                                                                               double throughput_gb_per_s) {
  miad->observe(throughput_gb_per_s);
}
