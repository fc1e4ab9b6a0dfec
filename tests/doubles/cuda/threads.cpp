#include "threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace cuda_double {
namespace {

struct Pool {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> waiting;
  std::size_t idle = 0;
};

Pool& pool() {
  static Pool& only = *new Pool;
  return only;
}

void serve() {
  std::unique_lock<std::mutex> lock(pool().mutex);
  for (;;) {
    pool().wake.wait(lock, [] { return !pool().waiting.empty(); });
    const std::function<void()> work = std::move(pool().waiting.front());
    pool().waiting.pop_front();
    --pool().idle;
    lock.unlock();
    work();
    lock.lock();
    ++pool().idle;
  }
}

}  // namespace

void run_in_thread(std::function<void()> work) {
  std::lock_guard<std::mutex> lock(pool().mutex);
  pool().waiting.push_back(std::move(work));
  if (pool().idle < pool().waiting.size()) {
    ++pool().idle;
    std::thread(serve).detach();
  }
  pool().wake.notify_one();
}

}  // namespace cuda_double
