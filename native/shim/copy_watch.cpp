#include "copy_watch.h"

#include <utility>

namespace blink::shim {
namespace {

constexpr std::chrono::milliseconds kLook(1);

std::uint64_t load(const std::uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }

}  // namespace

CopyWatch::CopyWatch(const Words* words, volatile std::uint32_t* abort, Free free)
    : words_(words), abort_(abort), free_(std::move(free)), thread_([this] { run(); }) {}

CopyWatch::~CopyWatch() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void CopyWatch::look_after(std::uint64_t launch, std::uint64_t timeout_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  launched_ = launch;
  timeout_ns_ = timeout_ns;
  changed_.notify_all();
}

// With the lock held.
std::uint32_t CopyWatch::trouble() {
  if (__atomic_load_n(abort_, __ATOMIC_RELAXED) != 0) return kAborted;
  // Time runs from when the launch's turn comes on the caller's stream.
  const std::uint64_t ended = load(words_->ended);
  const std::uint64_t seen = ended * 2 + (load(words_->begun) > ended ? 1 : 0);
  const auto now = std::chrono::steady_clock::now();
  if (seen != seen_ || seen % 2 == 0) since_ = now;
  seen_ = seen;
  const bool late = timeout_ns_ != 0 && now - since_ >= std::chrono::nanoseconds(timeout_ns_);
  return late ? kTimedOut : kRunning;
}

void CopyWatch::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (load(words_->ended) >= launched_) {
      changed_.wait(lock, [this] { return stopping_ || load(words_->ended) < launched_; });
      continue;
    }
    changed_.wait_for(lock, kLook, [this] { return stopping_; });
    if (stopping_ || load(words_->ended) >= launched_) continue;
    if (code_ == kRunning) {
      const std::uint32_t code = trouble();
      if (code == kRunning) continue;
      __atomic_store_n(&code_, code, __ATOMIC_RELEASE);
      __atomic_store_n(abort_, 1u, __ATOMIC_RELAXED);  // peers wait for this rank, as it does for one of them
    }
    lock.unlock();
    free_();
    lock.lock();
  }
}

}  // namespace blink::shim
