// Events of a rank with their times: a ring in the rank's own memory.
//
// Disabled, it costs a branch per call, execution and long wait. Enabled, it reads a clock once per call and execution,
// and twice per recorded wait: an execution begins at the end of the one before it. Small calls take a microsecond and
// reading CLOCK_MONOTONIC 30 ns. So the clock is the processor's counter on systems where Linux itself uses that for
// its time. Its values are converted to CLOCK_MONOTONIC when the events are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

#include "blink/host.h"
#include "clock.h"

namespace blink {

class Recorder {
 public:
  bool on() const { return room_ != 0; }

  // Records the last `events` events from now on, but only executions of roles with chunks of `least_bytes` or more.
  // Earlier events are lost. false: out of memory.
  bool start(std::size_t events, std::int64_t least_bytes) {
    room_ = next_ = 0;
    recorded_ = 0;
    events_.reset(events == 0 ? nullptr : new (std::nothrow) Slot[events]());  // zeroed, so that all pages are present
    if (events != 0 && events_ == nullptr) return false;
    counts_ = events != 0 && has_counter();
    began_ = anchor();
    least_bytes_ = least_bytes;
    room_ = events;
    return true;
  }

  // Copies the events, oldest first, at most `room`, and returns their number.
  std::size_t read(blink_event* into, std::size_t room, std::uint64_t& dropped) const {
    const std::size_t recorded = recorded_ < room_ ? static_cast<std::size_t>(recorded_) : room_;
    const std::size_t copied = recorded < room ? recorded : room;
    dropped = recorded_ - recorded;
    const std::size_t first = recorded < room_ ? 0 : next_;
    const Anchor until = anchor();
    for (std::size_t i = 0; i < copied; ++i) {
      into[i] = events_[(first + i) % room_].event;
      into[i].begin_ns = monotonic_ns(into[i].begin_ns, until);
      into[i].end_ns = monotonic_ns(into[i].end_ns, until);
    }
    return copied;
  }

  // The current time on the events' clock.
  std::int64_t now() const {
#if defined(__x86_64__)
    if (counts_) return static_cast<std::int64_t>(__builtin_ia32_rdtsc());
#endif
    return now_ns();
  }

  // The next event begins now: a call, or more steps of one.
  void begin_call() {
    call_began_ = mark_ = now();
    skipped_ = false;
  }
  void go_on() { mark_ = now(); }

  // Whether an execution is recorded; `bytes` is the largest chunk of its role.
  bool keeps(std::int64_t bytes) {
    skipped_ = skipped_ || bytes < least_bytes_;
    return bytes >= least_bytes_;
  }

  void execution(std::uint64_t sequence, std::size_t role, std::int64_t chunk, std::int64_t bytes) {
    const std::int64_t ended = now();
    add({mark_, ended, sequence, 0, bytes, chunk, static_cast<std::int32_t>(role), -1, BLINK_EVENT_EXECUTION, 0, 0});
    mark_ = ended;
  }

  // Records a wait that has ended. If it was for entries, before the call's first execution, that begins after the
  // wait.
  void wait(std::uint64_t sequence, std::int64_t began, std::int32_t waits, std::int32_t peer, std::int64_t chunk) {
    const std::int64_t ended = now();
    add({began, ended, sequence, 0, 0, chunk, -1, peer, BLINK_EVENT_WAIT, static_cast<std::int16_t>(waits), 0});
    if (waits == BLINK_WAITS_ENTRY && mark_ == call_began_) mark_ = ended;
  }

  // `at_once`: the call ended with its last execution, without further work.
  void call(std::uint64_t sequence, std::uint64_t signature, std::int64_t count, int code, bool at_once) {
    const std::int64_t ended = at_once && !skipped_ ? mark_ : now();
    add({call_began_, ended, sequence, signature, count, -1, -1, -1, BLINK_EVENT_CALL,
         static_cast<std::int16_t>(code), 0});
  }

 private:
  struct alignas(64) Slot {
    blink_event event;
  };
  static_assert(sizeof(Slot) == 64, "an event is a line");

  // The same moment on both clocks.
  struct Anchor {
    std::int64_t ns, count;
  };

  // Whether the counters of all cores agree and never stop: Linux uses them for its time only then.
  static bool has_counter() {
    char name[16] = {};
    if (std::FILE* file = std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r")) {
      if (std::fgets(name, sizeof name, file) == nullptr) name[0] = 0;
      std::fclose(file);
    }
    return std::strcmp(name, "tsc\n") == 0;
  }

  // The most precise of several attempts: the one that took the least time.
  Anchor anchor() const {
    Anchor best{};
    std::int64_t least = -1;
    for (int i = 0; i < 8; ++i) {
      const std::int64_t before = now(), ns = now_ns(), passed = now() - before;
      if (least >= 0 && passed >= least) continue;
      least = passed;
      best = {ns, before + passed / 2};
    }
    return best;
  }

  std::int64_t monotonic_ns(std::int64_t count, const Anchor& until) const {
    if (!counts_ || until.count <= began_.count) return count;
    const double ns_per_count =
        static_cast<double>(until.ns - began_.ns) / static_cast<double>(until.count - began_.count);
    return began_.ns + static_cast<std::int64_t>(static_cast<double>(count - began_.count) * ns_per_count);
  }

  void add(const blink_event& event) {
    events_[next_].event = event;
    if (++next_ == room_) next_ = 0;
    ++recorded_;
    __builtin_prefetch(&events_[next_], 1);
  }

  std::unique_ptr<Slot[]> events_;
  std::size_t room_ = 0, next_ = 0;
  std::uint64_t recorded_ = 0;
  bool counts_ = false;
  Anchor began_{};
  std::int64_t call_began_ = 0, mark_ = 0, least_bytes_ = 0;
  bool skipped_ = false;  // an execution of this call
};

}  // namespace blink
