// The GPUs of this machine, as described by the environment; and the device of a thread.
//
//   BLINK_DOUBLE_DEVICES (4)   BLINK_DOUBLE_ARCH (90)   BLINK_DOUBLE_SMS (132)
//   BLINK_DOUBLE_DRIVER (13000): before 12000 without memory-sync domains, of which GPUs from arch 90 on have four
//   BLINK_DOUBLE_OCCUPANCY (blocks per multiprocessor, of any size; default: that of kernels within their budgets)
//   BLINK_DOUBLE_MPS_SMS, BLINK_DOUBLE_GREEN_SMS: number of multiprocessors of this process as a client of MPS, or
//     of the green context that it uses
//   BLINK_DOUBLE_MEM_OPS (1): 0: its streams have no memory operations of 64 bits
//   BLINK_DOUBLE_NO_PEER="0-1,2-0": device 0 cannot reach 1, 2 cannot reach 0
//   BLINK_DOUBLE_BAD_PEER="1-2": a copy from 1 to 2 silently corrupts one byte
//   BLINK_DOUBLE_SLOW_PEER="1-2": a copy from 1 to 2 takes 0.2 s
//   BLINK_DOUBLE_SLOW_KERNEL="hybrid:2000": kernels with that in their name take 2000 µs more
//   BLINK_DOUBLE_ATS (0): 1: GPUs read the host's pages (GH200), so an asynchronous copy reads its source when it runs
//   BLINK_DOUBLE_SERIAL ("branches"): work that does not run in parallel, as CUDA guarantees neither: "kernels" of a
//     process on one GPU, as under compute-sanitizer, and "branches" of a graph
//   BLINK_DOUBLE_EXCLUSIVE=NAME: devices are in compute mode EXCLUSIVE_PROCESS, among all processes with the same name
//   CUDA_VISIBLE_DEVICES: numbers only
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "api.h"

namespace cuda_double {

constexpr std::size_t kMemoryBytes = std::size_t{4} << 30;  // of each device

struct Device {
  int number;  // in the machine; its index among all visible ones is its ordinal
  std::string bus_id;
  CUuuid uuid;
};

struct Machine {
  std::vector<Device> devices;  // the visible ones, by ordinal;
  std::string exclusive;  // empty: any number of processes may use a device
  int driver, arch, multiprocessors, occupancy;  // occupancy 0: as many as 2048 threads allow
  bool reads_pages, serial_kernels, serial_branches;
  std::vector<std::pair<int, int>> no_peer, bad_peer, slow_peer;  // by number

  bool can_reach(int ordinal, int peer) const;
  int memory_domains() const { return driver < 12000 ? 0 : arch < 90 ? 1 : 4; }  // 0: unknown
  bool spoils(int from, int to) const { return lists(bad_peer, from, to); }
  bool dawdles(int from, int to) const { return lists(slow_peer, from, to); }
  int ordinal_of(const CUuuid& uuid) const;  // -1: not visible here
  bool has(CUdevice ordinal) const { return ordinal >= 0 && ordinal < static_cast<int>(devices.size()); }

 private:
  bool lists(const std::vector<std::pair<int, int>>& list, int from, int to) const;  // by ordinal
};

const Machine& machine();

// The number of blocks of this size that fit on one multiprocessor together.
int occupancy_of(int threads);

// The number in an environment variable, and its words between commas.
long setting(const char* name, long otherwise);
std::vector<std::string> words(const char* name);

// Contexts are the primary ones, one for each device; the current one is the calling thread's.
CUresult current_usable();         // 0, or the error of the current context
int current_device();              // -1 without a context
int device_of(CUcontext context);  // -1: no context

}  // namespace cuda_double
