// Launches of blocks with threads on this CPU, for tests. Both machines implement them (machine.h).
#pragma once

#include <functional>
#include <string>

#include "blink/call.h"

namespace blink {
namespace emulate {

struct Grid {
  uint32_t ranks, blocks, threads;  // a multiple of 32
};

struct Options {
  Word seed = 0;
  // Called once when no thread makes progress; then all continue. Without it, that is a finding.
  std::function<void()> stuck = nullptr;
};

// Runs body(rank, block) in every thread. Returns the errors that the emulation detected, or an empty text.
std::string run(const Grid& grid, const std::function<void(uint32_t, uint32_t)>& body, const Options& options);

}  // namespace emulate
}  // namespace blink

extern "C" {

// Runs a generated kernel; `entry` comes from BLINK_ENTRY, and calls[r] is rank r's. Returns 0; 1 if some call's status
// is not 0; 2 for a finding, whose text is written to `text`, truncated to `room`.
int blink_emulate(void (*entry)(const blink::Call*, uint32_t block), const blink::Call* calls, uint32_t ranks,
                  uint32_t blocks, uint32_t threads, uint64_t seed, char* text, uint32_t room);

}  // extern "C"
