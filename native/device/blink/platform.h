// What the device layer needs from the machine under it: a block of threads, loads and stores that other ranks
// see in order, a clock. On the GPU by PTX; on this CPU a block is one thread, and the same is said with atomics.
//
// Whatever is ordered is ordered by acquire and release at system scope, never by bare fences: compilers, the PTX
// memory model and the thread sanitizer all understand those.
#pragma once

#include "blink/call.h"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define BLINK_CUDA 1
#define BLINK_INLINE __device__ __forceinline__
#define BLINK_OUTLINE __device__ __noinline__
#define BLINK_UNROLL _Pragma("unroll")
#define BLINK_NO_UNROLL _Pragma("unroll 1")
#else
#define BLINK_INLINE inline
#define BLINK_OUTLINE inline
#define BLINK_UNROLL
#define BLINK_NO_UNROLL
#include <sched.h>
#include <time.h>

#include <cstring>
#endif

namespace blink {
namespace device {

// 16 bytes, which is what one thread moves at a time.
struct Pair {
  Word low, high;
};

#ifdef BLINK_CUDA

// ---- the block

BLINK_INLINE uint32_t thread_index() { return threadIdx.x; }
BLINK_INLINE uint32_t threads() { return blockDim.x; }
BLINK_INLINE void barrier() { __syncthreads(); }
// A barrier that tells all threads whether one of them said yes.
BLINK_INLINE bool any_of_block(bool yes) { return __syncthreads_or(yes) != 0; }
BLINK_INLINE bool all_of_warp(bool yes) { return __all_sync(0xffffffffu, yes) != 0; }
BLINK_INLINE bool any_of_warp(bool yes) { return __any_sync(0xffffffffu, yes) != 0; }
BLINK_INLINE void converge() { __syncwarp(); }
constexpr uint32_t kWarp = 32;

// ---- what other ranks write or read

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
BLINK_INLINE uint32_t load_relaxed(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(at)) : "memory");
  return value;
}
// Each half of 8 bytes is whole: written by one store.
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
// Whether `at` was 0 and is `value` now.
BLINK_INLINE bool claim(Word* at, Word value) {
  Word old;
  asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], 0, %2;"
               : "=l"(old)
               : "l"(__cvta_generic_to_global(at)), "l"(value)
               : "memory");
  return old == 0;
}
typedef Word AnyWord;

// ---- what only this block touches between two barriers. What is read once need not displace the first-level cache.

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
constexpr uint32_t kSpinsPerLook = 2048;  // about a millisecond of polling memory at hand

// ---- bits

BLINK_INLINE float float_of(uint32_t bits) { return __uint_as_float(bits); }
BLINK_INLINE uint32_t bits_of(float value) { return __float_as_uint(value); }
BLINK_INLINE double double_of(Word bits) { return __longlong_as_double(static_cast<long long>(bits)); }
BLINK_INLINE Word bits_of(double value) { return static_cast<Word>(__double_as_longlong(value)); }
// Whatever the compiler is told about contraction: these are rounded, each for itself.
BLINK_INLINE float add(float a, float b) { return __fadd_rn(a, b); }
BLINK_INLINE float multiply(float a, float b) { return __fmul_rn(a, b); }
BLINK_INLINE float divide(float a, float b) { return __fdiv_rn(a, b); }
BLINK_INLINE double add(double a, double b) { return __dadd_rn(a, b); }
BLINK_INLINE double multiply(double a, double b) { return __dmul_rn(a, b); }
BLINK_INLINE double divide(double a, double b) { return __ddiv_rn(a, b); }

#else

BLINK_INLINE uint32_t thread_index() { return 0; }
BLINK_INLINE uint32_t threads() { return 1; }
BLINK_INLINE void barrier() {}
BLINK_INLINE bool any_of_block(bool yes) { return yes; }
BLINK_INLINE bool all_of_warp(bool yes) { return yes; }
BLINK_INLINE bool any_of_warp(bool yes) { return yes; }
BLINK_INLINE void converge() {}
constexpr uint32_t kWarp = 1;

BLINK_INLINE Word load_acquire(const Word* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
BLINK_INLINE Word load_relaxed(const Word* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
// A status begins with two words of 32 bits that are written as one.
typedef Word __attribute__((may_alias)) AnyWord;
BLINK_INLINE void store_release(AnyWord* at, Word value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
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
// There may be fewer cores than blocks: who waits for long lets another one work.
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

BLINK_INLINE float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
BLINK_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
BLINK_INLINE double double_of(Word bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
BLINK_INLINE Word bits_of(double value) {
  Word bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
// -ffp-contract=off keeps them apart.
BLINK_INLINE float add(float a, float b) { return a + b; }
BLINK_INLINE float multiply(float a, float b) { return a * b; }
BLINK_INLINE float divide(float a, float b) { return a / b; }
BLINK_INLINE double add(double a, double b) { return a + b; }
BLINK_INLINE double multiply(double a, double b) { return a * b; }
BLINK_INLINE double divide(double a, double b) { return a / b; }

#endif

}  // namespace device
}  // namespace blink
