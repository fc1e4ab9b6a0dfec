// Runs every block as a thread.
#include "host/launch.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// Counts blocks that are done.
class Finish {
 public:
  void done() {
    // Notified under the lock: whoever waits may take the object away as soon as it is free.
    const std::lock_guard<std::mutex> lock(mutex_);
    ++done_;
    changed_.notify_one();
  }
  bool wait(std::size_t all, double timeout_s) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto finished = [&] { return done_ == all; };
    if (timeout_s <= 0) {
      changed_.wait(lock, finished);
      return true;
    }
    return changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), finished);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t done_ = 0;
};

void abort_all(const blink::Call* calls, std::uint32_t ranks) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    auto* const word = const_cast<std::uint32_t*>(calls[rank].abort);
    if (word != nullptr) __atomic_store_n(word, 1u, __ATOMIC_RELAXED);
  }
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int blink_launch(void (*entry)(const blink::Call*, uint32_t block),
                                                        const blink::Call* calls, uint32_t ranks, uint32_t blocks,
                                                        double timeout_s) {
  Finish finish;
  std::vector<std::thread> threads;
  bool started = true;
  try {
    threads.reserve(static_cast<std::size_t>(ranks) * blocks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::uint32_t block = 0; block < blocks; ++block) {
        threads.emplace_back([&finish, entry, call = calls + rank, block] {
          entry(call, block);
          finish.done();
        });
      }
    }
  } catch (const std::exception&) {  // no memory, or no threads
    started = false;
  }
  if (!started || !finish.wait(threads.size(), timeout_s)) abort_all(calls, ranks);
  for (std::thread& thread : threads) thread.join();
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
