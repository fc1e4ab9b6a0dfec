// Reduction kernels, which combine any number of sources in one pass over memory.
//
// The meaning is that of blinkccl/collectives/ops.py, bit for bit: sources are combined left to right; float16,
// bfloat16 and the 8-bit floats are accumulated in float32 and rounded once, at the store; integers wrap; an average of
// integers is truncated toward zero. The bits depend neither on the instruction set nor on how a buffer is cut; only
// which NaN comes out of NaNs is open.
#pragma once

#include <cstddef>
#include <cstdint>

namespace blink {

// How the value is finished, and what happens to the rank's own contribution before it is combined.
struct Finish {
  std::int32_t own = -1;      // index of the source that `scale` multiplies; -1: none
  double scale = 1.0;         // converted to the accumulator type
  std::uint32_t divisor = 1;  // > 1 ends an average
};

// dst[d][i] = round((src[0][i] ∘ src[1][i] ∘ …) / divisor) for i < count and every d < ndst.
// nsrc ≥ 1, ndst ≥ 1, addresses aligned to the type. A destination may be the very memory of a source or of another
// destination; partial overlap is not allowed. One source that is neither scaled nor divided keeps its bits.
using Combine = void (*)(void* const* dst, int ndst, const void* const* src, int nsrc, std::size_t count,
                         const Finish& finish);

// The same in steps, for values that cannot wait until all sources are there. `acc` holds `count` accumulators
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

// The kernel of a blink_dtype and blink_operation for the best instruction set that this CPU has and BLINK_ISA (base,
// avx2, avx512) allows; nullptr where the type has no such operation.
const Kernel* find_kernel(std::uint32_t dtype, std::uint32_t op);

// Finds out how this processor copies fastest, once per process, in about 0.1 ms; else the first large copy does.
void prepare_copies();
// dst = src, or nothing if they are the same; no other overlap.
void copy_bytes(void* dst, const void* src, std::size_t bytes);
// The same by stores that bypass the caches, which then need not read what is overwritten; for more than they hold.
void copy_past_caches(void* dst, const void* src, std::size_t bytes);
// Whether buffers of so many bytes, those of all ranks together, are too many for the cache that cores share, so that
// copies of results would not stay there.
bool are_past_caches(std::int64_t bytes);

// "base", "avx2", "avx512" or "neon".
const char* isa_name();

}  // namespace blink
