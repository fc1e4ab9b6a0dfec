// The next chunk size of the search across iterations, for the simulator and for libblink.so.
#include <algorithm>
#include <cstdint>

#include "blink/simulate.h"

extern "C" void blink_miad_observe(blink_miad* miad, double throughput_gb_per_s) {
  blink_miad& m = *miad;
  if (m.phase == BLINK_MIAD_STEADY) return;
  const double observed = throughput_gb_per_s > 0.0 ? throughput_gb_per_s : 0.0;  // NaN counts as no throughput
  const bool rises = m.last_gb_per_s < 0.0 || observed > m.last_gb_per_s * (1.0 + m.tolerance);
  m.last_gb_per_s = observed;
  if (observed > m.best_gb_per_s) {
    m.best_bytes = m.chunk_bytes;
    m.best_gb_per_s = observed;
  }
  if (m.phase == BLINK_MIAD_INCREASE && rises && m.chunk_bytes < m.most_bytes) {
    const auto multiplied = static_cast<std::uint64_t>(static_cast<double>(m.chunk_bytes) * m.factor);
    m.chunk_bytes = std::min(m.most_bytes, std::max(m.chunk_bytes + 1, multiplied));
  } else if ((m.phase == BLINK_MIAD_DECREASE) == rises && m.chunk_bytes > m.least_bytes) {
    m.phase = BLINK_MIAD_DECREASE;
    m.chunk_bytes = m.chunk_bytes - m.least_bytes > m.step_bytes ? m.chunk_bytes - m.step_bytes : m.least_bytes;
  } else {
    m.phase = BLINK_MIAD_STEADY;
    m.chunk_bytes = m.best_bytes;
  }
}
