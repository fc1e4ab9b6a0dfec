// One rank's end of a communicator: it begins calls, waits, detects dead peers, and reports failures to the others.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "blink/host.h"
#include "network.h"
#include "recorder.h"
#include "remote_streams.h"
#include "segment.h"
#include "team.h"

namespace blink {

// The reason for a wait, for errors and for monitoring a live job.
struct Site {
  std::int32_t waits = BLINK_WAITS_NOT;
  std::int32_t peer = -1;
  std::int32_t channel = -1, share = -1, stage = -1;
  std::int64_t chunk = -1;
};

// The cores to which this rank should move: empty, unless it is the highest rank on its core, and that core has at
// least two ranks more than another allowed core. `cores`: the core of each rank, -1 if it sleeps or its core is
// unknown.
cpu_set_t freer_cores(const std::vector<int>& cores, int rank, const cpu_set_t& allowed);

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A counter that one thread changes and others may read.
class Counter {
 public:
  void operator+=(std::uint64_t more) { value_.store(count() + more, std::memory_order_relaxed); }
  void operator++() { *this += 1; }
  std::uint64_t count() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// The counters behind blink_stats.
struct Counters {
  Counter calls, messages, message_bytes, inline_bytes, staged_bytes, direct_read_bytes, direct_write_bytes,
      crossed_bytes, network_bytes, stepwise, yields, sleeps, parts;
};

// The data that a rank publishes at the beginning of a call.
struct Call {
  std::uint64_t signature = 0, what = 0;
  std::int64_t count = 0;
  std::int64_t input = kNowhere, output = kNowhere;  // offsets in the caller's heap
  std::int64_t input_bytes = 0, output_bytes = 0;
};

}  // namespace blink

struct blink_comm {
 public:
  blink_comm(const blink::Segment& segment, int rank, int fd);
  ~blink_comm();
  blink_comm(const blink_comm&) = delete;
  blink_comm& operator=(const blink_comm&) = delete;

  bool lock_rank();
  void show_secret();
  void populate();

  int rank() const { return rank_; }
  int size() const { return segment_.ranks(); }
  const blink::Segment& segment() const { return segment_; }
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  int bank() const { return static_cast<int>(sequence() % blink::kBanks); }
  blink::Counters& stats() { return stats_; }
  blink::Recorder& recorder() { return recorder_; }
  const blink::Recorder& recorder() const { return recorder_; }

  // `network` reaches ranks on other hosts; ranks of this host write to `bell` to wake this one.
  void set_network(std::unique_ptr<blink::Network> network, std::unique_ptr<blink::RemoteStreams> streams, int bell);
  void connect(int peer, const void* address, const void* stream_address);
  void set_bell(int peer, int bell) { bells_[static_cast<std::size_t>(peer)] = bell; }
  blink::Network* network() const { return network_.get(); }
  blink::RemoteStreams& streams() const { return *streams_; }
  bool is_remote(int peer) const { return network_ != nullptr && network_->reaches(peer); }
  bool has_failed() const { return segment_.header().failed.load(std::memory_order_acquire) != 0; }
  // The code of an ended stream: an earlier failure of the communicator, or a broken connection to `peer`.
  int stream_end(int peer);
  // Detects different calls and, for `awaited`, a broken connection. Returns 0 or a code.
  int check_network(int awaited);

  // Begins the next call, whose clock is running: waits for a free bank, then publishes the call. Returns 0 or a code.
  int begin(const blink::Call& call);
  void finish();
  // The calls until now were not the user's: the numbers in errors and monitoring count from here.
  void count_from_here() { segment_.rank(rank_).life.own.store(sequence(), std::memory_order_relaxed); }
  // Other threads of this process need the core: waits yield early. With fewer cores than ranks, `long` waits, for data
  // from elsewhere, also sleep at once.
  void share_core(bool long_waits) {
    spins_ = usual_spins_ = std::min(usual_spins_, kSpinsShared);
    if (long_waits && !roomy_) yield_us_ = 0;
  }
  // Waits until `peer` has begun this call too, and checks that it is the same call. Returns 0 or a code.
  int await_entry(int peer);
  // Notes that this rank has read a control word of this call that `peer` wrote.
  void has_entered(int peer) { begun_[static_cast<std::size_t>(peer)] = sequence(); }
  const blink::Entry& entry(int peer) const { return segment_.rank(peer).entry[bank()]; }

