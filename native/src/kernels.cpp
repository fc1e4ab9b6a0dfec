// Selection of the kernels for this CPU, and one pass over memory from a kernel's pieces.
#include "kernels.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "blink/host.h"
#include "kernels_blocks.h"

#if defined(BLINK_X86_LEVELS)
#include <cpuid.h>
#endif

namespace blink {
namespace {

// Bytes of accumulators in one block, small enough that a block of every stream stays in the first-level cache.
constexpr std::size_t kBlockBytes = 4096;
constexpr int kMostAtOnce = 4;

char* at(void* memory, std::size_t offset) { return static_cast<char*>(memory) + offset; }
const char* at(const void* memory, std::size_t offset) { return static_cast<const char*>(memory) + offset; }

void copy_in_blocks(void* const* dst, int ndst, const void* src, std::size_t bytes) {
  if (ndst == 1) {
    copy_bytes(dst[0], src, bytes);
    return;
  }
  for (std::size_t offset = 0; offset < bytes; offset += kBlockBytes) {
    const std::size_t size = std::min(kBlockBytes, bytes - offset);
    for (int d = 0; d < ndst; ++d) {
      if (dst[d] != src) std::memcpy(at(dst[d], offset), at(src, offset), size);
    }
  }
}

// One block through the accumulators: any number of sources, a scale and a divisor.
void combine_block(const Pieces& pieces, void* dst, const void* const* src, int nsrc, std::size_t offset,
                   std::size_t count, const Finish& finish) {
  alignas(64) char acc[kBlockBytes];
  const void* head[kMostAtOnce];
  int done = nsrc < kMostAtOnce ? nsrc : kMostAtOnce;
  for (int s = 0; s < done; ++s) head[s] = at(src[s], offset);
  const bool scaled_early = finish.own >= 0 && finish.own < done;
  if (done >= 2 && !scaled_early) {
    pieces.kept[done - 2](acc, head, count);
  } else {
    pieces.stepwise.load(acc, head[0], count, finish.own == 0, finish.scale);
    done = 1;
  }
  for (int s = done; s < nsrc; ++s) {
    pieces.stepwise.step(acc, at(src[s], offset), count, finish.own == s, finish.scale);
  }
  void* const to[] = {at(dst, offset)};
  pieces.stepwise.store(to, 1, acc, count, finish.divisor);
}

#if defined(BLINK_X86_LEVELS)

// The number of levels beyond the first that CPU and system serve. zig's __builtin_cpu_supports is always false.
int levels_beyond_base() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kNeeded = bit_OSXSAVE | bit_F16C;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kNeeded) != kNeeded) return 0;
  unsigned saved = 0;  // by the system: bits 1 and 2 the registers of AVX, 5 to 7 those of AVX-512
  __asm__("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (b & bit_AVX2) == 0 || (saved & 0x06) != 0x06) return 0;
  constexpr unsigned kWide = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  return (b & kWide) == kWide && (saved & 0xe6) == 0xe6 ? 2 : 1;
}

constexpr int kMostLevels = 3;
#else
constexpr int kMostLevels = 1;
#endif

struct Levels {
  Level level[kMostLevels];
  int count = 0;

  Levels() {
#if defined(BLINK_X86_LEVELS)
    const Level all[] = {{"base", base::find}, {"avx2", avx2::find}, {"avx512", avx512::find}};
    count = 1 + levels_beyond_base();
    std::copy_n(all, count, level);
#elif defined(__aarch64__)
    level[count++] = {"neon", base::find};
#else
    level[count++] = {"base", base::find};
#endif
  }
};

const Levels& all_levels() {
  static const Levels found;
  return found;
}

// The number of levels that BLINK_ISA allows; all if it is not set.
int allowed(const Levels& all) {
  static const char* const names[] = {"base", "avx2", "avx512"};
  const char* const wanted = std::getenv("BLINK_ISA");
  if (wanted == nullptr || *wanted == '\0') return all.count;
  if (std::strcmp(wanted, all.level[0].name) == 0) return 1;  // neon has no place in the list
  for (int n = 0; n < 3; ++n) {
    if (std::strcmp(wanted, names[n]) == 0) return n < all.count ? n + 1 : all.count;
  }
  std::fprintf(stderr, "blink: BLINK_ISA must be base, avx2 or avx512; its value is ignored\n");
  return all.count;
}

const Level& chosen_level() {
  static const Level& chosen = all_levels().level[allowed(all_levels()) - 1];
  return chosen;
}

}  // namespace

const Level* levels(int* count) {
  *count = all_levels().count;
  return all_levels().level;
}

void spread(void* const* dst, int ndst, std::size_t offset, std::size_t bytes) {
  for (int d = 1; d < ndst; ++d) {
    if (dst[d] != dst[0]) std::memcpy(at(dst[d], offset), at(dst[0], offset), bytes);
  }
}

void combine_in_blocks(const Pieces& pieces, void* const* dst, int ndst, const void* const* src, int nsrc,
                       std::size_t count, const Finish& finish) {
  const bool plain = finish.own < 0 && finish.divisor <= 1;
  if (plain && nsrc == 1) {
    copy_in_blocks(dst, ndst, src[0], count * pieces.itemsize);
    return;
  }
  const bool few = nsrc >= 2 && nsrc <= kMostAtOnce;
  const auto averaged = few && finish.own < 0 && !plain ? pieces.averaged[nsrc - 2] : nullptr;
  const bool direct = few && (plain || averaged != nullptr);
  const auto pass = [&](void* to, const void* const* from, std::size_t size) {
    if (averaged != nullptr) {
      averaged(to, from, size, finish.divisor);
    } else {
      pieces.rounded[nsrc - 2](to, from, size);
    }
  };
  if (direct && ndst == 1) {
    pass(dst[0], src, count);
    return;
  }
  const std::size_t block = kBlockBytes / pieces.accumulator_size;
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t size = std::min(block, count - first);
    const std::size_t offset = first * pieces.itemsize;
    if (direct) {
      const void* from[kMostAtOnce];
      for (int s = 0; s < nsrc; ++s) from[s] = at(src[s], offset);
      pass(at(dst[0], offset), from, size);
    } else {
      combine_block(pieces, dst[0], src, nsrc, offset, size, finish);
    }
    spread(dst, ndst, offset, size * pieces.itemsize);
  }
}

const Kernel* find_kernel(std::uint32_t dtype, std::uint32_t op) { return chosen_level().find(dtype, op); }

const char* isa_name() { return chosen_level().name; }

}  // namespace blink

int blink_combine(uint32_t dtype, uint32_t op, void* const* dst, int ndst, const void* const* src, int nsrc,
                  size_t count, int own, double scale, uint32_t divisor) {
  const blink::Kernel* const kernel = blink::find_kernel(dtype, op);
  if (kernel == nullptr) return -1;
  kernel->combine(dst, ndst, src, nsrc, count, {own, scale, divisor});
  return 0;
}

const char* blink_isa_name() { return blink::isa_name(); }
