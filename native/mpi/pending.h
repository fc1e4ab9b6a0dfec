// Calls of one communicator that end later: in the order in which they began, one at a time.
//
// They get on by steps (blink_op_step), taken by whichever thread polls or waits. A rank that computes, or waits for
// something else in the MPI library, would keep the others waiting; so a thread of the process looks every millisecond for
// communicators that the program has left alone, and takes the steps there. It never calls the MPI library.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "blink/host.h"
#include "core.h"
#include "one_way.h"

namespace blink::mpi {

struct Prepared;

// A call as it is made.
struct PendingCall {
  blink_mpi_call call;
  Prepared* prepared;  // by the host engine; null: it goes one way
  const void* input;
  void* output;
  std::vector<OneWay::Part> parts;  // of one that goes one way, and is no reduction
};

class PendingCalls {
 public:
  // What makes them, one at a time. The functions return 0 or a code.
  class Maker {
   public:
    virtual int begin(PendingCall& call) = 0;
    // As far as nothing has to be waited for (BLINK_AGAIN), or, `waits`, to its end.
    virtual int go_on(PendingCall& call, bool waits) = 0;
    // After steps in vain: whether the ranks' calls can go on at all, which the next step hears of.
    virtual void check() = 0;
    // Says why, on the thread on which it failed.
    virtual void failed(const PendingCall& call) = 0;
    // Lets the MPI library go on.
    virtual void progress() = 0;

   protected:
    ~Maker() = default;
  };

  // `crowded`: there are fewer cores than ranks.
  void open(blink_comm* comm, bool crowded, Maker* maker);
  // All have ended. Twice does no harm.
  void close();

  // Begins it, if it has not `begun` among no others; its number.
  std::uint64_t add(PendingCall call, bool begun);
  // The number of the last one.
  std::uint64_t last() const { return added_.load(std::memory_order_relaxed); }
  // Of blink_mpi_outcome.
  int poll(std::uint64_t number);
  int wait(std::uint64_t number);
  int wait_for_all() { return is_idle() ? BLINK_MPI_DONE : wait(last()); }
  bool is_idle() const { return has_ended(last()); }
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
  bool crowded_ = false;
  Maker* maker_ = nullptr;
  std::mutex queue_mutex_;  // held for moments; of the queue
  std::deque<PendingCall> queue_;
  std::mutex step_mutex_;  // held by who takes steps, or waits; of the call at the front
  bool begun_ = false;     // that call
  std::atomic<std::uint64_t> added_{0}, ended_{0};
  std::atomic<std::uint64_t> failed_from_{UINT64_MAX};  // this call and all after it
  std::atomic<std::uint32_t> looks_{0};                 // how often the program polled
  std::uint32_t seen_looks_ = 0;
  bool helped_ = false;  // the thread knows this communicator
};

}  // namespace blink::mpi
