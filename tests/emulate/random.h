// Pseudo-random numbers, equal on every system: splitmix64.
#pragma once

#include <cstdint>

namespace blink {
namespace emulate {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // A number in 0 … end - 1.
  std::uint32_t below(std::size_t end) {
    return static_cast<std::uint32_t>(((next() >> 32) * static_cast<std::uint64_t>(end)) >> 32);
  }
  // True in `times` of 256 cases.
  bool chance(std::uint32_t times) { return (next() >> 56) < times; }

 private:
  std::uint64_t state_;
};

}  // namespace emulate
}  // namespace blink
