// The bodies behind context_host.h and reduction.h: the device layer's own code, with a block of one thread.
#include <new>

#include "blink/execute.h"
#include "blink/reduce.h"

namespace {

using blink::device::State;

static_assert(sizeof(State) + sizeof(std::uint32_t) <= blink::kRoomBytes, "a context has room for its state");
static_assert(alignof(State) <= 16, "a context's room is aligned");

struct HostContext {
  State state;
  std::uint32_t wire;
};

HostContext& context_in(void* room) { return *static_cast<HostContext*>(room); }

template <class Wire>
bool execute(State& state, const blink::Slice& slice, blink::Word k, const blink::Execution& execution) {
  bool ready = true;
  for (std::uint32_t i = 0; i < execution.receives + execution.sends && ready; ++i) {
    const bool sending = i >= execution.receives;
    const blink::End end = sending ? execution.to[i - execution.receives] : execution.from[i];
    ready = blink::device::await_end<Wire>(state, i, end, sending);
  }
  state.contributors = execution.divisor;
  const blink::device::Order order = {static_cast<std::uint8_t>(execution.receives),
                                      static_cast<std::uint8_t>(execution.sends),
                                      static_cast<std::uint8_t>(execution.own_operand_index), execution.keeps != 0,
                                      execution.divisor > 1};
  return blink::device::execute<Wire>(state, ready, slice, k, order);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void blink_context_begin(void* room, const blink::Call* call, uint32_t wire,
                                                             uint32_t channel, uint32_t part) {
  HostContext& context = *new (room) HostContext;
  context.wire = wire;
  blink::device::begin(context.state, *call, wire, channel, part);
}

__attribute__((visibility("default"))) void blink_context_open(void* room, const uint32_t* connections,
                                                               uint32_t count) {
  State& state = context_in(room).state;
  for (uint32_t end = 0; end < count; ++end) state.at[end] = connections[end];
  blink::device::open(state, count);
}

__attribute__((visibility("default"))) void blink_context_close(void* room) {
  blink::device::close(context_in(room).state);
}

__attribute__((visibility("default"))) blink::Word blink_context_rounds(const void* room, blink::Word num,
                                                                     blink::Word den) {
  return blink::device::rounds_of(static_cast<const HostContext*>(room)->state, num, den);
}

__attribute__((visibility("default"))) void blink_context_slice(const void* room, blink::Word source_block,
                                                             blink::Word target_block, blink::Word start_num,
                                                             blink::Word start_den, blink::Word stop_num,
                                                             blink::Word stop_den, blink::Word turn,
                                                             blink::Word rounds, blink::Slice* slice) {
  *slice = blink::device::cut(static_cast<const HostContext*>(room)->state, source_block, target_block, start_num,
                              start_den, stop_num, stop_den, turn, rounds);
}

__attribute__((visibility("default"))) int blink_context_execute(void* room, const blink::Slice* slice, blink::Word k,
                                                           const blink::Execution* execution) {
  HostContext& context = context_in(room);
  switch (context.wire) {
    case blink::Simple::kNumber: return execute<blink::Simple>(context.state, *slice, k, *execution);
    case blink::LL::kNumber: return execute<blink::LL>(context.state, *slice, k, *execution);
    default: return execute<blink::LL128>(context.state, *slice, k, *execution);
  }
}

__attribute__((visibility("default"))) void blink_reduce(const blink::Reduction* reduction, uint32_t block) {
  State state;
  blink::device::reduce(state, *reduction, block);
}

}  // extern "C"
