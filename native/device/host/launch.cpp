// The bodies behind rows.h and reduction.h on a CPU: the device layer's own code, with blocks of one thread; and the
// launch of all blocks, one thread each.
#include "host/launch.h"

#include <chrono>
#include <future>
#include <vector>

#include "blink/block.h"
#include "blink/reduce.h"

namespace {

void abort_all(const blink::Call* calls, std::uint32_t ranks) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    auto* const word = const_cast<std::uint32_t*>(calls[rank].abort);
    if (word != nullptr) __atomic_store_n(word, 1u, __ATOMIC_RELAXED);
  }
}

template <class Wire>
void run_block(const blink::device::ProgramRows& program, const blink::Call& call, std::uint32_t block) {
  blink::device::BlockMemory memory;
  blink::device::run_channel<Wire>(memory, call, program, block / call.parts, block % call.parts);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void blink_run_block(const blink::device::ProgramRows* program, uint32_t wire,
                                                            const blink::Call* call, uint32_t block) {
  switch (wire) {
    case blink::Simple::kNumber: return run_block<blink::Simple>(*program, *call, block);
    case blink::LL::kNumber: return run_block<blink::LL>(*program, *call, block);
    default: return run_block<blink::LL128>(*program, *call, block);
  }
}

__attribute__((visibility("default"))) void blink_reduce(const blink::Reduction* reduction, uint32_t block) {
  blink::device::State state;
  blink::device::reduce(state, *reduction, block);
}

__attribute__((visibility("default"))) int blink_launch(void (*entry)(const blink::Call*, uint32_t block),
                                                        const blink::Call* calls, uint32_t ranks, uint32_t blocks,
                                                        double timeout_s) {
  std::vector<std::future<void>> running;
  bool started = true;
  try {
    running.reserve(static_cast<std::size_t>(ranks) * blocks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::uint32_t block = 0; block < blocks; ++block) {
        running.push_back(std::async(std::launch::async, entry, calls + rank, block));
      }
    }
  } catch (const std::exception&) {  // out of memory or threads
    started = false;
  }
  bool ended = started;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  for (const std::future<void>& one : running) {
    ended = ended && (timeout_s <= 0 || one.wait_until(deadline) == std::future_status::ready);
  }
  if (!ended) abort_all(calls, ranks);
  for (const std::future<void>& one : running) one.wait();
  if (!started) return -1;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const blink::Status* const status = calls[rank].status;
    if (status != nullptr && __atomic_load_n(&status->code, __ATOMIC_ACQUIRE) != 0) return 1;
  }
  return 0;
}

__attribute__((visibility("default"))) uint32_t blink_device_abi() { return BLINK_ABI; }

__attribute__((visibility("default"))) const char* blink_device_version() { return BLINK_VERSION; }

}  // extern "C"
