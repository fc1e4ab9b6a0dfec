// The parameters that a seed gives a run: frequency of thread switches, late threads, weakness of the memory.
#pragma once

#include "emulate/memory.h"
#include "emulate/random.h"

namespace blink {
namespace emulate {

// In 1/256.
struct Temper {
  uint32_t switches;   // at an access of memory
  uint32_t plain;      // at an access of the block's own state
  uint32_t impatient;  // a waiting thread polls again although others can continue;
  uint32_t starves;    // 0 none, 1 a thread, 2 a warp, 3 every other thread, 4 a block
  Weakness weakness;
};

inline Temper temper_of(Random& random) {
  constexpr uint32_t kSwitches[] = {2, 16, 64, 160, 256};
  constexpr uint32_t kHeld[] = {0, 64, 200, 256};
  constexpr uint32_t kLetGo[] = {1, 16, 128};
  constexpr uint32_t kPast[] = {0, 128, 256};
  Temper temper = {};
  temper.switches = kSwitches[random.below(5)];
  temper.plain = random.below(2) * temper.switches / 8;
  temper.impatient = 4u << random.below(5);
  temper.starves = random.below(2) * random.below(5);
  temper.weakness = {kHeld[random.below(4)], kLetGo[random.below(3)], kPast[random.below(3)]};
  return temper;
}

}  // namespace emulate
}  // namespace blink
