#include "retired.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "deadline.h"
#include "log.h"

namespace blink::shim {
namespace {

constexpr double kAtExit = 2;  // a process that ends lets its peers finish their last stores
constexpr std::chrono::milliseconds kLook(2);

// One communicator on its way out. Only one thread at a time takes its steps.
class Leaving {
 public:
  explicit Leaving(std::unique_ptr<Live> live) : live_(std::move(live)), board_(live_->board) {}

  // Goes as far as it can get without waiting for another rank; true when all is freed.
  bool step() {
    if (at_ == At::kRunning && live_->engine->drain(0)) {
      live_->engine->give_back_blocks();
      board_->done();
      at_ = At::kDone;
    }
    if (at_ == At::kDone && board_->all_done()) {
      live_->engine->close_peers();
      board_->closed();
      at_ = At::kClosed;
    }
    if (at_ != At::kClosed || !board_->all_closed()) return false;
    live_.reset();
    return true;
  }

  // Nobody writes into anybody's memory any more. From any thread.
  bool quiet() const { return board_->all_done(); }

 private:
  enum class At { kRunning, kDone, kClosed };
  std::unique_ptr<Live> live_;
  const std::shared_ptr<Board> board_;
  At at_ = At::kRunning;
};

class Retired {
 public:
  void add(std::shared_ptr<Leaving> leaving) {
    const std::lock_guard<std::mutex> lock(mutex_);
    leaving_.push_back(std::move(leaving));
    if (running_) return;
    running_ = true;
    std::thread([this] { work(); }).detach();
  }

  // Until nobody writes anywhere, or not much longer.
  void linger() {
    const Deadline deadline(kAtExit);
    std::unique_lock<std::mutex> lock(mutex_);
    ending_ = true;  // memory goes with the process; the driver may be on its way down already
    while (!deadline.passed() && !quiet()) {
      lock.unlock();
      std::this_thread::sleep_for(kLook);
      lock.lock();
    }
  }

 private:
  bool quiet() const {
    return std::all_of(leaving_.begin(), leaving_.end(), [](const auto& leaving) { return leaving->quiet(); });
  }

  void work() {
    std::vector<std::shared_ptr<Leaving>> here, gone;
    while (true) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const std::shared_ptr<Leaving>& one : gone) {
          leaving_.erase(std::find(leaving_.begin(), leaving_.end(), one));
        }
        if (leaving_.empty() || ending_) {
          running_ = false;
          return;
        }
        here = leaving_;
      }
      gone.clear();
      for (const std::shared_ptr<Leaving>& one : here) {
        if (one->step()) gone.push_back(one);  // closes and frees, without the lock
      }
      std::this_thread::sleep_for(kLook);
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Leaving>> leaving_;
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
  if (live->engine == nullptr) {  // nothing of this rank's was ever mapped, and it has mapped nothing
    live->board->done();
    live->board->closed();
    return;
  }
  auto leaving = std::make_shared<Leaving>(std::move(live));
  if (!leaving->step()) retired().add(std::move(leaving));
}

}  // namespace blink::shim
