// Blocks with threads on this CPU (blink/platform.h defines the names; machine.h the machines).
#pragma once

#include "blink/host_floats.h"
#include "blink/platform.h"
#include "emulate/machine.h"

namespace blink {
namespace device {

BLINK_INLINE uint32_t thread_index() { return emulate::thread_index(); }
BLINK_INLINE uint32_t threads() { return emulate::threads(); }
BLINK_INLINE void meet_at(uint32_t barrier, uint32_t count) {
  emulate::meet_at(barrier, count, emulate::Meeting::kBarrier, false);
}
BLINK_INLINE void arrive_at(uint32_t barrier, uint32_t count) {
  emulate::meet_at(barrier, count, emulate::Meeting::kArrive, false);
}
BLINK_INLINE bool any_at(uint32_t barrier, uint32_t count, bool yes) {
  return emulate::meet_at(barrier, count, emulate::Meeting::kAnyOfBlock, yes);
}
BLINK_INLINE void barrier() { meet_at(0, threads()); }
BLINK_INLINE bool any_of_block(bool yes) { return any_at(0, threads(), yes); }
BLINK_INLINE bool all_of_warp(bool yes) { return emulate::meet(emulate::Meeting::kAllOfWarp, yes); }
BLINK_INLINE bool any_of_warp(bool yes) { return emulate::meet(emulate::Meeting::kAnyOfWarp, yes); }
BLINK_INLINE void converge() { emulate::meet(emulate::Meeting::kConverge, false); }
constexpr uint32_t kWarp = emulate::kWarp;

typedef Word __attribute__((may_alias)) AnyWord;
BLINK_INLINE Word load_acquire(const Word* at) { return emulate::load_acquire(at); }
BLINK_INLINE Word load_relaxed(const Word* at) { return emulate::load_relaxed(at); }
BLINK_INLINE uint32_t load_relaxed(const uint32_t* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
BLINK_INLINE void store_release(AnyWord* at, Word value) { emulate::store_release(at, value); }
BLINK_INLINE void store_relaxed(AnyWord* at, Word value) { emulate::store_relaxed(at, value); }
BLINK_INLINE bool claim(AnyWord* at, Word value) { return emulate::claim(at, value); }
BLINK_INLINE Pair load_halves(const char* at) {
  Word halves[2];
  emulate::load_halves(at, halves);
  return {halves[0], halves[1]};
}
BLINK_INLINE void store_halves(char* at, const Pair& pair) {
  const Word halves[2] = {pair.low, pair.high};
  emulate::store_halves(at, halves);
}

template <class T>
BLINK_INLINE T load(const char* at) {
  T value;
  emulate::load_plain(at, &value, sizeof value);
  return value;
}
template <class T>
BLINK_INLINE void store(char* at, T value) {
  emulate::store_plain(at, &value, sizeof value);
}
BLINK_INLINE Pair load_pair(const char* at) { return load<Pair>(at); }
BLINK_INLINE void store_pair(char* at, const Pair& pair) { store(at, pair); }
BLINK_INLINE uint32_t load_shared(const uint32_t& shared) { return emulate::load_shared(shared); }
BLINK_INLINE void store_shared(uint32_t& shared, uint32_t value) { emulate::store_shared(shared, value); }

BLINK_INLINE Word now_ns() { return emulate::now_ns(); }
BLINK_INLINE void pause(uint32_t) { emulate::pause(); }
constexpr uint32_t kSpinsPerLook = 4;

template <class State>
BLINK_INLINE State& block_state() {
  return *static_cast<State*>(emulate::shared_memory(sizeof(State)));
}

}  // namespace device
}  // namespace blink
