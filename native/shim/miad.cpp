#include "miad.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>

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

}  // namespace blink::shim

// For the test that compares this with miad.py: the state as plain memory, in the order of the header.
static_assert(std::is_standard_layout<blink::shim::Miad>::value && sizeof(blink::shim::Miad) == 88 &&
                  offsetof(blink::shim::Miad, phase) == 48 && offsetof(blink::shim::Miad, chunk_bytes) == 56,
              "the layout that the test declares");

extern "C" __attribute__((visibility("default"))) void blink_shim_miad_observe(blink::shim::Miad* miad,
                                                                               double throughput_gb_per_s) {
  miad->observe(throughput_gb_per_s);
}
