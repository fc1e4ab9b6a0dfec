// The release of what communicators had, when no peer has it mapped any more (setup.h).

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "deadline.h"
#include "setup.h"

namespace blink::shim {
namespace {

constexpr double kAtExit = 2;  // a process that ends lets its peers finish their last stores
constexpr std::chrono::milliseconds kLook(2);

// One communicator on its way out. Only one thread at a time takes its steps.
class DeferredRelease {
 public:
  explicit DeferredRelease(std::unique_ptr<Resources> resources) : resources_(std::move(resources)), page_(resources_->page) {}

  // Goes as far as it can get without waiting for another rank; true when all is freed.
  bool step() {
    if (at_ == At::kRunning && resources_->engine->drain(0)) {
      resources_->engine->give_back_blocks();
      page_->done();
      at_ = At::kDone;
    }
    if (at_ == At::kDone && page_->all_done()) {
      resources_->engine->close_peers();
      page_->closed();
      at_ = At::kClosed;
    }
    if (at_ != At::kClosed || !page_->all_closed()) return false;
    resources_.reset();
    return true;
  }

  // Nobody writes into anybody's memory any more. From any thread.
  bool quiet() const { return page_->all_done(); }

 private:
  enum class At { kRunning, kDone, kClosed };
  std::unique_ptr<Resources> resources_;
  const std::shared_ptr<SharedPage> page_;
  At at_ = At::kRunning;
};

class ReleaseQueue {
 public:
  void add(std::shared_ptr<DeferredRelease> release) {
    const std::lock_guard<std::mutex> lock(mutex_);
    releases_.push_back(std::move(release));
    if (running_) return;
    running_ = true;
    std::thread([this] { work(); }).detach();
  }

  // Until nobody writes anywhere, or not much longer.
  void wait_at_exit() {
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
    return std::all_of(releases_.begin(), releases_.end(), [](const auto& release) { return release->quiet(); });
  }

  void work() {
    std::vector<std::shared_ptr<DeferredRelease>> here, gone;
    while (true) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const std::shared_ptr<DeferredRelease>& one : gone) {
          releases_.erase(std::find(releases_.begin(), releases_.end(), one));
        }
        if (releases_.empty() || ending_) {
          running_ = false;
          return;
        }
        here = releases_;
      }
      gone.clear();
      for (const std::shared_ptr<DeferredRelease>& one : here) {
        if (one->step()) gone.push_back(one);  // closes and frees, without the lock
      }
      std::this_thread::sleep_for(kLook);
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<DeferredRelease>> releases_;
  bool running_ = false, ending_ = false;
};

ReleaseQueue& release_queue() {
  static ReleaseQueue* queue = [] {
    static const pid_t owner = getpid();
    // A forked child has neither our memory nor our threads.
    std::atexit([] {
      if (getpid() == owner) ::blink::shim::release_queue().wait_at_exit();
    });
    return new ReleaseQueue;  // its thread may outlive everything
  }();
  return *queue;
}

}  // namespace

void release_when_unmapped(std::unique_ptr<Resources> resources) {
  if (resources->engine == nullptr) {  // nothing of this rank's was ever mapped, and it has mapped nothing
    resources->page->done();
    resources->page->closed();
    return;
  }
  auto release = std::make_shared<DeferredRelease>(std::move(resources));
  if (!release->step()) release_queue().add(std::move(release));
}

}  // namespace blink::shim
