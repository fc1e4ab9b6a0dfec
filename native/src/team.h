// Threads that share one rank's passes over memory.
//
// A pass is cut into parts, and each thread claims the next part until none is left. The calling thread claims too, so
// a pass never waits for a thread that has not begun. After a pass the helpers poll for some microseconds, then sleep.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace blink {

// The allowed cores on the memory node of `core`, from the files node*/cpulist in `folder`; all allowed cores if no
// node has it.
cpu_set_t cores_beside(const char* folder, int core, const cpu_set_t& allowed);

class Team {
 public:
  // `threads` ≥ 1 counts the calling thread; fewer if the system denies them. The first pass starts the helpers, on its
  // caller's memory node: many groups make no large calls.
  explicit Team(int threads) : threads_(threads) {}
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }
  // Calls work(thread, part) once for every part < parts ≤ 65535, and returns after the last one. `thread` <
  // threads() differs between calls at the same time. One thread at a time may run passes.
  template <class Work>
  void run(int parts, Work work) {
    start([](void* context, int thread, int part) { (*static_cast<Work*>(context))(thread, part); }, &work, parts);
  }

 private:
  using Call = void (*)(void*, int thread, int part);
  void start(Call call, void* context, int parts);
  void make_helpers();
  void help(int thread);
  void claim(std::uint64_t pass, int thread);
  std::uint64_t await_pass(std::uint64_t last);

  // The number of the pass, its parts, and the next part to claim: 32, 16 and 16 bits.
  std::atomic<std::uint64_t> state_{0};
  std::atomic<int> done_{0}, sleepers_{0};
  std::atomic<bool> ended_{false};
  Call call_ = nullptr;
  void* context_ = nullptr;
  std::mutex mutex_;
  std::condition_variable begun_;
  std::vector<std::thread> helpers_;
  int threads_;
  bool began_ = false;
  pid_t process_ = 0;  // that made the helpers
};

}  // namespace blink
