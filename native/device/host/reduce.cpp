// The body behind fold_entry.h: a reduce kernel's block, of one thread.
#include "blink/reduce.h"

#include "blink/fold_entry.h"

extern "C" __attribute__((visibility("default"))) void blink_reduce(const blink::Reduction* reduction,
                                                                    uint32_t block) {
  blink::device::State state;
  blink::device::reduce(state, *reduction, block);
}
