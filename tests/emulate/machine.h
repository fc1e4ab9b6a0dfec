// The interface between code for a block with threads and the emulated machine on this CPU. Two machines implement it,
// and a program is linked with one of them:
//
//   fibers.cpp    all threads of all blocks of all ranks in one thread of this CPU, under a random schedule, with a
//                 memory weaker than that of any known GPU: one seed, one run. It reports errors that fail on any GPU.
//   threads.cpp   a thread of this CPU for each, so that the thread sanitizer sees the order of accesses
#pragma once

#include <cstddef>
#include <cstdint>

#include "blink/call.h"

namespace blink {
namespace emulate {

constexpr uint32_t kWarp = 32;
// Threads that store one line of 128 bytes with one instruction, 16 bytes each.
constexpr uint32_t kOctet = 8;

uint32_t thread_index();
uint32_t threads();
// Memory of the block, with undefined initial content.
void* shared_memory(std::size_t bytes);

constexpr uint32_t kBarriers = 16;
enum class Meeting : uint32_t { kNone, kBarrier, kAnyOfBlock, kArrive, kAllOfWarp, kAnyOfWarp, kConverge };
// Waits for all threads of the warp; returns the result of a vote. A finding if some of them are at another place.
bool meet(Meeting meeting, bool yes);
// The same for `count` threads of the block, at its barrier number `barrier`. kArrive does not wait.
bool meet_at(uint32_t barrier, uint32_t count, Meeting meeting, bool yes);

// Loads data that other blocks may write. The address is a multiple of 8.
Word load_relaxed(const void* at);
Word load_acquire(const void* at);
void store_release(void* at, Word value);
void store_relaxed(void* at, Word value);
bool claim(void* at, Word value);
// Loads 16 bytes, of which each half is consistent by itself. After a converge() the threads of an octet store a line
// with one instruction: its halves become visible in any order, the last one last.
void load_halves(const char* at, Word (&to)[2]);
void store_halves(char* at, const Word (&from)[2]);

// Accesses that others see after a release. The address is a multiple of `bytes`, up to 16.
void load_plain(const char* at, void* to, uint32_t bytes);
void store_plain(char* at, const void* from, uint32_t bytes);

// Loads from the block's memory, allowed at any time.
uint32_t load_shared(const uint32_t& shared);
void store_shared(uint32_t& shared, uint32_t value);

Word now_ns();
void pause();

}  // namespace emulate
}  // namespace blink
