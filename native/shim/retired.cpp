#include "retired.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "deadline.h"
#include "log.h"

namespace blink::shim {
namespace {

constexpr double kAtExit = 2;  // a process that ends lets its peers finish their last stores
constexpr std::chrono::milliseconds kLook(2);

struct Waiting {
  std::unique_ptr<Live> live;
  bool said = false;

  bool over() {
    if (!said && live->engine->drain(0)) {
      live->board->done();
      said = true;
    }
    return said && live->board->all_done();
  }
};

class Retired {
 public:
  void add(Waiting waiting) {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(waiting));
    if (running_) return;
    running_ = true;
    std::thread([this] { work(); }).detach();
  }

  // Until nobody needs anything, or not much longer.
  void linger() {
    const Deadline deadline(kAtExit);
    std::unique_lock<std::mutex> lock(mutex_);
    ending_ = true;  // memory goes with the process; the driver may be on its way down already
    while (!deadline.passed() && !all_done()) {
      lock.unlock();
      std::this_thread::sleep_for(kLook);
      lock.lock();
    }
  }

 private:
  bool all_done() const {
    return std::all_of(waiting_.begin(), waiting_.end(), [](const Waiting& w) { return w.live->board->all_done(); });
  }

  void work() {
    while (true) {
      std::vector<Waiting> ready;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (waiting_.empty() || ending_) {
          running_ = false;
          return;
        }
        const auto needed = [](Waiting& waiting) { return !waiting.over(); };
        const auto split = std::stable_partition(waiting_.begin(), waiting_.end(), needed);
        std::move(split, waiting_.end(), std::back_inserter(ready));
        waiting_.erase(split, waiting_.end());
      }
      ready.clear();  // frees, without the lock
      std::this_thread::sleep_for(kLook);
    }
  }

  std::mutex mutex_;
  std::vector<Waiting> waiting_;
  bool running_ = false, ending_ = false;
};

Retired& retired() {
  static Retired* retired = [] {
    static const pid_t owner = getpid();
    // A forked child has neither our memory nor our threads.
    std::atexit([] {
      if (getpid() == owner) ::blink::shim::retired().linger();
    });
    return new Retired;  // its thread may outlive everything
  }();
  return *retired;
}

}  // namespace

void retire(std::unique_ptr<Live> live) {
  Waiting waiting{std::move(live)};
  if (!waiting.over()) retired().add(std::move(waiting));
}

}  // namespace blink::shim
