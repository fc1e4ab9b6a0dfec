// Units of capacity: numbers of 64 bits where these hold the sum of all, else of 128 bits. The code for both is one.
#pragma once

#include <cstdint>
#include <new>
#include <vector>

#include "blink/packing.h"

namespace blink::packing {

using Narrow = std::int64_t;
using Wide = __int128;

// What an arc that is never full has; all others together have less than half of it.
template <class Units>
constexpr Units infinite = static_cast<Units>(1) << (8 * sizeof(Units) - 4);

inline Wide wide(const blink_units& units) { return static_cast<Wide>(units.high) << 64 | units.low; }
inline blink_units written(Wide units) {
  return {static_cast<std::uint64_t>(units), static_cast<std::uint64_t>(units >> 64)};
}

// Also where some flows already, an infinite arc has more than half.
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

// Whether numbers of 64 bits hold the sums of all of these but the infinite ones.
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

// `work` with a number of the type that these sums need; how it ended.
template <class Work>
int in_units(const Sums& sums, Work work) {
  try {
    return sums.narrow() ? work(Narrow{}) : work(Wide{});
  } catch (const std::bad_alloc&) {
    return BLINK_PACKING_NO_MEMORY;
  }
}

}  // namespace blink::packing
