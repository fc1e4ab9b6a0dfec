// Does the chunk search move as its rules say? Python's own is compared with it step by step in another test.
// Sanitizers: address.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "chunk_searches.h"

namespace {

using namespace blink_test;
using blink::shim::Miad;

constexpr std::uint64_t kMiB = 1 << 20;

// The chunks that are tried, in MiB.
std::vector<double> tried(const std::vector<double>& throughputs, Miad* miad) {
  std::vector<double> chunks;
  miad->start();
  for (const double gb_per_s : throughputs) {
    chunks.push_back(static_cast<double>(miad->chunk_bytes) / kMiB);
    miad->observe(gb_per_s);
  }
  return chunks;
}

void doubles_and_falls() {
  Miad miad;
  const auto chunks = tried({10, 20, 30, 25, 28, 31, 30}, &miad);
  expect(chunks == std::vector<double>({1, 2, 4, 8, 7, 6, 5}), "up by factors, down by steps");
  expect(miad.steady() && miad.chunk_bytes == 6 * kMiB && miad.best_gb_per_s == 31, "the best of all");
  miad.observe(1000);
  expect(miad.chunk_bytes == 6 * kMiB && miad.best_gb_per_s == 31, "steady is steady");
}

void stays_within_bounds() {
  Miad up;
  up.most_bytes = 5 * kMiB;
  expect(tried({1, 2, 3, 4, 5}, &up) == std::vector<double>({1, 2, 4, 5, 5}) && up.steady(), "the largest is taken");
  Miad down;
  down.least_bytes = kMiB / 2;
  expect(tried({1, 0.5, 0.4}, &down) == std::vector<double>({1, 2, 1}), "down again");
  expect(down.steady() && down.chunk_bytes == kMiB, "to what was best");
  Miad floor;
  floor.least_bytes = kMiB - 100;
  floor.step_bytes = 2 * kMiB;
  tried({5, 4, 6, 7}, &floor);
  expect(floor.steady() && floor.chunk_bytes == kMiB - 100, "not below the least: %lu",
         static_cast<unsigned long>(floor.chunk_bytes));
}

void odd_numbers() {
  Miad miad;
  tried({std::nan(""), -5.0, 0.0}, &miad);
  expect(miad.steady() && miad.chunk_bytes == kMiB && miad.best_gb_per_s == 0, "no throughput is none");
  Miad endless;
  const double inf = std::numeric_limits<double>::infinity();
  tried({1, inf, inf, inf}, &endless);
  expect(endless.steady() && endless.chunk_bytes == 2 * kMiB, "infinity is the best there is");
  Miad noisy;
  noisy.tolerance = 0.1;
  tried({10, 10.9, 9}, &noisy);
  expect(noisy.steady() && noisy.chunk_bytes == 2 * kMiB, "less than the tolerance is no rise");
}

void always_ends() {
  std::mt19937 random(11);
  for (int round = 0; round < 2000 * kEffort; ++round) {
    Miad miad;
    miad.least_bytes = 1 + random() % 1000;
    miad.first_bytes = miad.least_bytes + random() % 1000;
    miad.most_bytes = miad.first_bytes + random() % 100000;
    miad.step_bytes = 1 + random() % 5000;
    miad.factor = 1.1 + random() % 1000 / 100.0;
    miad.start();
    std::uint64_t observations = 0;
    const std::uint64_t most = 200 + (miad.most_bytes - miad.least_bytes) / miad.step_bytes + 2;
    while (!miad.steady() && observations <= most) {
      expect(miad.least_bytes <= miad.chunk_bytes && miad.chunk_bytes <= miad.most_bytes, "within bounds");
      miad.observe(static_cast<double>(random() % 100));
      ++observations;
    }
    expect(miad.steady(), "steady after %lu observations", static_cast<unsigned long>(observations));
  }
}

}  // namespace

int main() {
  doubles_and_falls();
  stays_within_bounds();
  odd_numbers();
  always_ends();
  return verdict();
}
