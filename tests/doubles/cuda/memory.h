// How does device memory come about? As a file in memory, which other processes can map, between two guard pages.
#pragma once

#include "ranges.h"

namespace cuda_double {

// Maps `bytes` of the file between guard pages, as close to the upper one as 256-byte alignment allows.
bool map_guarded(int file, std::size_t bytes, Range* range);
void unmap_guarded(const Range& range);

// Where in its file an allocation of that size begins.
std::size_t offset_in_file(std::size_t bytes);

}  // namespace cuda_double
