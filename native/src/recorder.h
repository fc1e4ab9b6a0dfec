// What a rank did, and when: a ring of events in its own memory.
//
// Off, it costs a branch per call, execution and wait that outlasts its first looks. On, it reads the clock once per
// execution and twice per call and recorded wait: an execution begins where the one before it ended.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "blink/host.h"

namespace blink {

class Recorder {
 public:
  bool on() const { return room_ != 0; }

  // Keeps the last `events` from here on; what was kept is gone. false: there is no memory.
  bool start(std::size_t events) {
    room_ = next_ = 0;
    recorded_ = 0;
    events_.reset(events == 0 ? nullptr : new (std::nothrow) blink_event[events]());  // written, so no page is missing
    if (events != 0 && events_ == nullptr) return false;
    room_ = events;
    return true;
  }

  // The oldest first; returns how many of them there were room for.
  std::size_t read(blink_event* into, std::size_t room, std::uint64_t& dropped) const {
    const std::size_t kept = recorded_ < room_ ? static_cast<std::size_t>(recorded_) : room_;
    const std::size_t given = kept < room ? kept : room;
    dropped = recorded_ - kept;
    const std::size_t first = kept < room_ ? 0 : next_;
    for (std::size_t i = 0; i < given; ++i) into[i] = events_[(first + i) % room_];
    return given;
  }

  static std::int64_t now_ns() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
  }

  // What follows begins now: a call, or more steps of one.
  void begin_call() { call_began_ns_ = mark_ns_ = now_ns(); }
  void go_on() { mark_ns_ = now_ns(); }

  void execution(std::uint64_t sequence, std::size_t role, std::int64_t chunk, std::int64_t bytes) {
    blink_event& event = add(BLINK_EVENT_EXECUTION, sequence, mark_ns_);
    event.amount = bytes;
    event.chunk = chunk;
    event.role = static_cast<std::int32_t>(role);
    mark_ns_ = event.end_ns;
  }

  // One that is over. Where others are waited for before the first execution, that begins afterwards.
  void wait(std::uint64_t sequence, std::int64_t began_ns, std::int32_t waits, std::int32_t peer, std::int64_t chunk) {
    blink_event& event = add(BLINK_EVENT_WAIT, sequence, began_ns);
    event.detail = waits;
    event.peer = peer;
    event.chunk = chunk;
    if (waits == BLINK_WAITS_ENTRY && mark_ns_ == call_began_ns_) mark_ns_ = event.end_ns;
  }

  void call(std::uint64_t sequence, std::uint64_t signature, std::uint64_t what, std::int64_t count, int code) {
    blink_event& event = add(BLINK_EVENT_CALL, sequence, call_began_ns_);
    event.signature = signature;
    event.what = what;
    event.amount = count;
    event.detail = code;
  }

 private:
  blink_event& add(std::int32_t kind, std::uint64_t sequence, std::int64_t began_ns) {
    blink_event& event = events_[next_];
    if (++next_ == room_) next_ = 0;
    ++recorded_;
    event = {began_ns, now_ns(), sequence, 0, 0, 0, -1, kind, 0, -1, -1};
    return event;
  }

  std::unique_ptr<blink_event[]> events_;
  std::size_t room_ = 0, next_ = 0;
  std::uint64_t recorded_ = 0;
  std::int64_t call_began_ns_ = 0, mark_ns_ = 0;
};

}  // namespace blink
