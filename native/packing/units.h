// Units of capacity: 64-bit numbers if these can hold the sum of all, otherwise 128-bit. One template serves both.
#pragma once

#include <cstdint>
#include <new>
#include <vector>

#include "blink/packing.h"

namespace blink::packing {

using Narrow = std::int64_t;
using Wide = __int128;

// The capacity of an arc that is never full; all others together have less than half of it.
template <class Units>
constexpr Units infinite = static_cast<Units>(1) << (8 * sizeof(Units) - 4);

inline Wide wide(const blink_units& units) { return static_cast<Wide>(units.high) << 64 | units.low; }
inline blink_units written(Wide units) {
  return {static_cast<std::uint64_t>(units), static_cast<std::uint64_t>(units >> 64)};
}

  // Correct also during a flow: the residual of an infinite arc stays above half.
inline bool finite(const blink_units& units) { return wide(units) < infinite<Wide> / 2; }

template <class Units>
Units read(const blink_units& units) {
  return finite(units) ? static_cast<Units>(wide(units)) : infinite<Units>;
}
template <class Units>
std::vector<Units> read(const blink_units* units, std::int64_t count) {
  std::vector<Units> numbers(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) numbers[static_cast<std::size_t>(i)] = read<Units>(units[i]);
  return numbers;
}

// Checks whether 64-bit numbers can hold the sums of all finite values.
class Sums {
 public:
  Sums& add(const blink_units* units, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (finite(units[i])) sum_ += wide(units[i]);
    }
    return *this;
  }
  bool narrow() const { return sum_ < infinite<Narrow> / 2; }

 private:
  Wide sum_ = 0;
};

// Calls `work` with a number of the type that these sums need, and returns its result.
template <class Work>
int in_units(const Sums& sums, Work work) {
  try {
    return sums.narrow() ? work(Narrow{}) : work(Wide{});
  } catch (const std::bad_alloc&) {
    return BLINK_PACKING_NO_MEMORY;
  }
}

}  // namespace blink::packing
