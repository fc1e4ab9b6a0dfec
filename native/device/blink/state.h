// The state of a block: its channel's connections with their positions, the operands and results of the current
// execution, and the end of a wait without success.
//
// On the GPU the state is in shared memory: between two barriers one thread writes an entry, or all read it.
#pragma once

#include "blink/elements.h"
#include "blink/context.h"

namespace blink {
namespace device {

// One end of a connection, for one part. The position advances in step with the other end's.
struct Side {
  char* messages;  // in the memory of the wire
  Word* tail;
  Word* head;
  Word position;
  Word seen_head;  // acquired by this launch so far
  uint32_t slot;  // position % slots
  uint32_t connection;
};

// The data of the current execution.
struct Job {
  const char* own;  // operand number `own_operand_index`
  char* kept;       // nullptr: the result is not stored
  uint32_t bytes;
  uint32_t receives, sends;
  uint32_t own_operand_index;    // kNoOwnOperand: the own data are not an operand
  uint32_t divisor;
  uint32_t units;   // of the message
  uint32_t whole;   // the number of leading units that are whole words of the own data

  BLINK_INLINE bool joins() const { return own_operand_index != kNoOwnOperand; }
  BLINK_INLINE uint32_t operands() const { return receives + (joins() ? 1 : 0); }
  BLINK_INLINE uint32_t message(uint32_t operand) const { return operand > own_operand_index ? operand - 1 : operand; }
};

// An execution's counters to publish: heads of its receives, then tails of its sends, one message each.
struct Notice {
  uint32_t receives, ends;
  uint32_t stops;  // the workers have given up
  End at[kMostEnds];
};

struct State {
  const char* input;
  char* output;
  const Connection* connections;
  const uint32_t* abort;
  Status* status;
  Word scale;  // bits of the element type or of the accumulator, as scale_kind says
  Word count;
  Word chunk_bytes;
  Word message_bytes, line_bytes;  // bytes of a message of the wire, and of one of LL
  Word timeout_ns;
  uint32_t slots, parts, part, channel, wire;
  uint32_t dtype, op, item_bytes, scale_kind;
  uint32_t piece_bytes;
  uint32_t ends;
  uint32_t stopped;  // the block has given up
  uint32_t folding;  // number of threads that fold
  uint32_t average;  // of the call
  uint32_t contributors;

  // The current execution: its receives, then its sends.
  Job job;
  End at[kMostEnds];
  char* message[kMostEnds];
  Word position[kMostEnds];

  Side sides[kMostEnds];

