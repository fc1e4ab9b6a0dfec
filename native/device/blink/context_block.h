// The kernel context of a block with threads. Its state lies in the block's shared memory; what differs between threads,
// in registers.
#pragma once

#include "blink/execute.h"
#include "blink/context.h"

namespace blink {
namespace device {

// So many ends of either kind fit into a word.
constexpr uint32_t kPacked = 8;

// What the threads of a block share.
struct BlockMemory {
  State state;
  Slice slices[kMostSlices];
};

// The ends of an execution.
struct PackedEnds {
  Word from = 0, to = 0;  // 8 bits each
  bool noted = false;     // they are in the state, as there are too many of them
};

// Once per kernel and not once per execution: what a plan says is only numbers, so its code stays small.
template <class Wire>
BLINK_OUTLINE bool carry_out(State& state, const Slice& slice, const Word k, const Order order,
                             const PackedEnds ends) {
  if (Units<Wire>::kCounted && thread_index() >= workers(Wire::kNumber)) return publish_next(state);
  bool ready = true;
  for (uint32_t i = thread_index(); i < order.receives + order.sends; i += workers(Wire::kNumber)) {
    const bool sending = i >= order.receives;
    const Word packed = sending ? ends.to >> (8 * (i - order.receives)) : ends.from >> (8 * i);
    const End end = ends.noted ? state.at[i] : static_cast<End>(packed & 255);
    ready = await_end<Wire>(state, i, end, sending) && ready;
  }
  return execute<Wire>(state, ready, slice, k, order);
}

}  // namespace device

template <class Wire>
class ContextBase {
 public:
  BLINK_DEVICE ContextBase(device::BlockMemory& memory, const Call& call, uint32_t channel, uint32_t part)
      : state_(memory.state), slices_(memory.slices) {
    device::begin(state_, call, Wire::kNumber, channel, part);
  }
  ContextBase(const ContextBase&) = delete;
  ContextBase& operator=(const ContextBase&) = delete;

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
    device::PackedEnds ends;
    ends.noted = kFrom > device::kPacked || kTo > device::kPacked;
    if constexpr (kFrom > device::kPacked || kTo > device::kPacked) {
      constexpr int kReceives = kFrom;
      constexpr int kAll = kFrom + kTo;
      const int workers = static_cast<int>(device::workers(Wire::kNumber));
      const int thread = static_cast<int>(device::thread_index());
      for (int i = thread; thread < workers && i < kAll; i += workers) {
        state_.at[i] = i < kReceives ? pick(from, i) : pick(to, i - kReceives);
      }
      if (thread < workers) device::any_of_workers(Wire::kNumber, false);
    } else {
      ends.from = pack(from);
      ends.to = pack(to);
    }
    running_ = device::carry_out<Wire>(state_, slice, k, order, ends);
  }

 private:
  template <uint32_t kCount>
  BLINK_DEVICE static constexpr Word pack(const Ends<kCount>& list) {
    constexpr int kAll = kCount;
    Word packed = 0;
    BLINK_UNROLL
    for (int n = 0; n < kAll; ++n) packed |= static_cast<Word>(list.at[n]) << (8 * n);
    return packed;
  }

  // at[i] by comparisons with numbers that the compiler knows: an index would put the array into local memory.
  template <uint32_t kCount>
  BLINK_DEVICE static uint32_t pick(const Ends<kCount>& list, int i) {
    constexpr int kAll = kCount;
    uint32_t at = list.at[0];
    BLINK_UNROLL
    for (int n = 1; n < kAll; ++n) at = i == n ? list.at[n] : at;
    return at;
  }

  device::State& state_;
  Slice* const slices_;
  uint32_t count_ = 0;  // of slices
  Word num_ = 0, den_ = 0;
  bool running_ = true;
};

}  // namespace blink

// One block of a rank: channel number / parts, part number % parts.
#ifdef BLINK_CUDA
#define BLINK_ENTRY(name, Wire, function)                                                                         \
  extern "C" __global__ void __launch_bounds__(::blink::kMostThreads, ::blink::kBlocksAtOnce)                     \
      name(const __grid_constant__ ::blink::Call call) {                                                          \
    __shared__ ::blink::device::BlockMemory memory;                                                               \
    const uint32_t channel = blockIdx.x / call.parts;                                                             \
    ::blink::KernelContext<::blink::Wire> context(memory, call, channel, blockIdx.x % call.parts);                \
    function(context, call.rank, channel);                                                                        \
  }
#else  // for each of its threads
#define BLINK_ENTRY(name, Wire, function)                                                                         \
  extern "C" __attribute__((visibility("default"))) void name(const ::blink::Call* call, uint32_t block) {        \
    auto& memory = ::blink::device::block_state<::blink::device::BlockMemory>();                                  \
    const uint32_t channel = block / call->parts;                                                                 \
    ::blink::KernelContext<::blink::Wire> context(memory, *call, channel, block % call->parts);                   \
    function(context, call->rank, channel);                                                                       \
  }
#endif
