#include "pending.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>
#include <utility>
#include <vector>

namespace blink::mpi {
namespace {

constexpr std::uint64_t kNoWait = 0;
constexpr std::uint32_t kLooksUnchecked = 1024;
constexpr std::chrono::milliseconds kLook(1);
constexpr std::int64_t kDozeUs = 1000;
constexpr int kSleepy = 100;  // looks without anything to do, after which it has to be woken

thread_local bool helping = false;

// The thread of this process.
class Helper {
 public:
  static Helper& get() {
    static Helper* const helper = new Helper;  // never destroyed: the program may end in the middle of a call
    return *helper;
  }

  void join(PendingCalls* calls) {
    const Turn turn(*this);
    all_.push_back(calls);
    if (owner_ == getpid()) return;
    owner_ = getpid();
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);  // signals are the program's
    std::thread([this] { run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void leave(PendingCalls* calls) {
    const Turn turn(*this);
    all_.erase(std::remove(all_.begin(), all_.end(), calls), all_.end());
  }

  // After something was added.
  void wake() {
    if (!asleep_.load(std::memory_order_seq_cst)) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    asleep_.store(false, std::memory_order_relaxed);
    woken_.notify_one();
  }

 private:
  // The lock, which the thread lets go for it: what it helps with may last until the program goes on.
  struct Turn {
    explicit Turn(Helper& helper) : wanted(helper.wanted_), lock((wanted.fetch_add(1), helper.mutex_)) {}
    ~Turn() { wanted.fetch_sub(1); }
    std::atomic<int>& wanted;
    const std::lock_guard<std::mutex> lock;
  };

  void run() {
    helping = true;
    std::unique_lock<std::mutex> lock(mutex_);
    for (int idle = 0;; ++idle) {
      if (idle >= kSleepy) {
        asleep_.store(true, std::memory_order_seq_cst);
        if (!is_busy()) woken_.wait(lock, [this] { return !asleep_.load(std::memory_order_relaxed); });
        asleep_.store(false, std::memory_order_relaxed);
        idle = 0;
      }
      woken_.wait_for(lock, kLook);
      if (is_busy()) idle = 0;
      // Whoever is left alone is helped, and listened for, until the program comes back.
      while (wanted_.load() == 0) {
        PendingCalls* const last = help_all();
        if (last == nullptr) break;
        last->doze(kDozeUs);
      }
    }
  }

  bool is_busy() const {
    return std::any_of(all_.begin(), all_.end(), [](const PendingCalls* calls) { return !calls->is_idle(); });
  }

  // One of those that still need it; null: none.
  PendingCalls* help_all() {
    PendingCalls* last = nullptr;
    for (PendingCalls* calls : all_) {
      if (calls->is_idle() || !calls->is_left_alone()) continue;
      calls->help();
      if (!calls->is_idle()) last = calls;
    }
    return last;
  }

  std::mutex mutex_;
  std::condition_variable woken_;
  std::atomic<bool> asleep_{false};
  std::atomic<int> wanted_{0};  // by so many threads of the program
  std::vector<PendingCalls*> all_;
  pid_t owner_ = 0;
};

}  // namespace

bool PendingCalls::is_helping() { return helping; }

void PendingCalls::open(blink_comm* comm, bool crowded, Maker* maker) {
  comm_ = comm;
  crowded_ = crowded;
  maker_ = maker;
}

void PendingCalls::close() {
  wait_for_all();
  if (helped_) Helper::get().leave(this);
  helped_ = false;
}

std::uint64_t PendingCalls::add(PendingCall call, bool begun) {
  if (!helped_) Helper::get().join(this);
  helped_ = true;
  std::uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(queue_mutex_);
    if (begun) begun_ = true;  // nobody looks at it while the queue is empty
    queue_.push_back(std::move(call));
    number = added_.fetch_add(1, std::memory_order_seq_cst) + 1;
  }
  looks_.fetch_add(1, std::memory_order_relaxed);
  if (step_mutex_.try_lock()) {
    go_on(kNoWait);
    step_mutex_.unlock();
  }
  if (!has_ended(number)) Helper::get().wake();
  return number;
}

// Runs what is at the front of the queue, and what comes after it. Whoever calls has the step mutex.
bool PendingCalls::go_on(std::uint64_t until) {
  for (;;) {
    PendingCall* call = nullptr;
    {
      const std::lock_guard<std::mutex> lock(queue_mutex_);
      if (queue_.empty()) return until != kNoWait;
      call = &queue_.front();  // stays where it is while others are added
    }
    const bool broken = failed_from_.load(std::memory_order_relaxed) != UINT64_MAX;
    int code = broken || begun_ ? BLINK_OK : maker_->begin(*call);
    begun_ = code == BLINK_OK;
    if (begun_ && !broken) code = maker_->go_on(*call, until != kNoWait);
    if (code == BLINK_AGAIN) return false;
    begun_ = false;
    const std::uint64_t number = ended_.load(std::memory_order_relaxed) + 1;
    if (code != BLINK_OK) {
      maker_->failed(*call);
      failed_from_.store(number, std::memory_order_relaxed);
    }
    {
      const std::lock_guard<std::mutex> lock(queue_mutex_);
      queue_.pop_front();
    }
    ended_.store(number, std::memory_order_release);
    if (number == until) return true;
  }
}

int PendingCalls::outcome(std::uint64_t number) const {
  if (!has_ended(number)) return BLINK_MPI_PENDING;
  return number >= failed_from_.load(std::memory_order_relaxed) ? BLINK_MPI_FAILED : BLINK_MPI_DONE;
}

int PendingCalls::poll(std::uint64_t number) {
  if (has_ended(number)) return outcome(number);
  const bool checks = looks_.fetch_add(1, std::memory_order_relaxed) % kLooksUnchecked == 0;
  if (step_mutex_.try_lock()) {
    go_on(kNoWait);
    if (checks && begun_) maker_->check();
    step_mutex_.unlock();
  }
  if (!has_ended(number)) {
    maker_->progress();
    if (crowded_) sched_yield();
  }
  return outcome(number);
}

int PendingCalls::wait(std::uint64_t number) {
  while (!has_ended(number)) {
    looks_.fetch_add(1, std::memory_order_relaxed);
    if (step_mutex_.try_lock()) {
      if (!has_ended(number)) go_on(number);
      step_mutex_.unlock();
    } else {  // another thread takes a step, or waits
      maker_->progress();
      sched_yield();
    }
  }
  return outcome(number);
}

bool PendingCalls::is_left_alone() {
  const std::uint32_t now = looks_.load(std::memory_order_relaxed);
  return std::exchange(seen_looks_, now) == now;
}

void PendingCalls::help() {
  if (!step_mutex_.try_lock()) return;
  go_on(kNoWait);
  step_mutex_.unlock();
}

}  // namespace blink::mpi
