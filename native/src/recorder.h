// What a rank did, and when: a ring of events in its own memory.
//
// Off, it costs a branch per call, execution and wait that outlasts its first looks. On, it looks at a clock once per
// call and execution, and twice per recorded wait: an execution begins where the one before it ended. Small calls take a
// microsecond and a look at CLOCK_MONOTONIC 30 ns, so the clock is the processor's own counter wherever Linux itself
// tells the time by it; that is fitted to CLOCK_MONOTONIC when the events are read.
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

  // Keeps the last `events` from here on, of executions those whose role has chunks of `least_bytes` or more; what was
  // kept is gone. false: there is no memory.
  bool start(std::size_t events, std::int64_t least_bytes) {
    room_ = next_ = 0;
    recorded_ = 0;
    events_.reset(events == 0 ? nullptr : new (std::nothrow) Slot[events]());  // written, so no page is missing
    if (events != 0 && events_ == nullptr) return false;
    counts_ = events != 0 && has_counter();
    began_ = anchor();
    least_bytes_ = least_bytes;
    room_ = events;
    return true;
  }

  // The oldest first; returns how many of them there were room for.
  std::size_t read(blink_event* into, std::size_t room, std::uint64_t& dropped) const {
    const std::size_t kept = recorded_ < room_ ? static_cast<std::size_t>(recorded_) : room_;
    const std::size_t given = kept < room ? kept : room;
    dropped = recorded_ - kept;
    const std::size_t first = kept < room_ ? 0 : next_;
    const Anchor until = anchor();
    for (std::size_t i = 0; i < given; ++i) {
      into[i] = events_[(first + i) % room_].event;
      into[i].begin_ns = monotonic_ns(into[i].begin_ns, until);
      into[i].end_ns = monotonic_ns(into[i].end_ns, until);
    }
    return given;
  }

  // On the clock that events are kept on.
  std::int64_t now() const {
#if defined(__x86_64__)
    if (counts_) return static_cast<std::int64_t>(__builtin_ia32_rdtsc());
#endif
    return now_ns();
  }

  // What follows begins now: a call, or more steps of one.
  void begin_call() {
    call_began_ = mark_ = now();
    skipped_ = false;
  }
  void go_on() { mark_ = now(); }

  // Whether an execution is kept, of a role whose largest chunk has so many bytes.
  bool keeps(std::int64_t bytes) {
    skipped_ = skipped_ || bytes < least_bytes_;
    return bytes >= least_bytes_;
  }

  void execution(std::uint64_t sequence, std::size_t role, std::int64_t chunk, std::int64_t bytes) {
    const std::int64_t ended = now();
    add({mark_, ended, sequence, 0, bytes, chunk, static_cast<std::int32_t>(role), -1, BLINK_EVENT_EXECUTION, 0, 0});
    mark_ = ended;
  }

  // One that is over. Where others are waited for before the first execution, that begins afterwards.
  void wait(std::uint64_t sequence, std::int64_t began, std::int32_t waits, std::int32_t peer, std::int64_t chunk) {
    const std::int64_t ended = now();
    add({began, ended, sequence, 0, 0, chunk, -1, peer, BLINK_EVENT_WAIT, static_cast<std::int16_t>(waits), 0});
    if (waits == BLINK_WAITS_ENTRY && mark_ == call_began_) mark_ = ended;
  }

  // `at_once`: with its last execution, for there was nothing to do afterwards.
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

  // Whether all cores count alike, and always: then Linux goes by it.
  static bool has_counter() {
    char name[16] = {};
    if (std::FILE* file = std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r")) {
      if (std::fgets(name, sizeof name, file) == nullptr) name[0] = 0;
      std::fclose(file);
    }
    return std::strcmp(name, "tsc\n") == 0;
  }

  // Of some tries the one in which least time passed.
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
