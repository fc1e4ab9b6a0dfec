#include "chunk_searches.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <string>

#include "log.h"

namespace blink::shim {
namespace {

// A gain counts above the noise of a median of three.
constexpr double kNoise = 0.02;
constexpr std::uint64_t kLeastChunk = 16 << 10;

std::uint64_t whole_groups(std::uint64_t bytes) { return std::max<std::uint64_t>(bytes / 16 * 16, 16); }

void trace(int choice, const char* what, const Bundle::Way& way, std::uint64_t call) {
  if (log_level() < Level::kTrace) return;
  log(Level::kTrace, "row " + std::to_string(choice) + " of the plan " + what + " chunks of " +
                         std::to_string(way.chunk_bytes) + " B from call " + std::to_string(call) + " on, by program " +
                         std::to_string(way.program));
}

// An agreed value is a chunk size, a multiple of 16 bytes. Its lowest bits say whether the row's other program runs it
// and whether the value is final, so that ranks stop timing calls.
constexpr std::uint64_t kOther = 1, kSettled = 2, kFlags = 15;

Bundle::Way way_of(const Bundle::Choice& row, std::uint64_t agreed) {
  Bundle::Way way = (agreed & kOther) != 0 ? row.other_way() : row.own_way();
  way.chunk_bytes = agreed & ~kFlags;
  return way;
}

std::string rate_text(double gb_per_s) {
  std::ostringstream text;
  text << std::setprecision(3) << gb_per_s << " GB/s";
  return text.str();
}

}  // namespace

ChunkSearches::ChunkSearches(const Driver& driver, const Bundle& bundle, SharedPage* page, int rank)
    : driver_(driver), bundle_(bundle), page_(page), rank_(rank), searches_(bundle.choices.size()) {
  int slots = 0;
  for (std::size_t i = 0; i < searches_.size(); ++i) {
    const Bundle::Choice& row = bundle.choices[i];
    searches_[i].compares = row.compares();
    if ((row.search != 0 || searches_[i].compares) && slots < kSearches) searches_[i].slot = slots++;
    begin_miad(row.own_way(), &searches_[i].miad);
  }
}

ChunkSearches::~ChunkSearches() {
  for (Search& search : searches_) {
    if (search.timing.before != nullptr) driver_.event_destroy(search.timing.before);
    if (search.timing.after != nullptr) driver_.event_destroy(search.timing.after);
  }
}

void ChunkSearches::begin_miad(const Bundle::Way& way, blink_miad* miad) const {
  const std::uint64_t capacity = bundle_.capacity(way.protocol);
  *miad = {};
  miad->factor = 2;
  miad->best_gb_per_s = miad->last_gb_per_s = -1;
  miad->chunk_bytes = whole_groups(std::min(way.chunk_bytes, capacity));
  miad->most_bytes = std::max(miad->chunk_bytes, whole_groups(capacity));
  miad->least_bytes = std::min(miad->chunk_bytes, kLeastChunk);
  miad->step_bytes = whole_groups(miad->most_bytes / 16);
  miad->tolerance = kNoise;
}

ChunkSearches::Use ChunkSearches::next(int choice, bool captured) {
  const Bundle::Choice& row = bundle_.choices[static_cast<std::size_t>(choice)];
  Search& search = searches_[static_cast<std::size_t>(choice)];
  Use use;
  use.way = row.own_way();
  if (search.slot < 0) return use;
  const std::uint64_t call = search.calls++;
  if (!search.settled) {
    // During a capture the driver must not be asked about events; captured calls count all the same.
    if (!captured) measure(&search);
    if (!captured && rank_ == 0) decide(choice, &search);
    const Agreement::Reading agreed = page_->agreement(search.slot).value_for(call, row.chunk_bytes);
    const bool changed = call == 0 || agreed.number != search.agreed.number;
    if (changed) search.tries = 0;
    search.agreed = agreed;
    search.settled = (agreed.value & kSettled) != 0;
    if (changed) trace(choice, "uses", way_of(row, agreed.value), call);
  }
  use.way = way_of(row, search.agreed.value);
  Timing& timing = search.timing;
  if (captured || search.settled || search.tries == kTries || timing.pending) return use;
  const bool timed = (timing.before != nullptr || driver_.event_create(&timing.before, 0) == kCudaSuccess) &&
                    (timing.after != nullptr || driver_.event_create(&timing.after, 0) == kCudaSuccess);
  if (timed) {
    use.before = timing.before;
    use.after = timing.after;
  }
  return use;
}

void ChunkSearches::launched(int choice, const Use& use, std::uint64_t bytes) {
  if (use.after == nullptr) return;
  Search& search = searches_[static_cast<std::size_t>(choice)];
  search.timing.pending = true;
  search.timing.bytes = bytes;
  search.timing.number = search.agreed.number;
}

// Reads the timed call's rate if the call has ended; never waits for it.
void ChunkSearches::measure(Search* search) {
  Timing& timing = search->timing;
  if (!timing.pending || driver_.event_query(timing.after) == kCudaNotReady) return;
  timing.pending = false;
  float ms = 0;
  if (driver_.event_elapsed(&ms, timing.before, timing.after) != kCudaSuccess || !(ms > 0)) return;
  if (timing.number != search->agreed.number) return;  // it was measured under an earlier decision
  search->gb_per_s[static_cast<std::size_t>(search->tries++)] = static_cast<double>(timing.bytes) / (ms * 1e6);
  if (search->tries < kTries) return;
  std::sort(search->gb_per_s.begin(), search->gb_per_s.end());
  page_->agreement(search->slot).say(rank_, search->agreed.number, static_cast<float>(search->gb_per_s[kTries / 2]));
}

void ChunkSearches::decide(int choice, Search* search) {
  Agreement agreement = page_->agreement(search->slot);
  const float slowest = agreement.least_said(search->decisions);
  if (!(slowest > 0)) return;  // some ranks have not measured yet
  const std::uint64_t value = next_value(choice, search, static_cast<double>(slowest));
  const std::int64_t from = agreement.decide(value);
  search->decisions += 1;
  const Bundle::Choice& row = bundle_.choices[static_cast<std::size_t>(choice)];
  trace(choice, "will use", way_of(row, value), static_cast<std::uint64_t>(from));
}

std::uint64_t ChunkSearches::next_value(int choice, Search* search, double gb_per_s) const {
  const Bundle::Choice& row = bundle_.choices[static_cast<std::size_t>(choice)];
  if (search->compares && !search->other) {
    search->own_gb_per_s = gb_per_s;
    search->other = true;
    return row.other_chunk_bytes | kOther;
  }
  if (search->compares) {
    const double own = search->own_gb_per_s;
    search->compares = false;
    search->other = gb_per_s > own * (1 + kNoise);
    info("row " + std::to_string(choice) + " of the plan: program " + std::to_string(row.program) + " reached " +
         rate_text(own) + ", program " + std::to_string(row.other_program) + " " + rate_text(gb_per_s) +
         " in the first calls; program " + std::to_string(search->other ? row.other_program : row.program) +
         " is kept");
    if (!search->other) gb_per_s = own;
    begin_miad(search->other ? row.other_way() : row.own_way(), &search->miad);
  }
  const std::uint64_t other = search->other ? kOther : 0;
  if (row.search == 0) return search->miad.chunk_bytes | other | kSettled;
  blink_miad_observe(&search->miad, gb_per_s);
  search->miad.chunk_bytes = whole_groups(search->miad.chunk_bytes);
  return search->miad.chunk_bytes | other | (search->miad.phase == BLINK_MIAD_STEADY ? kSettled : 0);
}

}  // namespace blink::shim
