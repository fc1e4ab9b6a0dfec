// A GPU, in PTX (platform.h defines the names).
#pragma once

#include "blink/platform.h"

namespace blink {
namespace device {

// ---- the block

BLINK_INLINE uint32_t thread_index() { return threadIdx.x; }
BLINK_INLINE uint32_t threads() { return blockDim.x; }
BLINK_INLINE void barrier() { __syncthreads(); }
// A barrier that tells all threads whether one of them passed true.
BLINK_INLINE bool any_of_block(bool yes) { return __syncthreads_or(yes) != 0; }
BLINK_INLINE void meet_at(uint32_t barrier, uint32_t count) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}
BLINK_INLINE void arrive_at(uint32_t barrier, uint32_t count) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}
BLINK_INLINE bool any_at(uint32_t barrier, uint32_t count, bool yes) {
  uint32_t any;
  asm volatile(
      "{ .reg .pred mine, all; setp.ne.u32 mine, %1, 0;"
      " barrier.red.or.pred all, %2, %3, mine; selp.u32 %0, 1, 0, all; }"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(yes)), "r"(barrier), "r"(count)
      : "memory");
  return any != 0;
}
BLINK_INLINE bool all_of_warp(bool yes) { return __all_sync(0xffffffffu, yes) != 0; }
BLINK_INLINE bool any_of_warp(bool yes) { return __any_sync(0xffffffffu, yes) != 0; }
BLINK_INLINE void converge() { __syncwarp(); }
constexpr uint32_t kWarp = 32;

// ---- data that other ranks write or read

BLINK_INLINE Word load_acquire(const Word* at) {
  Word value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(at)) : "memory");
  return value;
}
BLINK_INLINE Word load_relaxed(const Word* at) {
  Word value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(at)) : "memory");
  return value;
}
BLINK_INLINE void store_release(Word* at, Word value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "l"(value) : "memory");
}
BLINK_INLINE void store_relaxed(Word* at, Word value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "l"(value) : "memory");
}
BLINK_INLINE uint32_t load_relaxed(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(at)) : "memory");
  return value;
}
// Each half of 8 bytes is whole, since one store writes it.
BLINK_INLINE Pair load_halves(const char* at) {
  Pair pair;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(pair.low), "=l"(pair.high)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
  return pair;
}
BLINK_INLINE void store_halves(char* at, const Pair& pair) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(at)), "l"(pair.low),
               "l"(pair.high)
               : "memory");
}
// True if `at` was 0; stores `value` there.
BLINK_INLINE bool claim(Word* at, Word value) {
  Word old;
  asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], 0, %2;"
               : "=l"(old)
               : "l"(__cvta_generic_to_global(at)), "l"(value)
               : "memory");
  return old == 0;
}
typedef Word AnyWord;

// ---- data that only this block accesses between two barriers. Data read once need not evict the first-level cache.

BLINK_INLINE Pair load_pair(const char* at) {
  Pair pair;
  asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
               : "=l"(pair.low), "=l"(pair.high)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
  return pair;
}
BLINK_INLINE void store_pair(char* at, const Pair& pair) {
  asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(at)), "l"(pair.low), "l"(pair.high)
               : "memory");
}
template <class T>
BLINK_INLINE T load(const char* at) {
  return *reinterpret_cast<const T*>(at);
}
template <class T>
BLINK_INLINE void store(char* at, T value) {
  *reinterpret_cast<T*>(at) = value;
}
BLINK_INLINE uint32_t load_shared(const uint32_t& shared) { return *static_cast<const volatile uint32_t*>(&shared); }
BLINK_INLINE void store_shared(uint32_t& shared, uint32_t value) { *static_cast<volatile uint32_t*>(&shared) = value; }

// ---- time

BLINK_INLINE Word now_ns() {
  Word now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
BLINK_INLINE void pause(uint32_t) {}
constexpr uint32_t kSpinsPerLook = 2048;  // about a millisecond of polling local memory

// ---- bits

BLINK_INLINE float float_of(uint32_t bits) { return __uint_as_float(bits); }
BLINK_INLINE uint32_t bits_of(float value) { return __float_as_uint(value); }
BLINK_INLINE double double_of(Word bits) { return __longlong_as_double(static_cast<long long>(bits)); }
BLINK_INLINE Word bits_of(double value) { return static_cast<Word>(__double_as_longlong(value)); }
// These intrinsics are rounded one by one at any contraction setting of the compiler.
BLINK_INLINE float add(float a, float b) { return __fadd_rn(a, b); }
BLINK_INLINE float multiply(float a, float b) { return __fmul_rn(a, b); }
BLINK_INLINE float divide(float a, float b) { return __fdiv_rn(a, b); }
BLINK_INLINE double add(double a, double b) { return __dadd_rn(a, b); }
BLINK_INLINE double multiply(double a, double b) { return __dmul_rn(a, b); }
BLINK_INLINE double divide(double a, double b) { return __ddiv_rn(a, b); }

}  // namespace device
}  // namespace blink
