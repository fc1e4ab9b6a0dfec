// The kernel context of a block with threads. Its state lies in the block's shared memory; what differs between threads,
// in registers.
#pragma once

#include "blink/execute.h"
#include "blink/context.h"

namespace blink {
namespace device {

// So many ends of either kind fit into a word.
constexpr uint32_t kPacked = 8;

// An execution of each tick.
struct Row {
  Word from, to;       // its ends, 8 bits each
  int32_t chunk;       // in the first tick; below 0: it begins later
  uint32_t first_end;  // of the list, where there are too many ends for that
  uint8_t slice;
  Order order;
};
// So many are kept in shared memory, which no acquire empties; the others are read again in every tick.
constexpr uint32_t kNearRows = 32;

// What the threads of a block share.
struct BlockMemory {
  State state;
  Slice slices[kMostSlices];
  Row rows[kNearRows];  // the first ones of the channel
};

// The ends of an execution, 8 bits each. If there are too many of them, `listed` has the receives', then the sends'.
struct PackedEnds {
  Word from = 0, to = 0;
  const uint8_t* listed = nullptr;
};

template <class Wire>
BLINK_OUTLINE bool carry_out(State& state, const Slice& slice, const Word k, const Order order,
                             const PackedEnds ends) {
  if (Units<Wire>::kCounted && thread_index() >= workers(Wire::kNumber)) return publish_next(state);
  bool ready = true;
  for (uint32_t i = thread_index(); i < order.receives + order.sends; i += workers(Wire::kNumber)) {
    const bool sending = i >= order.receives;
    const Word packed = sending ? ends.to >> (8 * (i - order.receives)) : ends.from >> (8 * i);
    const End end = ends.listed != nullptr ? ends.listed[i] : static_cast<End>(packed & 255);
    ready = await_end<Wire>(state, i, end, sending) && ready;
  }
  return execute<Wire>(state, ready, slice, k, order);
}

}  // namespace device

// Text that is run as it stands, by tests; kernels go by rows (rows.h).
template <class Wire>
class ContextBase {
 public:
  BLINK_DEVICE ContextBase(device::BlockMemory& memory, const Call& call, uint32_t channel, uint32_t part)
      : state_(memory.state), slices_(memory.slices) {
    device::begin(state_, call, Wire::kNumber, channel, part);
  }
  ContextBase(const ContextBase&) = delete;
  ContextBase& operator=(const ContextBase&) = delete;

  BLINK_DEVICE void program(uint32_t, uint32_t) {}
  template <class... Id>
  BLINK_DEVICE void open(Id... connections) {
    constexpr int kCount = sizeof...(Id);
    static_assert(kCount <= static_cast<int>(kMostEnds), "a channel opens at most 128 connections");
    uint32_t end = 0;
    if (device::thread_index() == 0) ((state_.at[end++] = connections), ...);
    device::open(state_, kCount);
  }
  BLINK_DEVICE void close() { device::close(state_); }
  // Before open().
  BLINK_DEVICE void contributors(uint32_t count) {
    if (device::thread_index() == 0) state_.contributors = count;
  }
  BLINK_DEVICE bool running() const { return running_; }

  BLINK_DEVICE void largest(Word num, Word den) {
    num_ = num;
    den_ = den;
  }
  // Divisions take long: each slice is cut by a warp of its own, side by side. open() makes all wait for them.
  BLINK_DEVICE const Slice& slice(Word source_block, Word target_block, Word start_num, Word start_den, Word stop_num,
                                  Word stop_den, Word turn = 0) {
    Slice& slice = slices_[count_];
    if (device::thread_index() == count_++ * device::kWarp % device::threads()) {
      const Word rounds = den_ == 0 ? 0 : device::rounds_of(state_, num_, den_);
      const Slice piece =
          device::cut(state_, source_block, target_block, start_num, start_den, stop_num, stop_den, turn, rounds);
      slice = piece;
    }
    return slice;
  }

 protected:
  template <uint32_t kFrom, uint32_t kTo>
  BLINK_DEVICE void execute(const Slice& slice, Word k, const Ends<kFrom>& from, uint32_t own_operand_index,
                            const Ends<kTo>& to, bool keeps, Completion completion) {
    if (k >= slice.chunks || !running_) return;
    const device::Order order = {kFrom, kTo, static_cast<uint8_t>(own_operand_index), keeps, completion == complete};
    uint8_t list[kFrom + kTo + 1];
    for (uint32_t i = 0; i < kFrom; ++i) list[i] = static_cast<uint8_t>(from.at[i]);
    for (uint32_t i = 0; i < kTo; ++i) list[kFrom + i] = static_cast<uint8_t>(to.at[i]);
    device::PackedEnds ends;
    ends.listed = list;
    running_ = device::carry_out<Wire>(state_, slice, k, order, ends);
  }

 private:
  device::State& state_;
  Slice* const slices_;
  uint32_t count_ = 0;  // of slices
  Word num_ = 0, den_ = 0;
  bool running_ = true;
};

}  // namespace blink
