// How tests run blocks with threads on this CPU. Both machines have it (machine.h).
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
  // Where nobody gets anywhere any more: called once, and all go on; without it, that is a finding.
  std::function<void()> stuck = nullptr;
};

// Runs body(rank, block) in every thread. What went wrong as the emulation sees it, or nothing.
std::string run(const Grid& grid, const std::function<void(uint32_t, uint32_t)>& body, const Options& options);

}  // namespace emulate
}  // namespace blink

extern "C" {

// Runs a generated kernel; `entry` is what BLINK_ENTRY makes of it, and calls[r] is rank r's. 0; 1 if some call's status
// is not 0; 2 for a finding, which is written into `text` as far as there is `room`.
int blink_emulate(void (*entry)(const blink::Call*, uint32_t block), const blink::Call* calls, uint32_t ranks,
                  uint32_t blocks, uint32_t threads, uint64_t seed, char* text, uint32_t room);

}  // extern "C"
