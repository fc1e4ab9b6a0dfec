// broadcast (root GPU 2) among 4 GPUs of dgx-1v, by blink. Made by Blink; a change is lost when it is made again.
// ranks  0 = GPU 0, 1 = GPU 1, 2 = GPU 2, 3 = GPU 3
// rate   4 × 25 GB/s = 100 GB/s; optimal
// from   program 3c46a14dad9ff63e, forest 8c7f6abb45e096fa, topology e4821f6f726f5f7a
// tree 0: 1/4 of S, root GPU 2; down 2→1→3→0
// tree 1: 1/4 of S, root GPU 2; down 2→3→1→0
// tree 2: 1/4 of S, root GPU 2; down 2→3→0→1
// tree 3: 1/4 of S, root GPU 2; down 2→0 2→1 0→3

#define BLINK_MOVES_ONLY  // nothing is combined
#include "blink/walk.h"

namespace {
namespace broadcast {
using namespace blink;

// GPU 0, lane 0.
//   tree 0: keeps what GPU 3 sends.
template <class Wire>
BLINK_DEVICE void rank0_lane0(Walk<Wire>& walk) {
  enum : End { from_gpu3 };
  walk.open(9);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 4);  // 0 … 1/4 of the block
  const Word end = latest(tree0.chunks + 3);
  for (Word tick = 3; tick < end && walk.running(); ++tick) {
    walk.recv(tree0, tick - 3, from_gpu3);
  }
  walk.close();
}

// GPU 0, lane 1.
//   tree 1: keeps what GPU 1 sends.
template <class Wire>
BLINK_DEVICE void rank0_lane1(Walk<Wire>& walk) {
  enum : End { from_gpu1 };
  walk.open(2);
  const Slice tree1 = walk.slice(0, 0, 1, 4, 1, 2);  // 1/4 … 1/2 of the block
  const Word end = latest(tree1.chunks + 3);
  for (Word tick = 3; tick < end && walk.running(); ++tick) {
    walk.recv(tree1, tick - 3, from_gpu1);
  }
  walk.close();
}

// GPU 0, lane 2.
//   tree 2: keeps what GPU 3 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank0_lane2(Walk<Wire>& walk) {
  enum : End { from_gpu3, to_gpu1 };
  walk.open(10, 0);
  const Slice tree2 = walk.slice(0, 0, 1, 2, 3, 4);  // 1/2 … 3/4 of the block
  const Word end = latest(tree2.chunks + 2);
  for (Word tick = 2; tick < end && walk.running(); ++tick) {
    walk.recv_copy_send(tree2, tick - 2, from_gpu3, ends(to_gpu1));
  }
  walk.close();
}

// GPU 0, lane 3.
//   tree 3: keeps what GPU 2 sends and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank0_lane3(Walk<Wire>& walk) {
  enum : End { from_gpu2, to_gpu3 };
  walk.open(4, 1);
  const Slice tree3 = walk.slice(0, 0, 3, 4, 1, 1);  // 3/4 … 1 of the block
  const Word end = latest(tree3.chunks + 1);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv_copy_send(tree3, tick - 1, from_gpu2, ends(to_gpu3));
  }
  walk.close();
}

// GPU 1, lane 0.
//   tree 0: keeps what GPU 2 sends and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank1_lane0(Walk<Wire>& walk) {
  enum : End { from_gpu2, to_gpu3 };
  walk.open(5, 3);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 4);  // 0 … 1/4 of the block
  const Word end = latest(tree0.chunks + 1);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv_copy_send(tree0, tick - 1, from_gpu2, ends(to_gpu3));
  }
  walk.close();
}

// GPU 1, lane 1.
//   tree 1: keeps what GPU 3 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank1_lane1(Walk<Wire>& walk) {
  enum : End { from_gpu3, to_gpu0 };
  walk.open(11, 2);
  const Slice tree1 = walk.slice(0, 0, 1, 4, 1, 2);  // 1/4 … 1/2 of the block
  const Word end = latest(tree1.chunks + 2);
  for (Word tick = 2; tick < end && walk.running(); ++tick) {
    walk.recv_copy_send(tree1, tick - 2, from_gpu3, ends(to_gpu0));
  }
  walk.close();
}

// GPU 1, lane 2.
//   tree 2: keeps what GPU 0 sends.
template <class Wire>
BLINK_DEVICE void rank1_lane2(Walk<Wire>& walk) {
  enum : End { from_gpu0 };
  walk.open(0);
  const Slice tree2 = walk.slice(0, 0, 1, 2, 3, 4);  // 1/2 … 3/4 of the block
  const Word end = latest(tree2.chunks + 3);
  for (Word tick = 3; tick < end && walk.running(); ++tick) {
    walk.recv(tree2, tick - 3, from_gpu0);
  }
  walk.close();
}

// GPU 1, lane 3.
//   tree 3: keeps what GPU 2 sends.
template <class Wire>
BLINK_DEVICE void rank1_lane3(Walk<Wire>& walk) {
  enum : End { from_gpu2 };
  walk.open(6);
  const Slice tree3 = walk.slice(0, 0, 3, 4, 1, 1);  // 3/4 … 1 of the block
  const Word end = latest(tree3.chunks + 1);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv(tree3, tick - 1, from_gpu2);
  }
  walk.close();
}