  // The workers' next notice, and the publisher's; and the published messages of each end.
  Notice notices[2];
  uint32_t workers_turn, publishers_turn;
  Word published[kMostEnds];
};

// ---- division of work

// If messages are counted (Simple), the last warp of a block, the publisher, publishes the others' work: a release
// waits for all earlier writes, and the others, the workers, need not wait. They continue with the next message, and
// begin the one after it when this one is published. A block of one warp publishes its own work.
BLINK_INLINE bool has_publisher(uint32_t wire) { return wire == Simple::kNumber && threads() > kWarp; }
BLINK_INLINE uint32_t workers(uint32_t wire) { return has_publisher(wire) ? threads() - kWarp : threads(); }

// Barriers: one of the workers, and two pairs of the first warp and the publisher, one for each of the two notices:
// kTold when a notice has been written, kFree when it may be overwritten.
constexpr uint32_t kWorkers = 1, kTold = 2, kFree = 4;
BLINK_INLINE bool any_of_workers(uint32_t wire, bool yes) { return any_at(kWorkers, workers(wire), yes); }

// ---- beginning and end

BLINK_INLINE Word load_item(const char* at, uint32_t bytes) {
  if (bytes == 1) return load<uint8_t>(at);
  if (bytes == 2) return load<uint16_t>(at);
  if (bytes == 4) return load<uint32_t>(at);
  return load<Word>(at);
}

// Sets the operation and its scale: `bits`, or the element at `stored` if scale_kind is kScaleStored.
BLINK_INLINE void set_operation(State& state, uint32_t dtype, uint32_t op, uint32_t scale_kind, Word bits,
                                const char* stored) {
  state.dtype = dtype;
  state.op = dtype == BLINK_BOOL ? op_of_bools(op) : op;
  state.item_bytes = item_bytes(dtype);
  state.scale_kind = scale_kind;
  state.scale = scale_kind == kScaleStored ? load_item(stored, state.item_bytes) : bits;
}

BLINK_INLINE void begin(State& state, const Call& call, uint32_t wire, uint32_t channel, uint32_t part) {
  if (thread_index() == 0) {
    state.input = call.input;
    state.output = call.output;
    state.connections = call.connections;
    state.abort = call.abort;
    state.status = call.status;
    state.count = call.count;
    state.chunk_bytes = call.chunk_bytes;
    state.message_bytes = wire == Simple::kNumber ? call.slot_bytes : call.line_bytes;
    state.line_bytes = call.line_bytes;
    state.timeout_ns = call.timeout_ns;
    state.slots = call.slots;
    state.parts = call.parts;
    state.piece_bytes = call.piece_bytes;
    state.part = part;
    state.wire = wire;
    state.channel = channel;
    set_operation(state, call.dtype, call.op, call.scale_kind, call.scale, call.scale_at);
    state.average = call.average;
    state.contributors = 1;
    state.ends = 0;
    state.stopped = 0;
    state.folding = workers(wire);
    state.workers_turn = state.publishers_turn = 0;
  }
  barrier();
}

// The beginning of a part's messages; each wire has its own memory. The number of parts in the launch does not matter:
// programs of a communicator differ in parts, by their channels, and use the same connections in turn. All data that
// stay from launch to launch (messages, flags, counters, positions) belong to a part, so part p of a connection is a
// connection of its own. Both of its ends are in the same launches, those with more than p parts, since all ranks
// launch a program with the same number. Other launches leave it unchanged.
BLINK_INLINE char* messages_of(const State& state, const Connection& of, uint32_t wire) {
  if (wire == Simple::kNumber) return of.ring + static_cast<Word>(state.part) * state.slots * state.message_bytes;
  const Word before = 2 * static_cast<Word>(state.part) + (wire == LL128::kNumber ? 1 : 0);
  return of.lines + before * state.slots * state.line_bytes;
}

BLINK_INLINE void open_end(State& state, End end, uint32_t connection) {
  const Connection& of = state.connections[connection];
  Side& side = state.sides[end];
  side.messages = messages_of(state, of, state.wire);
  side.tail = of.tail + state.part * kStride;
  side.head = of.head + state.part * kStride;
  side.position = of.position[state.part * kStride];
  state.published[end] = side.position;
  side.seen_head = 0;
  side.slot = static_cast<uint32_t>(side.position % state.slots);
  side.connection = connection;
}

BLINK_OUTLINE void open(State& state, const uint32_t* connections, uint32_t ends) {
  if (thread_index() == 0) state.ends = ends;
  for (End end = thread_index(); end < ends; end += threads()) open_end(state, end, connections[end]);
  barrier();
  if (thread_index() < workers(state.wire)) return;
  for (uint32_t turn = 0; turn < 2; ++turn) arrive_at(kFree + turn, 2 * kWarp);
}

// Also called after the block has given up; the incomplete execution is then not counted.
BLINK_INLINE void close(State& state) {
  if (has_publisher(state.wire) && thread_index() < kWarp) {
    for (uint32_t turn = 0; turn < 2; ++turn) meet_at(kFree + turn, 2 * kWarp);
  }
  barrier();
  for (uint32_t end = thread_index(); end < state.ends; end += threads()) {
    const Side& side = state.sides[end];
    state.connections[side.connection].position[state.part * kStride] = side.position;
  }
}

// ---- waiting

// The first block of the rank that gives up stores the reason. `code` and `connection` are one word: a bit in the
// connection claims the record while the code is 0, and both are stored together after the rest.
BLINK_INLINE void give_up(State& state, uint32_t code, uint32_t connection, bool sending, Word position) {
  store_shared(state.stopped, code);
  Status* const status = state.status;
  if (status == nullptr) return;
  AnyWord* const first = reinterpret_cast<AnyWord*>(status);
  if (!claim(first, static_cast<Word>(connection | 0x80000000u) << 32)) return;
  status->sending = sending ? 1 : 0;
  status->channel = state.channel;
  status->position = position;
  store_release(first, code | static_cast<Word>(connection) << 32);
#ifdef BLINK_CUDA
  // A partial output must not pass for a result, so the stream reports an error. After an abort the caller knows.
  if (code == kTimedOut) __trap();
#endif
}

// A clock in one 32-bit register: ticks of about a millisecond, never 0.
BLINK_INLINE uint32_t coarse_now() { return static_cast<uint32_t>(now_ns() >> 20) | 1; }

// Checks the abort word and the timeout. Returns the coarse time at which the wait began; 0: given up.
BLINK_OUTLINE uint32_t look_around(State& state, uint32_t since, uint32_t i, bool sending) {
  if (load_shared(state.stopped) != 0) return 0;
  uint32_t code = kRunning;
  if (state.abort != nullptr && load_relaxed(state.abort) != 0) code = kAborted;
  const uint32_t now = coarse_now();
  if (since == 0) since = now;
  if (code == kRunning && state.timeout_ns != 0) {
    if (static_cast<Word>(now - since) << 20 >= state.timeout_ns) code = kTimedOut;
  }
  if (code == kRunning) return since;
  give_up(state, code, state.sides[state.at[i]].connection, sending, state.position[i]);
  return 0;
}

// The duration of a wait.
struct Patience {
  uint32_t spins = 0;
  uint32_t since = 0;  // 0: the clock has not been read
};

// To be called after each failed check of a wait: true if message number i of the execution must be given up.
BLINK_INLINE bool should_give_up(State& state, Patience& patience, uint32_t i, bool sending) {
  pause(patience.spins);
  if (++patience.spins % kSpinsPerLook != 0) return false;
  patience.since = look_around(state, patience.since, i, sending);
  return patience.since == 0;
}

}  // namespace device
}  // namespace blink
