// Copies of bytes by the faster of two methods.
//
// The C library's memcpy is not always the fastest. On an AMD EPYC (Zen 5) glibc 2.36 took twice as long as the
// processor's own string move for equal offsets in pages, as page-aligned buffers have: 4.3 and 2.2 µs for 256 KiB,
// 118 and 64 µs for 4 MiB. At other offsets both took equally long. So each process measures once,
// for equal and for other offsets, which method is faster.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif
// Sanitizers check the accesses of memcpy, but not those of assembly.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define BLINK_STRING_MOVE 1
#endif

namespace blink {
namespace {

#if defined(BLINK_STRING_MOVE)

// For smaller copies memcpy is as fast, because a string move has a start-up cost.
constexpr std::size_t kLeastMoved = 32 << 10;
constexpr std::size_t kTrialBytes = 256 << 10;
constexpr std::size_t kPageBytes = 4096;
constexpr int kTrials = 6;

void string_move(void* dst, const void* src, std::size_t bytes) {
  __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes) : : "memory");
}

// Whether string moves are faster for equal offsets in pages, and for other ones.
struct Faster {
  bool same_offset = false, otherwise = false;
};

bool have_same_offset(const void* dst, const void* src) {
  return (reinterpret_cast<std::uintptr_t>(dst) - reinterpret_cast<std::uintptr_t>(src)) % kPageBytes == 0;
}

bool moves_faster(char* dst, const char* src) {
  std::int64_t least[2] = {INT64_MAX, INT64_MAX};
  for (int trial = 0; trial < 2 * kTrials; ++trial) {
    const auto began = std::chrono::steady_clock::now();
    if (trial % 2 == 0) {
      std::memcpy(dst, src, kTrialBytes);
    } else {
      string_move(dst, src, kTrialBytes);
    }
    const auto took = std::chrono::steady_clock::now() - began;
    const std::int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
    if (ns < least[trial % 2]) least[trial % 2] = ns;
  }
  return least[1] < least[0];
}

Faster measured() {
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(kPageBytes, 3 * kTrialBytes), &std::free);
  if (memory == nullptr) return {};
  auto* const bytes = static_cast<char*>(memory.get());
  std::memset(bytes, 1, 3 * kTrialBytes);
  return {moves_faster(bytes + kTrialBytes, bytes), moves_faster(bytes + kTrialBytes + kPageBytes / 2 + 64, bytes)};
}

const Faster& faster() {
  static const Faster result = measured();
  return result;
}

#endif

}  // namespace

void prepare_copies() {
#if defined(BLINK_STRING_MOVE)
  faster();
#endif
}

void copy_bytes(void* dst, const void* src, std::size_t bytes) {
  if (dst == src || bytes == 0) return;
#if defined(BLINK_STRING_MOVE)
  if (bytes >= kLeastMoved && (have_same_offset(dst, src) ? faster().same_offset : faster().otherwise)) {
    string_move(dst, src, bytes);
    return;
  }
#endif
  std::memcpy(dst, src, bytes);
}

bool are_past_caches(std::int64_t bytes) {
  constexpr std::int64_t kTimes = 2;  // as a multiple of the cache's size
  static const std::int64_t cache = [] {
    const long reported = sysconf(_SC_LEVEL3_CACHE_SIZE);  // 0 or less if the system does not report it
    return reported > 0 ? std::int64_t{reported} : std::int64_t{32} << 20;
  }();
  return bytes >= kTimes * cache;
}

void copy_past_caches(void* dst, const void* src, std::size_t bytes) {
#if defined(__SSE2__)
  constexpr std::size_t kLine = 64;
  auto* to = static_cast<char*>(dst);
  const auto* from = static_cast<const char*>(src);
  const std::size_t ahead = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t head = ahead < bytes ? ahead : bytes;
  copy_bytes(to, from, head);
  std::size_t done = head;
  for (; done + kLine <= bytes; done += kLine) {
    for (std::size_t part = done; part < done + kLine; part += sizeof(__m128i)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
    }
  }
  _mm_sfence();  // without it these stores could become visible after the flag that announces them
  copy_bytes(to + done, from + done, bytes - done);
#else
  copy_bytes(dst, src, bytes);
#endif
}

}  // namespace blink
