// The interface to the machine: a block of threads, loads and stores that other ranks see in order, a clock. It has
// three implementations: a GPU, in PTX; this CPU with blocks of one thread, with atomics; and this CPU with emulated
// threads, schedules and memory (tests/emulate/), which runs the GPU's code.
//
// Each defines
//
//   thread_index, threads, kWarp            a block: threads, in warps of kWarp.
//   barrier, any_of_block                   of a block's threads. Each then sees the others' earlier writes.
//   meet_at, any_at, arrive_at              the same for a number of threads, in whole warps, at a barrier of 1 to 15;
//                                           arrive_at publishes writes to the threads that wait there, and returns.
//   all_of_warp, any_of_warp, converge      of a warp's threads; only converge() also publishes writes and joins the
//                                           threads again: their next accesses to a line are one instruction.
//   load_acquire, load_relaxed,             of data that other ranks write or read.
//   store_release, store_relaxed, claim
//   load_halves, store_halves               the same; each half of 8 bytes is whole. If 8 lanes of a warp write 128
//                                           bytes in one instruction, no reader sees the last 8 before the others.
//   load_pair, store_pair, load, store      of data that only this block accesses between two barriers; other ranks see
//                                           them after a release, and the block sees theirs after an acquire.
//   load_shared, store_shared               of the block's state, at any time.
//   now_ns, pause, kSpinsPerLook            time.
//   float_of, bits_of, add, multiply, …     floats, with each operation rounded.
//
// All ordering is by acquire and release at system scope, never by bare fences: compilers, the PTX memory model and the
// thread sanitizer all understand these.
#pragma once

#include "blink/call.h"
#include "blink/target.h"

namespace blink {
namespace device {

// 16 bytes, the amount that one thread moves at a time.
struct Pair {
  Word low, high;
};

}  // namespace device
}  // namespace blink

#if defined(BLINK_CUDA)
#include "blink/platform_cuda.h"
#elif defined(BLINK_EMULATED)
#include "emulate/platform_emulated.h"
#else
#include "blink/platform_host.h"
#endif
