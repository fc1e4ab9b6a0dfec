#include "resident_blocks.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace blink::shim {
namespace {

struct Taken {
  std::uint32_t blocks = 0;
  std::uint32_t multiprocessors = UINT32_MAX, each = UINT32_MAX;  // the least of all communicators since the GPU had
                                                                  // none
};

struct Residence {
  std::mutex mutex;
  std::map<int, Taken> taken;  // by device
};

Residence& residence() {
  static Residence* const the = new Residence;  // communicators may end with the process
  return *the;
}

}  // namespace

std::uint32_t ResidentBlocks::reserve(const Gpu& gpu, std::uint32_t channels, std::uint32_t wanted, std::string* why) {
  const std::lock_guard<std::mutex> lock(residence().mutex);
  Taken& taken = residence().taken[gpu.device];
  const std::uint32_t multiprocessors = std::min(gpu.multiprocessors, taken.multiprocessors);
  const std::uint32_t held = multiprocessors * std::min(gpu.each, taken.each), most = held - (held + 3) / 4;
  const std::uint32_t free = std::min(most - std::min(most, taken.blocks), most / gpu.ranks);
  const std::uint32_t share = std::max(channels, held / 8 / gpu.ranks);
  if (free < channels) {
    *why = "its kernels need at least " + std::to_string(channels) + " blocks at once, but other communicators hold " +
           std::to_string(taken.blocks) + " of the " + std::to_string(most) + " that Blink may use on GPU " +
           std::to_string(gpu.device);
    return 0;
  }
  device_ = gpu.device;
  blocks_ = std::min(wanted, std::min(share, free));
  taken.blocks += blocks_;
  taken.each = std::min(gpu.each, taken.each);
  taken.multiprocessors = multiprocessors;
  return blocks_;
}

void ResidentBlocks::keep(std::uint32_t blocks) {
  if (blocks >= blocks_) return;
  const std::lock_guard<std::mutex> lock(residence().mutex);
  const auto taken = residence().taken.find(device_);
  taken->second.blocks -= blocks_ - blocks;
  blocks_ = blocks;
  if (taken->second.blocks == 0) residence().taken.erase(taken);  // including the least values of ended communicators
}

}  // namespace blink::shim