  // Waits until ready() is true. Returns 0, or the code of the failure that ended the call.
  template <class Ready>
  int wait(Ready ready, const blink::Site& site) {
    std::int64_t since = 0;  // when it became worth an event
    for (int i = 0; i < spins_; ++i) {
      if (ready()) {
        if (since != 0) record(site, since);
        return BLINK_OK;
      }
      if (i == kSpinsUnrecorded && recorder_.on()) since = recorder_.now();
      if (network_ != nullptr) network_->progress();
      blink::relax();
    }
    if (since == 0 && recorder_.on() && !polling_) since = recorder_.now();
    const int code = wait_long([](void* context) { return (*static_cast<Ready*>(context))(); }, &ready, site);
    if (since != 0) record(site, since);
    return code;
  }

  // Waits at most `wait_us`, independently of this rank's other threads. Returns 0, also after the timeout, or a code.
  template <class Ready>
  int wait_stream(Ready ready, int peer, std::int64_t wait_us) {
    if (ready() || wait_us <= 0) return ended_elsewhere();
    return wait_stream_long([](void* context) { return (*static_cast<Ready*>(context))(); }, &ready, peer, wait_us);
  }

  // Wakes `peer` if it sleeps. Call it after the store that the peer may wait for.
  void wake(int peer) {
    // The preceding store must be visible before `sleeping` is read; the sleeper uses the opposite order.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    wake_unfenced(peer);
  }
  void wake_unfenced(int peer) {
    const blink::Bell& bell = segment_.rank(peer).bell;
    if (bell.sleeping.load(std::memory_order_relaxed) == 0) return;
    const std::int32_t awaited = bell.awaited.load(std::memory_order_relaxed);
    if (awaited == 0 || awaited == rank_ + 1) ring(peer);
  }

  void show_stream(int peer, std::int64_t tag, std::int64_t since_us);
  void set_python(const blink_python& python) { python_ = python; }
  void take_raised(void* raised[3]);
  void set_idle(const blink_idle& idle) { idle_ = idle; }
  // The threads that share passes over memory; at first the calling one alone.
  void set_threads(int threads) { team_ = std::make_unique<blink::Team>(threads); }
  blink::Team& team() const { return *team_; }
  int set_heap(int rank, void* base, int fd, std::uint64_t bytes);
  // The local address of `bytes` at `offset` of a buffer that `peer` lends; nullptr if they are not wholly inside it.
  unsigned char* borrowed(int peer, const blink::Lent& buffer, std::int64_t offset, std::size_t bytes) const {
    const Heap& heap = heaps_[static_cast<std::size_t>(peer)];
    const auto inside = [](std::int64_t first, std::uint64_t length, std::uint64_t whole) {
      return first >= 0 && length <= whole && static_cast<std::uint64_t>(first) <= whole - length;
    };
    const std::int64_t at = buffer.at.load(std::memory_order_relaxed);
    const auto size = static_cast<std::uint64_t>(buffer.bytes.load(std::memory_order_relaxed));
    return heap.base != nullptr && inside(at, size, heap.bytes) && inside(offset, bytes, size) ? heap.base + at + offset
                                                                                               : nullptr;
  }
  // The peer's address of `bytes` at `offset` of its private buffer; 0 if they are not wholly inside it.
  static std::uint64_t private_address(const blink::Lent& buffer, std::int64_t offset, std::size_t bytes);
  // Checks that this rank can read every peer's memory, by reading a secret that only the right process has.
  bool can_cross() const;
  // Cross-memory copies, in any thread; false if the system denies them. The call then ends with private_failure.
  bool read_private(int peer, void* into, std::uint64_t from, std::size_t bytes) const;
  bool write_private(int peer, std::uint64_t into, const void* from, std::size_t bytes) const;
  int private_failure(int peer, const blink::Site& site);
  // Enclose every write into another rank's buffers. start_writing returns 0, or a code if writing is no longer
  // allowed.
  int start_writing();
  void stop_writing() { life().writing.store(0, std::memory_order_release); }
  // After a failed call: waits until no rank writes into this rank's buffers any more.
  void await_writers() const;
  // The offset of `memory` in this rank's own heap, or kNowhere.
  std::int64_t heap_offset(const void* memory, std::int64_t bytes) const;

