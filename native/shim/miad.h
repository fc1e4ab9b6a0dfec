// Which chunk to try in the next iteration? Multiplicative increase, additive decrease (Blink, MLSys 2020, §4.2.1): the
// state machine of blinkccl/simulate/miad.py, observation by observation; a test compares the two.
#pragma once

#include <cstdint>

namespace blink::shim {

struct Miad {
  enum class Phase { kIncrease, kDecrease, kSteady };

  std::uint64_t first_bytes = 1 << 20, step_bytes = 1 << 20, least_bytes = 64 << 10, most_bytes = 64 << 20;
  double factor = 2.0, tolerance = 0.0;
  Phase phase = Phase::kIncrease;
  std::uint64_t chunk_bytes = 0;  // to use in the next iteration; set by start()
  std::uint64_t best_bytes = 0;
  double best_gb_per_s = -1.0, last_gb_per_s = -1.0;

  void start() { chunk_bytes = first_bytes; }
  bool steady() const { return phase == Phase::kSteady; }
  // An iteration with chunk_bytes reached so much.
  void observe(double throughput_gb_per_s);
};

}  // namespace blink::shim
