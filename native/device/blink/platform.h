// What the device layer needs from the machine under it: a block of threads, loads and stores that other ranks
// see in order, a clock. There are three: a GPU, by PTX; this CPU, where a block is one thread and the same is said with
// atomics; and this CPU with threads, schedules and memory emulated (tests/emulate/), which runs a GPU's code.
//
// Each defines
//
//   thread_index, threads, kWarp            a block: threads, in warps of kWarp
//   barrier, any_of_block                   of all its threads, which see afterwards what any of them did before
//   meet_at, any_at, arrive_at              the same of so many threads, whole warps, at a barrier of 1 to 15; arrive_at
//                                           lets those who wait there see, and does not wait
//   all_of_warp, any_of_warp, converge      of all threads of a warp; only after converge() do they see, too, and go on
//                                           side by side: the next accesses of the same line are one instruction
//   load_acquire, load_relaxed,             what other ranks write or read; halves: each of 8 bytes is whole, and where
//   store_release, store_relaxed,           warps have lanes, of 128 bytes that 8 of them write by one instruction the
//   load_halves, store_halves, claim        last 8 are not seen before the others
//   load_pair, store_pair, load, store      what only this block touches between two barriers; other ranks see it after
//                                           a release, and theirs is seen after an acquire
//   load_shared, store_shared               of the block's state, at any time
//   now_ns, pause, kSpinsPerLook            time
//   float_of, bits_of, add, multiply, …     floats, each operation rounded for itself
//
// Whatever is ordered is ordered by acquire and release at system scope, never by bare fences: compilers, the PTX
// memory model and the thread sanitizer all understand those.
#pragma once

#include "blink/call.h"
#include "blink/target.h"

namespace blink {
namespace device {

// 16 bytes, which is what one thread moves at a time.
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
