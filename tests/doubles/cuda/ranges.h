// Whose memory is this address?
#pragma once

#include <cstddef>
#include <cstdint>

#include "api.h"

namespace cuda_double {

enum class Kind { device, ipc, host_allocated, host_registered };

struct Range {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  Kind kind = Kind::device;
  int device = -1;            // ordinal: where it lies, or for host memory whose context pinned it
  int file = -1;              // of device memory: its memfd
  std::size_t file_offset = 0;  // where in the file the range begins
  std::uintptr_t mapping = 0;   // with the guard pages
  std::size_t mapping_bytes = 0;
  int opened = 0;             // IPC: how often
  std::uint64_t inode = 0;
  std::uint64_t id = 0;       // no other range of the process ever had it

  bool on_device() const { return kind == Kind::device || kind == Kind::ipc; }
};

void add_range(Range range);
bool remove_range(std::uintptr_t base, Kind kind, Range* removed);
bool find_range(std::uintptr_t address, Range* found);                     // the range that holds the address
bool covers(std::uintptr_t address, std::size_t bytes, Range* found);     // and all of [address, address + bytes)
bool find_opened(std::uint64_t inode, Range* found);
int change_opened(std::uintptr_t base, int by);
std::size_t device_bytes(int device);                                      // allocated there by this process

}  // namespace cuda_double
