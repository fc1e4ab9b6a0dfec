// Calls of one communicator that end later: in the order in which they began, one at a time.
//
// They get on by steps (blink_op_step), taken by whichever thread polls or waits. A rank that computes, or waits for
// something else in the MPI library, would keep the others waiting; so a thread of the process looks every millisecond for
// communicators that the program has left alone, and takes the steps there. It never calls the MPI library.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "blink/host.h"
#include "core.h"

namespace blink::mpi {

class PendingCalls {
 public:
  struct Call {
    blink_op* op;
    const void* input;
    void* output;
    std::function<void()> failed;  // says why, on the thread on which it failed
  };

  // `progress` lets the MPI library go on; `crowded`: there are fewer cores than ranks.
  void open(blink_comm* comm, std::int64_t timeout_us, bool crowded, std::function<void()> progress);
  // All have ended. Twice does no harm.
  void close();

  // Begins it; its number.
  std::uint64_t add(Call call);
  // Of blink_mpi_outcome.
  int poll(std::uint64_t number);
  int wait(std::uint64_t number);
  int wait_for_all() { return is_idle() ? BLINK_MPI_DONE : wait(added_.load(std::memory_order_relaxed)); }
  bool is_idle() const { return has_ended(added_.load(std::memory_order_relaxed)); }
  bool has_ended(std::uint64_t number) const { return ended_.load(std::memory_order_acquire) >= number; }

  // For the thread: whether nobody has polled since it asked the last time, and a step if nobody else takes one.
  bool is_left_alone();
  void help();
  void doze(std::int64_t us) { blink_doze(comm_, us); }
  // Whether the calling thread is that thread.
  static bool is_helping();

 private:
  bool go_on(std::uint64_t until);  // true: it waited until that has ended
  int outcome(std::uint64_t number) const;

  blink_comm* comm_ = nullptr;
  std::int64_t timeout_us_ = 0;
  bool crowded_ = false;
  std::function<void()> progress_;
  std::mutex queue_mutex_;  // held for moments; of the queue
  std::deque<Call> queue_;
  std::mutex step_mutex_;  // held by who takes steps, or waits; of the call at the front
  bool begun_ = false;     // that call
  std::atomic<std::uint64_t> added_{0}, ended_{0};
  std::atomic<std::uint64_t> failed_from_{UINT64_MAX};  // this call and all after it
  std::atomic<std::uint32_t> looks_{0};                 // how often the program polled
  std::uint32_t seen_looks_ = 0;
  bool helped_ = false;  // the thread knows this communicator
};

}  // namespace blink::mpi
