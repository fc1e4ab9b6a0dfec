// The bodies behind walk_host.h: the device layer's own code, with a block of one thread.
#include <new>

#include "blink/firing.h"

namespace {

using blink::device::State;

static_assert(sizeof(State) + sizeof(std::uint32_t) <= blink::kRoomBytes, "a walk has room for its state");
static_assert(alignof(State) <= 16, "a walk's room is aligned");

struct HostWalk {
  State state;
  std::uint32_t wire;
};

HostWalk& walk_in(void* room) { return *static_cast<HostWalk*>(room); }

template <class Wire>
bool fire(State& state, const blink::Slice& slice, blink::Word k, const blink::Firing& firing) {
  bool ready = true;
  for (std::uint32_t i = 0; i < firing.receives + firing.sends && ready; ++i) {
    const bool sending = i >= firing.receives;
    const blink::End end = sending ? firing.to[i - firing.receives] : firing.from[i];
    ready = blink::device::await_end<Wire>(state, i, end, sending);
  }
  return blink::device::fire<Wire>(state, ready, blink::device::chunk_of(state, slice, k), firing.receives,
                                   firing.sends, firing.turn, firing.keeps != 0, firing.divisor);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void blink_walk_begin(void* room, const blink::Call* call, uint32_t wire,
                                                             uint32_t lane, uint32_t part) {
  HostWalk& walk = *new (room) HostWalk;
  walk.wire = wire;
  blink::device::begin(walk.state, *call, lane, part);
}

__attribute__((visibility("default"))) void blink_walk_open(void* room, const uint32_t* connections, uint32_t count) {
  State& state = walk_in(room).state;
  for (uint32_t end = 0; end < count; ++end) state.at[end] = connections[end];
  blink::device::open(state, count);
}

__attribute__((visibility("default"))) void blink_walk_close(void* room) { blink::device::close(walk_in(room).state); }

__attribute__((visibility("default"))) blink::Word blink_walk_rounds(const void* room, blink::Word num,
                                                                     blink::Word den) {
  return blink::device::rounds_of(static_cast<const HostWalk*>(room)->state, num, den);
}

__attribute__((visibility("default"))) void blink_walk_slice(const void* room, blink::Word source_block,
                                                             blink::Word target_block, blink::Word start_num,
                                                             blink::Word start_den, blink::Word stop_num,
                                                             blink::Word stop_den, blink::Word rounds,
                                                             blink::Slice* slice) {
  *slice = blink::device::cut(static_cast<const HostWalk*>(room)->state, source_block, target_block, start_num,
                              start_den, stop_num, stop_den, rounds);
}

__attribute__((visibility("default"))) int blink_walk_fire(void* room, const blink::Slice* slice, blink::Word k,
                                                           const blink::Firing* firing) {
  HostWalk& walk = walk_in(room);
  switch (walk.wire) {
    case blink::Simple::kNumber: return fire<blink::Simple>(walk.state, *slice, k, *firing);
    case blink::LL::kNumber: return fire<blink::LL>(walk.state, *slice, k, *firing);
    default: return fire<blink::LL128>(walk.state, *slice, k, *firing);
  }
}

}  // extern "C"
