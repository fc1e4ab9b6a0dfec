// Device memory: a memory file, which other processes can map, between two guard pages; and the owner of an address.
//
// A write past the end of an allocation ends the program, and so does freeing memory that another process has open,
// which is undefined in CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "api.h"

namespace cuda_double {

enum class Kind { device, ipc, host_registered };

struct Range {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  Kind kind = Kind::device;
  int device = -1;            // ordinal of its device, or, for host memory, of the context that pinned it;
  int file = -1;              // of device memory: its memfd;
  std::uintptr_t mapping = 0;   // with the guard pages
  std::size_t mapping_bytes = 0;
  int opened = 0;             // IPC: number of opens
  std::uint64_t inode = 0;

  bool on_device() const { return kind == Kind::device || kind == Kind::ipc; }
};

void add_range(const Range& range);
bool remove_range(std::uintptr_t base, Kind kind, Range* removed);
bool find_range(std::uintptr_t address, Range* found);  // the range that holds the address
bool find_opened(std::uint64_t inode, Range* found);
int change_opened(std::uintptr_t base, int by);
std::size_t device_bytes(int device);                   // allocated on it by this process

// Maps `bytes` of the file between guard pages, as close to the upper one as 256-byte alignment allows.
bool map_guarded(int file, std::size_t bytes, Range* range);
void unmap_guarded(const Range& range);

// Shows the process that allocated the file's memory that this one has it open, until the file is closed or the process
// ends.
void hold_open(int file);

}  // namespace cuda_double
