// Copies between this process's memory and another's, made by the kernel in one go (Linux's cross-memory attach).
//
// A ring copies twice, through memory that both map; this copies once, and costs a system call and a look at every
// page's table entry. Which is faster depends on the machine, and whether it is allowed on its settings: groups of two
// ranks try and measure it (blinkccl/runtime/cross_memory.py).
#pragma once

#include <cstddef>
#include <cstdint>

namespace blink {

// Whether all `bytes` were copied: from address `from` of process `pid` to `into`, or from `from` to address `into`
// there.
bool read_other(std::int64_t pid, void* into, std::uint64_t from, std::size_t bytes);
bool write_other(std::int64_t pid, std::uint64_t into, const void* from, std::size_t bytes);

}  // namespace blink
