// The execution of a role for one chunk: it waits for all its ends, then moves the data, then advances the counters
// (heads of the messages read, tails of those written). Barriers separate the three steps. In blocks of several warps
// the publisher (state.h) performs the third from a notice, while the others continue.
#pragma once

#include "blink/cut.h"
#include "blink/fold.h"
#include "blink/rows.h"

namespace blink {
namespace device {

// Prepares end number i of the execution, `end` of the channel: stores its message's address, and waits for the
// message, or for room to send one. Called by one thread. False: given up.
template <class Wire>
BLINK_INLINE bool await_end(State& state, uint32_t i, End end, bool sending) {
  Side& side = state.sides[end];
  const Word position = side.position;
  state.at[i] = end;
  state.message[i] = side.messages + side.slot * state.message_bytes;
  state.position[i] = position;
  if (!sending && !Units<Wire>::kCounted) return true;  // the flags in the message show its arrival
  const Word* const counter = sending ? side.head : side.tail;
  const Word room = sending ? state.slots : 0;
  // Credit acquired earlier still holds, so most calls need no load.
  if (sending && side.seen_head + room >= position + 1) return true;
  Patience patience;
  // An acquire invalidates the first-level cache, so it follows the wait.
  while (load_relaxed(counter) + room < position + 1) {
    if (should_give_up(state, patience, i, sending)) return false;
  }
  const Word seen = Units<Wire>::kOrderedHead ? load_acquire(counter) : load_relaxed(counter);
  if (sending) side.seen_head = seen;
  return true;
}

// LL's flags repeat, so at intervals a message of any wire clears the rest of its slot's LL lines.
template <class Wire>
BLINK_INLINE void sweep(const State& state) {
  const Job& job = state.job;
  constexpr Word kEvery = Word{1} << 30;
  const uint32_t used = Wire::kNumber == LL::kNumber ? job.units : 0;
  for (uint32_t i = job.receives; i < job.receives + job.sends; ++i) {
    if (state.position[i] < kEvery || state.position[i] % kEvery >= state.slots) continue;
    const Connection& of = state.connections[state.sides[state.at[i]].connection];
    char* const lines = messages_of(state, of, LL::kNumber) + (state.position[i] % state.slots) * state.line_bytes;
    for (uint32_t unit = used + thread_index(); unit < state.line_bytes / 16; unit += threads()) {
      store_halves(lines + unit * 16, {0, 0});
    }
  }
}

BLINK_INLINE void advance(const State& state, Side& side) {
  ++side.position;
  if (++side.slot == state.slots) side.slot = 0;
}

BLINK_INLINE void step_back(const State& state, Side& side) {
  --side.position;
  side.slot = (side.slot == 0 ? state.slots : side.slot) - 1;
}

template <class Wire>
BLINK_INLINE void write_job(State& state, const Slice& slice, Word k, const Order& order) {
  const Chunk chunk = chunk_of(state, slice, k);
  const uint32_t divisor = order.completes && state.average != 0 ? state.contributors : 1;
  state.job = job_of<Wire>(chunk.source, order.keeps ? chunk.target : nullptr, chunk.bytes, order.receives,
                           order.sends, order.own_operand_index, divisor);
}

// One store per end, by the publisher, or by all threads in a block without one.
BLINK_OUTLINE void publish(State& state, const Notice& notice) {
  const uint32_t first = has_publisher(Simple::kNumber) ? thread_index() - workers(Simple::kNumber) : thread_index();
  const uint32_t step = has_publisher(Simple::kNumber) ? kWarp : threads();
  for (uint32_t i = first; i < notice.ends; i += step) {
    const End end = notice.at[i];
    const Side& side = state.sides[end];
    store_release(i < notice.receives ? side.head : side.tail, ++state.published[end]);
  }
}

// The publisher's part of an execution. False: the workers have given up.
BLINK_INLINE bool publish_next(State& state) {
  const uint32_t turn = state.publishers_turn;
  meet_at(kTold + turn, 2 * kWarp);
  const Notice& notice = state.notices[turn];
  const bool goes_on = notice.stops == 0;
  if (thread_index() % kWarp == 0) state.publishers_turn = turn ^ 1;
  publish(state, notice);
  converge();
  arrive_at(kFree + turn, 2 * kWarp);
  return goes_on;
}

// Called by the workers after a barrier that follows the notice.
BLINK_INLINE void tell(uint32_t turn) {
  if (thread_index() < kWarp) arrive_at(kTold + turn, 2 * kWarp);
}

BLINK_INLINE void write_notice_head(Notice& notice, uint32_t receives, uint32_t ends, uint32_t stops) {
  notice.receives = receives;
  notice.ends = ends;
  notice.stops = stops;
}

// Called by the workers; `ready`: this thread's ends are ready. False: given up.
template <class Wire>
BLINK_INLINE bool execute(State& state, bool ready, const Slice& slice, Word k, const Order& order) {
  constexpr bool kCounted = Units<Wire>::kCounted;
  const bool apart = has_publisher(Wire::kNumber);
  const uint32_t turn = state.workers_turn;
  Notice& notice = state.notices[turn];
  const uint32_t step = workers(Wire::kNumber);
  if (thread_index() == 0) write_job<Wire>(state, slice, k, order);
  if (apart && thread_index() < kWarp) meet_at(kFree + turn, 2 * kWarp);
  if (any_of_workers(Wire::kNumber, !ready)) {
    if (apart && thread_index() == 0) write_notice_head(notice, 0, 0, 1);
    if (apart) tell(turn);
    return false;
  }
  const bool moved = fold<Wire>(state);
  sweep<Wire>(state);
  const uint32_t receives = state.job.receives;
  const uint32_t ends = receives + state.job.sends;
  if (kCounted && thread_index() == 0) {
    write_notice_head(notice, receives, ends, 0);
    state.workers_turn = turn ^ 1;
  }
  // Before the barrier, so that a thread that waits for an end next sees the new position.
  for (uint32_t i = thread_index(); i < ends; i += step) {
    advance(state, state.sides[state.at[i]]);
    if (kCounted) notice.at[i] = state.at[i];
  }
  if (any_of_workers(Wire::kNumber, !moved)) {
    for (uint32_t i = thread_index(); i < ends; i += step) step_back(state, state.sides[state.at[i]]);
    return false;
  }
  if constexpr (kCounted) {
    if (apart) {
      tell(turn);
    } else {
      publish(state, notice);
    }
  } else {
    for (uint32_t i = thread_index(); i < receives; i += step) {
      const Side& side = state.sides[state.at[i]];
      if (Units<Wire>::kOrderedHead) {
        store_release(side.head, side.position);
      } else {
        store_relaxed(side.head, side.position);
      }
    }
  }
  return true;
}

}  // namespace device
}  // namespace blink
