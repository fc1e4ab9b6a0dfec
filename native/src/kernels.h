// Reduction kernels, which reduce any number of sources in one pass over memory.
//
// The results equal those of blinkccl/collectives/ops.py bit for bit. Sources are reduced left to right. Floats
// below 32 bits are accumulated in float32 and rounded once, at the store. Integers wrap; an average of integers is
// truncated toward zero. The bits depend neither on the instruction set nor on the cuts of a buffer. Only the choice
// between several NaN operands is undefined.
#pragma once

#include <cstddef>
#include <cstdint>

namespace blink {

// The completion of a value, and the scale of the rank's own contribution before the reduction.
struct Finish {
  std::int32_t own = -1;      // index of the source that `scale` multiplies; -1: none;
  double scale = 1.0;         // converted to the accumulator type;
  std::uint32_t divisor = 1;  // > 1 completes an average
};

// dst[d][i] = round((src[0][i] ∘ src[1][i] ∘ …) / divisor) for i < count and every d < ndst.
// nsrc ≥ 1, ndst ≥ 1, addresses aligned to the type. A destination may be the same memory as a source or another
// destination, but must not overlap it partially. A single source without scale and divisor keeps its bits.
using Combine = void (*)(void* const* dst, int ndst, const void* const* src, int nsrc, std::size_t count,
                         const Finish& finish);

// The same in steps, for values whose sources are not all available. `acc` holds `count` accumulators
// (float32 for the narrow floats, else the type itself).
struct Stepwise {
  // acc = src [· scale]
  void (*load)(void* acc, const void* src, std::size_t count, bool scaled, double scale);
  // acc = acc ∘ src [· scale]
  void (*step)(void* acc, const void* src, std::size_t count, bool scaled, double scale);
  // dst[d] = round(acc / divisor)
  void (*store)(void* const* dst, int ndst, const void* acc, std::size_t count, std::uint32_t divisor);
};

struct Kernel {
  Combine combine;
  Stepwise stepwise;
  std::size_t itemsize;
  std::size_t accumulator_size;
};

// The kernel of a blink_dtype and blink_operation for the best instruction set of this CPU that BLINK_ISA (base, avx2,
// avx512) allows; nullptr if the type has no such operation.
const Kernel* find_kernel(std::uint32_t dtype, std::uint32_t op);

// Measures the fastest copy method of this processor, once per process, in about 0.1 ms. Without it the first large
// copy does.
void prepare_copies();
// dst = src. The two may be the same, but must not overlap otherwise.
void copy_bytes(void* dst, const void* src, std::size_t bytes);
// The same by stores that bypass the caches, which then do not read the overwritten data; for copies larger than the
// caches.
void copy_past_caches(void* dst, const void* src, std::size_t bytes);
// Whether the buffers of all ranks together, `bytes`, exceed the cache that cores share, so that copies of results
// would not stay in it.
bool are_past_caches(std::int64_t bytes);

// "base", "avx2", "avx512" or "neon".
const char* isa_name();

}  // namespace blink
