// One pass over memory, made of the pieces of one kernel. All levels share it; it is compiled once, for the baseline.
#pragma once

#include "blink/types.h"
#include "kernels.h"

namespace blink {

// The functions that a level compiles for one type and one operation. Index n - 2: n sources at once.
struct Pieces {
  void (*rounded[3])(void* dst, const void* const* src, std::size_t count);  // dst = round(a ∘ b ∘ …)
  void (*kept[3])(void* acc, const void* const* src, std::size_t count);     // acc = a ∘ b ∘ …
  // dst = round((a ∘ b ∘ …) / divisor); nullptr: averaged in steps
  void (*averaged[3])(void* dst, const void* const* src, std::size_t count, std::uint32_t divisor);
  Stepwise stepwise;
  std::size_t itemsize;
  std::size_t accumulator_size;
};

// Reduces with these pieces, block by block: each source is read once from memory and each destination written once.
void combine_in_blocks(const Pieces& pieces, void* const* dst, int ndst, const void* const* src, int nsrc,
                       std::size_t count, const Finish& finish);

// Copies `bytes` bytes at `offset` of dst[0] to the same place of dst[1], dst[2], …
void spread(void* const* dst, int ndst, std::size_t offset, std::size_t bytes);

// One build of the kernels for one instruction set.
struct Level {
  const char* name;
  const Kernel* (*find)(std::uint32_t dtype, std::uint32_t op);
};

// The levels that this CPU supports, weakest first; at least one. BLINK_ISA does not limit this list.
const Level* levels(int* count);

namespace base {
const Kernel* find(std::uint32_t dtype, std::uint32_t op);
}
namespace avx2 {
const Kernel* find(std::uint32_t dtype, std::uint32_t op);
}
namespace avx512 {
const Kernel* find(std::uint32_t dtype, std::uint32_t op);
}

}  // namespace blink
