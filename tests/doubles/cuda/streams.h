// Streams and their work. Each stream has a thread, which runs its work in order, after the work of other streams that
// it must wait for, and, with a seed, with random delays: unordered work runs out of order.
//
// BLINK_DOUBLE_SEED: 0 (default): without delays. Else: work is delayed at random, and some streams delay all work
// until a thread waits for it or a few milliseconds have passed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "api.h"

typedef std::function<void()> Work;

struct CUstream_st;
struct CUevent_st;

namespace cuda_double {

typedef CUstream_st Stream;

struct Op {
  Work work;
  std::vector<std::shared_ptr<Op>> after;  // empty once it is done
  std::vector<std::shared_ptr<Op>> within;  // which its work waits for while it runs; empty once it is done;
  std::vector<std::shared_ptr<Stream>> followers;  // whose work waits for this
  std::weak_ptr<Stream> stream;
  bool done = false, urgent = false;
  std::chrono::microseconds held{0};  // its delay, unless a thread waits for it
  std::chrono::steady_clock::time_point done_at;
};
typedef std::shared_ptr<Op> OpPtr;

// One of: work, the wait for an event's last record, the record of an event.
struct Node {
  Work work;
  std::vector<int> after;  // nodes before it
  std::shared_ptr<CUevent_st> waits = nullptr, records = nullptr;
};

struct Capture {
  std::uint64_t id = 0;
  std::vector<Node> nodes;
  std::vector<std::weak_ptr<Stream>> streams;
  Stream* origin = nullptr;
  int mode = 0;
  std::thread::id thread;
  bool invalid = false, ended = false;
};

}  // namespace cuda_double

// The handle that programs hold is the stream itself.
struct CUstream_st : std::enable_shared_from_this<CUstream_st> {
  int device = 0;
  int number = 0;
  bool legacy = false, blocking = true, lags = false, closed = false, started = false, fresh = true;
  std::deque<cuda_double::OpPtr> queue;
  cuda_double::OpPtr last;
  std::condition_variable wake;
  std::mt19937_64 random;
  std::shared_ptr<cuda_double::Capture> capture;
  std::vector<int> heads;  // of the capture: the next node follows these
};

// The work behind an event: that of its stream at the last record.
struct CUevent_st {
  int device = 0;
  bool timed = true;
  cuda_double::OpPtr recorded;
  std::shared_ptr<cuda_double::Capture> capture;  // set if the last record was in a captured stream
  std::vector<int> heads;
};

namespace cuda_double {

// One lock for streams, events and captures.
std::mutex& engine();

// The stream of a handle for the calling thread; nullptr: none.
std::shared_ptr<Stream> stream_of(CUstream handle);

// Adds work to the stream, or to the capture that contains it (then *op is empty). Takes the lock.
CUresult submit(CUstream handle, Work work, OpPtr* op = nullptr,
                std::chrono::microseconds held = std::chrono::microseconds(0));

// To be called with the lock held:
CUresult check_capture(Stream& stream);  // 0, or the reason why the stream accepts no work
OpPtr enqueue(Stream& stream, Work work, std::vector<OpPtr> after = {});
void add_node(Stream& stream, Node node);  // to its capture, after the stream's nodes
void complete(const OpPtr& op);
void wait_for(std::unique_lock<std::mutex>& lock, const OpPtr& op);
void invalidate(Capture& capture);

void wait_for_op(const OpPtr& op);     // takes the lock;
void await_lazily(const OpPtr& op);    // the same, without ending delays;
void wait_for_device(int device);     // for all work in its streams so far; takes the lock;
CUresult refuse_while_capturing();     // kCaptureUnsupported for unsafe calls; invalidates the capture

std::uint64_t seed();
// With a seed: sometimes sleeps for a random time. For work without a stream of its own.
void dawdle(std::mt19937_64& random);

}  // namespace cuda_double
