// How does device memory come about? As a file in memory, which other processes can map, between two guard pages.
//
// What is written past the end of an allocation, and what is freed while another process has it open, which CUDA calls
// undefined, ends the program.
#pragma once

#include "ranges.h"

namespace cuda_double {

// Maps `bytes` of the file between guard pages, as close to the upper one as 256-byte alignment allows.
bool map_guarded(int file, std::size_t bytes, Range* range);
void unmap_guarded(const Range& range);

// Tells the process that allocated the file's memory that this one has it open: until the file is closed, or with the
// process.
void hold_open(int file);

// Where in its file an allocation of that size begins.
std::size_t offset_in_file(std::size_t bytes);

}  // namespace cuda_double
