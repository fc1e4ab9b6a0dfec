// How bytes are copied.
//
// The C library's memcpy is not the fastest everywhere. On an AMD EPYC (Zen 5) glibc 2.36 took twice as long as the
// processor's own string move where source and destination lie at the same place in their pages, as buffers do that begin
// on pages: 4.3 and 2.2 µs for 256 KiB, 118 and 64 for 4 MiB; at other places both took as long. So each process finds out
// once, for both cases, which is faster.
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
// Sanitizers see what memcpy touches, and not what assembly does.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define BLINK_STRING_MOVE 1
#endif

namespace blink {
namespace {

#if defined(BLINK_STRING_MOVE)

// Below, a call of memcpy is as fast, and starting a string move costs.
constexpr std::size_t kLeastMoved = 32 << 10;
constexpr std::size_t kTrialBytes = 256 << 10;
constexpr std::size_t kPageBytes = 4096;
constexpr int kTrials = 6;

void string_move(void* dst, const void* src, std::size_t bytes) {
  __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes) : : "memory");
}

// Whether string moves are faster, where both ends lie alike in their pages, and where they do not.
struct Faster {
  bool alike = false, otherwise = false;
};

bool alike(const void* dst, const void* src) {
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
  static const Faster found = measured();
  return found;
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
  if (bytes >= kLeastMoved && (alike(dst, src) ? faster().alike : faster().otherwise)) {
    string_move(dst, src, bytes);
    return;
  }
#endif
  std::memcpy(dst, src, bytes);
}

bool are_past_caches(std::int64_t bytes) {
  constexpr std::int64_t kTimes = 2;  // as large as the cache
  static const std::int64_t cache = [] {
    const long found = sysconf(_SC_LEVEL3_CACHE_SIZE);  // 0 or less where the system does not say
    return found > 0 ? std::int64_t{found} : std::int64_t{32} << 20;
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
  _mm_sfence();  // such stores are not in order with the flag that announces them
  copy_bytes(to + done, from + done, bytes - done);
#else
  copy_bytes(dst, src, bytes);
#endif
}

}  // namespace blink