  // Checks whether `peer` closed its communicator in an orderly way. That affects only ranks that still need data from
  // it.
  bool has_left(int peer) const { return segment_.rank(peer).life.left.load(std::memory_order_acquire) != 0; }
  // Fails a stream without failing collectives: its other end has left, or the reason why it left. Returns the code.
  int lost_to_stream(int peer);
  // Rejects invalid arguments before the call begins: the other ranks are not affected. Returns the code.
  int refuse(const char* text);
  // Ends the communicator for all ranks. Returns the code, or that of an earlier failure.
  int fail(int code, const blink::Site& site, int peer, const char* text);
  void start_clock(std::int64_t timeout_us) {
    constexpr std::int64_t kForever = std::int64_t{1} << 60;  // further away sums would overflow
    timeout_us_ = timeout_us < kForever ? timeout_us : kForever;
    started_us_.store(0, std::memory_order_relaxed);
  }
  bool is_roomy() const { return roomy_; }
  // Inside a wait's condition: the wait is so long that the caller should continue with the messages it has.
  bool impatient() const { return impatient_; }
  // From now on no wait blocks: it returns BLINK_AGAIN if the condition is false. `impatient`: as above.
  void start_polling(bool impatient) {
    polling_ = true;
    spins_ = 1;
    impatient_ = impatient;
  }
  void stop_polling() {
    polling_ = false;
    spins_ = usual_spins_;
    impatient_ = false;
  }

 private:
  using Condition = bool (*)(void*);
  int wait_long(Condition ready, void* context, const blink::Site& site);
  void record(const blink::Site& site, std::int64_t since) {
    recorder_.wait(sequence(), since, site.waits, site.peer, site.chunk);
  }
  int not_yet(Condition ready, void* context, const blink::Site& site);
  int look_around(Condition ready, void* context, const blink::Site& site);
  int wait_stream_long(Condition ready, void* context, int peer, std::int64_t wait_us);
  int ended_elsewhere() {
    return segment_.header().failed.load(std::memory_order_acquire) == 0 ? BLINK_OK : failed_elsewhere();
  }
  void sleep(Condition ready, void* context, int awaited, std::int64_t us, bool streams = false);
  int failed_elsewhere();
  blink_error failure(int code, const blink::Site& site, int peer, const char* text) const;
  int keep(const blink_error& error);
  int keep_end(blink_error error);
  int check_signatures();
  bool interrupted();
  std::int64_t yield_to_ranks(std::int64_t now);
  // A program that computes had this core a short time ago.
  bool shares_core(std::int64_t now) const { return now < busy_until_us_; }
  std::int64_t let_others_go_on(std::int64_t pause_us);
  void spread(std::int64_t now);
  bool crowded() const;
  int lost_peer(int awaited) const;
  bool is_gone(int peer) const;
  int mismatch(int peer, std::uint64_t sequence);
  void ring(int peer);
  blink::Life& life() const { return segment_.rank(rank_).life; }
  void show(blink::Waiting& shown, const blink::Site& site, std::int64_t since_us);

  blink::Segment segment_;
  int rank_;
  int fd_;
  bool roomy_;  // a core for every rank
  bool populated_ = false;
  std::int64_t spread_us_ = 0;
  static constexpr int kSpinsShared = 64;  // a microsecond
  static constexpr int kSpinsUnrecorded = 256;
  int usual_spins_, spins_;  // polls before a wait counts as long: the usual number, and the current one
  std::int64_t yield_us_, busy_us_ = 0, busy_until_us_ = 0;
  // Changed by the collectives' thread only, but read by other threads for their errors.
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::int64_t> started_us_{0};  // begin of the call's first long wait; 0: none;
  std::atomic<std::uint64_t> what_{0};       // collective, type, operation and root of the call
  std::atomic<std::int64_t> count_{0};
  std::uint64_t signatures_[blink::kBanks] = {};
  std::vector<std::uint64_t> begun_;  // per peer, the last call that it is known to have begun;
  std::int64_t timeout_us_ = 0;
  std::uint64_t mismatched_ = 0;  // the call that differed;
  std::atomic<std::uint64_t> end_heard_in_{0};  // 1 + number of the first call that reported the end; 0: none
  blink_python python_{};
  void* raised_[3] = {};
  blink_idle idle_{};
  bool impatient_ = false;
  bool polling_ = false;
  std::int64_t polled_us_ = 0;  // last check for dead peers while polling
  struct Heap {
    unsigned char* base = nullptr;
    std::uint64_t bytes = 0;
    bool mapped_here = false;
  };
  std::vector<Heap> heaps_;
  std::uint8_t secret_[sizeof(blink::Header::token)] = {};
  blink::Counters stats_;
  blink::Recorder recorder_;
  std::unique_ptr<blink::Team> team_ = std::make_unique<blink::Team>(1);
  std::unique_ptr<blink::Network> network_;
  std::unique_ptr<blink::RemoteStreams> streams_;
  std::vector<int> bells_;  // eventfds by rank; -1: none
};
