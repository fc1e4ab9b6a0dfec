// The clock that ranks of one host share.
#pragma once

#include <time.h>

#include <cstdint>

namespace blink {

inline std::int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}
inline std::int64_t now_us() { return now_ns() / 1000; }

}  // namespace blink
