// Who frees streams that wait for a rank that will never come? Waits in a stream know no deadline and no abort flag, as
// those of kernels do. A thread looks at two words that the streams write, and at the abort word, while something runs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "blink/call.h"

namespace blink::shim {

class CopyWatch {
 public:
  // Words that streams write, in memory that the GPU and this process see: how many launches have begun, and ended.
  struct Words {
    std::uint64_t begun, ended;
  };
  // Frees what waits now. Called again and again: work of peers that was set free may still write counters of ours, as
  // low as they should have been.
  typedef std::function<void()> Free;

  // `words` and `abort` outlive the watch.
  CopyWatch(const Words* words, volatile std::uint32_t* abort, Free free);
  ~CopyWatch();
  CopyWatch(const CopyWatch&) = delete;
  CopyWatch& operator=(const CopyWatch&) = delete;

  // Launch number `launch` (1, 2, …) is about to be enqueued. It may run for `timeout_ns`, 0: as long as it takes.
  void look_after(std::uint64_t launch, std::uint64_t timeout_ns);
  // Why launches were ended early: a StatusCode.
  std::uint32_t code() const { return __atomic_load_n(&code_, __ATOMIC_ACQUIRE); }

 private:
  void run();
  std::uint32_t trouble();

  const Words* words_;
  volatile std::uint32_t* abort_;
  const Free free_;
  std::uint32_t code_ = kRunning;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t launched_ = 0, timeout_ns_ = 0, seen_ = 0;
  std::chrono::steady_clock::time_point since_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace blink::shim
