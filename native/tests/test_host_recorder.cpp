// The recorder of the host engine: the events of calls, executions and waits, dropped events, and no events when
// disabled.
// Sanitizers: address, thread.
#include <algorithm>
#include <vector>

#include "calls.h"
#include "check.h"
#include "ranks.h"

namespace {

using namespace blink_test;

constexpr blink_shape kShape{3, 256, 1 << 20, 64 * BLINK_BLOCK_BYTES, 4096};
constexpr std::int64_t kPlenty = 1 << 12;

struct Recorded {
  std::vector<blink_event> events;
  std::uint64_t dropped = 0;
  long of(std::int32_t kind) const {
    return std::count_if(events.begin(), events.end(), [&](const blink_event& event) { return event.kind == kind; });
  }
};

Recorded recorded(const blink_comm* comm, std::int64_t room = kPlenty) {
  Recorded found;
  found.events.resize(static_cast<std::size_t>(room));
  found.events.resize(static_cast<std::size_t>(blink_recorded(comm, found.events.data(), room, &found.dropped)));
  return found;
}

// 300 elements in chunks of 16: three slices of 100, of 7 chunks. A rank has a role for the slice that it reduces, and
// for each of the two others one that sends and one that receives.
constexpr long kExecutions = 7 * (1 + 2 * 2);

// Checks one call: all events are within it, none is before its time, and each byte occurs once.
void check_call(const std::vector<blink_event>& events, const Call& made, std::uint64_t sequence, long executions) {
  const auto call = std::find_if(events.begin(), events.end(), [&](const blink_event& event) {
    return event.kind == BLINK_EVENT_CALL && event.sequence == sequence;
  });
  if (!expect(call != events.end(), "call %lu is missing", static_cast<unsigned long>(sequence))) return;
  expect(call->signature == blink_op_signature(made.op()) && call->amount == 300 && call->detail == BLINK_OK, "a call has another number");
  long found = 0;
  std::int64_t bytes = 0, before = call->begin_ns;
  for (const blink_event& event : events) {
    if (event.sequence != sequence || event.kind == BLINK_EVENT_CALL) continue;
    expect(call->begin_ns <= event.begin_ns && event.begin_ns <= event.end_ns && event.end_ns <= call->end_ns,
           "an event is not within its call");
    if (event.kind == BLINK_EVENT_WAIT) {
      expect(event.peer >= 0 && event.peer < 3 && event.detail != BLINK_WAITS_NOT && event.role == -1, "a wait");
      continue;
    }
    expect(event.begin_ns >= before, "executions overlap");
    expect(event.role >= 0 && event.chunk >= 0 && event.chunk < 7 && event.peer == -1, "an execution");
    before = event.end_ns;
    bytes += event.amount;
    ++found;
  }
  expect(found == executions, "%ld executions, expected %ld", found, executions);
  expect(executions == 0 || bytes == 5 * 100 * 4, "%ld bytes", static_cast<long>(bytes));
}

void test_calls_and_executions() {
  const Room room(kShape, 4096, 4);
  as_threads(room, [&](blink_comm* comm, int rank) {
    Call call(room, comm, rank, {});
    call.sum(1);
    expect(recorded(comm).events.empty(), "the recorder is on at first");
    expect(blink_record(comm, kPlenty, 0) == BLINK_OK, "it cannot be switched on");
    for (std::uint32_t i = 2; i < 5; ++i) call.sum(i);
    const Recorded found = recorded(comm);
    expect(found.of(BLINK_EVENT_CALL) == 3 && found.dropped == 0, "three calls");
    for (std::uint64_t sequence = 2; sequence < 5; ++sequence) check_call(found.events, call, sequence, kExecutions);
    expect(recorded(comm, 5).events.size() == 5, "more than there is room for");
    expect(blink_record(comm, 0, 0) == BLINK_OK, "it cannot be switched off");
    call.sum(6);
    expect(recorded(comm).events.empty() && recorded(comm).dropped == 0, "the recorder continues");
  });
}

void test_the_oldest_are_dropped() {
  const Room room(kShape, 4096, 4);
  as_threads(room, [&](blink_comm* comm, int rank) {
    Call call(room, comm, rank, {});
    constexpr std::int64_t kFew = 2 * kExecutions;
    expect(blink_record(comm, kFew, 0) == BLINK_OK, "it cannot be switched on");
    for (std::uint32_t i = 1; i < 9; ++i) call.sum(i);
    const Recorded found = recorded(comm);
    expect(static_cast<std::int64_t>(found.events.size()) == kFew, "it is full");
    expect(found.dropped >= 8 * (kExecutions + 1) - kFew, "%lu dropped", static_cast<unsigned long>(found.dropped));
    expect(found.events.back().kind == BLINK_EVENT_CALL && found.events.back().sequence == 8, "the last is the newest");
    expect(std::is_sorted(found.events.begin(), found.events.end(),
                          [](const blink_event& a, const blink_event& b) { return a.end_ns < b.end_ns; }),
           "events are not in the order in which they ended");
  });
}

// The test's chunks have 64 bytes.
void test_small_executions_are_left_out() {
  const Room room(kShape, 4096, 4);
  as_threads(room, [&](blink_comm* comm, int rank) {
    Call call(room, comm, rank, {});
    expect(blink_record(comm, kPlenty, 65) == BLINK_OK, "it cannot be switched on");
    call.sum(1);
    const Recorded found = recorded(comm);
    expect(found.of(BLINK_EVENT_CALL) == 1 && found.of(BLINK_EVENT_EXECUTION) == 0, "more than a call");
    check_call(found.events, call, 1, 0);
    expect(blink_record(comm, kPlenty, 64) == BLINK_OK, "it cannot be switched on again");
    call.sum(2);
    check_call(recorded(comm).events, call, 2, kExecutions);
  });
}

// Rank 0 calls last, after the segment shows that the others wait for it.
void test_a_long_wait_names_whom_it_is_for() {
  const Room room(kShape, 4096, 4);
  as_threads(room, [&](blink_comm* comm, int rank) {
    Call call(room, comm, rank, {});
    blink_record(comm, kPlenty, 0);
    std::vector<blink_status> statuses(3);
    const auto waits = [&](int other) {
      blink_describe(room.segment().base(), room.segment().bytes(), statuses.data(), 3);
      return statuses[static_cast<std::size_t>(other)].waits != BLINK_WAITS_NOT;
    };
    while (rank == 0 && !(waits(1) && waits(2))) usleep(1000);
    call.sum(1);
    const Recorded found = recorded(comm);
    const bool waited = std::any_of(found.events.begin(), found.events.end(), [](const blink_event& event) {
      return event.kind == BLINK_EVENT_WAIT && event.peer == 0 && event.sequence == 1;
    });
    expect(rank == 0 || waited, "rank %d has no wait for rank 0", rank);
    check_call(found.events, call, 1, kExecutions);
  });
}

void test_steps_leave_the_same_events() {
  const Room room(kShape, 4096, 4);
  as_threads(room, [&](blink_comm* comm, int rank) {
    Call call(room, comm, rank, {});
    blink_record(comm, kPlenty, 0);
    for (std::uint64_t sequence = 1; sequence < 4; ++sequence) {
      int code = call.start();
      for (; code == BLINK_AGAIN; code = blink_op_step(call.op(), 0)) sched_yield();
      if (!expect(code == BLINK_OK, "a call in steps fails")) return;
      check_call(recorded(comm).events, call, sequence, kExecutions);
    }
    expect(recorded(comm).of(BLINK_EVENT_WAIT) == 0, "steps do not wait");
  });
}

void test_small_messages_and_failed_calls() {
  const Room room(kShape, 4096, 4);
  as_threads(room, [&](blink_comm* comm, int rank) {
    CallOptions options;
    options.small = true;
    Call call(room, comm, rank, options);
    blink_record(comm, kPlenty, 0);
    call.sum(1);
    check_call(recorded(comm).events, call, 1, 5);
    if (rank == 0) return;
    expect(call.run(20'000) == BLINK_DEADLINE, "rank 0 has come");
    const blink_event last = recorded(comm).events.back();
    expect(last.kind == BLINK_EVENT_CALL && last.sequence == 2 && last.detail == BLINK_DEADLINE,
           "a call that failed does not say so");
  });
}

void test_what_makes_no_sense_is_refused() {
  const Room room(kShape, 4096, 4);
  blink_comm* comm = room.attach(0, false);
  expect(blink_record(comm, -1, 0) == BLINK_INVALID, "fewer than none");
  expect(blink_record(comm, BLINK_MOST_EVENTS + 1, 0) == BLINK_INVALID, "more events than allowed");
  expect(recorded(comm).events.empty(), "something was recorded");
  blink_detach(comm);
}

}  // namespace

int main() {
  limit_seconds(280);
  test_calls_and_executions();
  test_the_oldest_are_dropped();
  test_small_executions_are_left_out();
  test_a_long_wait_names_whom_it_is_for();
  test_steps_leave_the_same_events();
  test_small_messages_and_failed_calls();
  test_what_makes_no_sense_is_refused();
  return verdict();
}
