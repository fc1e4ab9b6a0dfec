// This CPU, with blocks of one thread (platform.h defines the names).
#pragma once

#include <sched.h>
#include <time.h>

#include "blink/host_floats.h"
#include "blink/platform.h"

namespace blink {
namespace device {

BLINK_INLINE uint32_t thread_index() { return 0; }
BLINK_INLINE uint32_t threads() { return 1; }
BLINK_INLINE void barrier() {}
BLINK_INLINE bool any_of_block(bool yes) { return yes; }
BLINK_INLINE void meet_at(uint32_t, uint32_t) {}
BLINK_INLINE void arrive_at(uint32_t, uint32_t) {}
BLINK_INLINE bool any_at(uint32_t, uint32_t, bool yes) { return yes; }
BLINK_INLINE bool all_of_warp(bool yes) { return yes; }
BLINK_INLINE bool any_of_warp(bool yes) { return yes; }
BLINK_INLINE void converge() {}
constexpr uint32_t kWarp = 1;

BLINK_INLINE Word load_acquire(const Word* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
BLINK_INLINE Word load_relaxed(const Word* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
// A status begins with two words of 32 bits that are written as one word.
typedef Word __attribute__((may_alias)) AnyWord;
BLINK_INLINE void store_release(AnyWord* at, Word value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
BLINK_INLINE void store_relaxed(AnyWord* at, Word value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
BLINK_INLINE bool claim(AnyWord* at, Word value) {
  Word nothing = 0;
  return __atomic_compare_exchange_n(at, &nothing, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
BLINK_INLINE uint32_t load_relaxed(const uint32_t* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
BLINK_INLINE Pair load_halves(const char* at) {
  const auto* const words = reinterpret_cast<const AnyWord*>(at);
  return {__atomic_load_n(words, __ATOMIC_RELAXED), __atomic_load_n(words + 1, __ATOMIC_RELAXED)};
}
BLINK_INLINE void store_halves(char* at, const Pair& pair) {
  auto* const words = reinterpret_cast<AnyWord*>(at);
  __atomic_store_n(words, pair.low, __ATOMIC_RELAXED);
  __atomic_store_n(words + 1, pair.high, __ATOMIC_RELAXED);
}

template <class T>
BLINK_INLINE T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <class T>
BLINK_INLINE void store(char* at, T value) {
  std::memcpy(at, &value, sizeof value);
}
BLINK_INLINE Pair load_pair(const char* at) { return load<Pair>(at); }
BLINK_INLINE void store_pair(char* at, const Pair& pair) { store(at, pair); }
BLINK_INLINE uint32_t load_shared(const uint32_t& shared) { return shared; }
BLINK_INLINE void store_shared(uint32_t& shared, uint32_t value) { shared = value; }

BLINK_INLINE Word now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<Word>(now.tv_sec) * 1000000000u + static_cast<Word>(now.tv_nsec);
}
// There may be fewer cores than blocks, so a long wait yields.
BLINK_INLINE void pause(uint32_t spins) {
  if (spins >= 8) {
    sched_yield();
  } else {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}
constexpr uint32_t kSpinsPerLook = 16;

}  // namespace device
}  // namespace blink