// GPU 2, lane 0.
//   tree 0, root: keeps its own and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank2_lane0(Walk<Wire>& walk) {
  enum : End { to_gpu1 };
  walk.open(5);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 4);  // 0 … 1/4 of the block
  const Word end = latest(tree0.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.copy_send(tree0, tick, ends(to_gpu1));
  }
  walk.close();
}

// GPU 2, lane 1.
//   tree 1, root: keeps its own and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank2_lane1(Walk<Wire>& walk) {
  enum : End { to_gpu3 };
  walk.open(7);
  const Slice tree1 = walk.slice(0, 0, 1, 4, 1, 2);  // 1/4 … 1/2 of the block
  const Word end = latest(tree1.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.copy_send(tree1, tick, ends(to_gpu3));
  }
  walk.close();
}

// GPU 2, lane 2.
//   tree 2, root: keeps its own and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank2_lane2(Walk<Wire>& walk) {
  enum : End { to_gpu3 };
  walk.open(8);
  const Slice tree2 = walk.slice(0, 0, 1, 2, 3, 4);  // 1/2 … 3/4 of the block
  const Word end = latest(tree2.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.copy_send(tree2, tick, ends(to_gpu3));
  }
  walk.close();
}

// GPU 2, lane 3.
//   tree 3, root: keeps its own and sends it to GPU 0 and GPU 1.
template <class Wire>
BLINK_DEVICE void rank2_lane3(Walk<Wire>& walk) {
  enum : End { to_gpu0, to_gpu1 };
  walk.open(4, 6);
  const Slice tree3 = walk.slice(0, 0, 3, 4, 1, 1);  // 3/4 … 1 of the block
  const Word end = latest(tree3.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.copy_send(tree3, tick, ends(to_gpu0, to_gpu1));
  }
  walk.close();
}

// GPU 3, lane 0.
//   tree 0: keeps what GPU 1 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank3_lane0(Walk<Wire>& walk) {
  enum : End { from_gpu1, to_gpu0 };
  walk.open(3, 9);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 4);  // 0 … 1/4 of the block
  const Word end = latest(tree0.chunks + 2);
  for (Word tick = 2; tick < end && walk.running(); ++tick) {
    walk.recv_copy_send(tree0, tick - 2, from_gpu1, ends(to_gpu0));
  }
  walk.close();
}

// GPU 3, lane 1.
//   tree 1: keeps what GPU 2 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank3_lane1(Walk<Wire>& walk) {
  enum : End { from_gpu2, to_gpu1 };
  walk.open(7, 11);
  const Slice tree1 = walk.slice(0, 0, 1, 4, 1, 2);  // 1/4 … 1/2 of the block
  const Word end = latest(tree1.chunks + 1);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv_copy_send(tree1, tick - 1, from_gpu2, ends(to_gpu1));
  }
  walk.close();
}

// GPU 3, lane 2.
//   tree 2: keeps what GPU 2 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank3_lane2(Walk<Wire>& walk) {
  enum : End { from_gpu2, to_gpu0 };
  walk.open(8, 10);
  const Slice tree2 = walk.slice(0, 0, 1, 2, 3, 4);  // 1/2 … 3/4 of the block
  const Word end = latest(tree2.chunks + 1);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv_copy_send(tree2, tick - 1, from_gpu2, ends(to_gpu0));
  }
  walk.close();
}

// GPU 3, lane 3.
//   tree 3: keeps what GPU 0 sends.
template <class Wire>
BLINK_DEVICE void rank3_lane3(Walk<Wire>& walk) {
  enum : End { from_gpu0 };
  walk.open(1);
  const Slice tree3 = walk.slice(0, 0, 3, 4, 1, 1);  // 3/4 … 1 of the block
  const Word end = latest(tree3.chunks + 2);
  for (Word tick = 2; tick < end && walk.running(); ++tick) {
    walk.recv(tree3, tick - 2, from_gpu0);
  }
  walk.close();
}

constexpr uint32_t kLanes = 4;

template <class Wire>
BLINK_DEVICE void run(Walk<Wire>& walk, uint32_t rank, uint32_t lane) {
  switch (rank * kLanes + lane) {
    case 0: return rank0_lane0(walk);
    case 1: return rank0_lane1(walk);
    case 2: return rank0_lane2(walk);
    case 3: return rank0_lane3(walk);
    case 4: return rank1_lane0(walk);
    case 5: return rank1_lane1(walk);
    case 6: return rank1_lane2(walk);
    case 7: return rank1_lane3(walk);
    case 8: return rank2_lane0(walk);
    case 9: return rank2_lane1(walk);
    case 10: return rank2_lane2(walk);
    case 11: return rank2_lane3(walk);
    case 12: return rank3_lane0(walk);
    case 13: return rank3_lane1(walk);
    case 14: return rank3_lane2(walk);
    case 15: return rank3_lane3(walk);
  }
}

}  // namespace broadcast
}  // namespace

BLINK_ENTRY(blink_broadcast_simple, Simple, broadcast::run)
BLINK_ENTRY(blink_broadcast_ll, LL, broadcast::run)
BLINK_ENTRY(blink_broadcast_ll128, LL128, broadcast::run)
BLINK_COPY_ENTRY(blink_broadcast_copies, broadcast::run)
