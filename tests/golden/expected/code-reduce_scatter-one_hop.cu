// reduce_scatter among 4 GPUs of dgx-a100, by one_hop. Made by Blink; a change is lost when it is made again.
// ranks  0 = GPU 0, 1 = GPU 3, 2 = GPU 5, 3 = GPU 6
// rate   4/3 × 300 GB/s = 400 GB/s; optimal
// from   program d6e848b7468df277, forest baf36bfb07a82170, topology 671a9740491b33b5
// tree 0: 1/4 of S, block of GPU 0, root GPU 0; up 3→0 5→0 6→0
// tree 1: 1/4 of S, block of GPU 3, root GPU 3; up 0→3 5→3 6→3
// tree 2: 1/4 of S, block of GPU 5, root GPU 5; up 0→5 3→5 6→5
// tree 3: 1/4 of S, block of GPU 6, root GPU 6; up 0→6 3→6 5→6

#include "blink/walk.h"

namespace {
namespace reduce_scatter {
using namespace blink;

// GPU 0, lane 0.
//   tree 0, root: combines its own, GPU 3's, GPU 5's and GPU 6's and keeps the result.
template <class Wire>
BLINK_DEVICE void rank0_lane0(Walk<Wire>& walk) {
  enum : End { from_gpu3, from_gpu5, from_gpu6 };
  walk.open(3, 6, 9);
  walk.contributors(4);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree0.chunks + 1);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv_reduce_copy(tree0, tick - 1, ends(from_gpu3, from_gpu5, from_gpu6), 0, complete);
  }
  walk.close();
}

// GPU 0, lane 1.
//   tree 1: sends its own to GPU 3.
template <class Wire>
BLINK_DEVICE void rank0_lane1(Walk<Wire>& walk) {
  enum : End { to_gpu3 };
  walk.open(0);
  const Slice tree1 = walk.slice(1, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree1.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree1, tick, ends(to_gpu3));
  }
  walk.close();
}

// GPU 0, lane 2.
//   tree 2: sends its own to GPU 5.
template <class Wire>
BLINK_DEVICE void rank0_lane2(Walk<Wire>& walk) {
  enum : End { to_gpu5 };
  walk.open(1);
  const Slice tree2 = walk.slice(2, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree2.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree2, tick, ends(to_gpu5));
  }
  walk.close();
}

// GPU 0, lane 3.
//   tree 3: sends its own to GPU 6.
template <class Wire>
BLINK_DEVICE void rank0_lane3(Walk<Wire>& walk) {
  enum : End { to_gpu6 };
  walk.open(2);
  const Slice tree3 = walk.slice(3, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree3.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree3, tick, ends(to_gpu6));
  }
  walk.close();
}

// GPU 3, lane 0.
//   tree 0: sends its own to GPU 0.
template <class Wire>
BLINK_DEVICE void rank1_lane0(Walk<Wire>& walk) {
  enum : End { to_gpu0 };
  walk.open(3);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree0.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree0, tick, ends(to_gpu0));
  }
  walk.close();
}

// GPU 3, lane 1.
//   tree 1, root: combines GPU 0's, its own, GPU 5's and GPU 6's and keeps the result.
template <class Wire>
BLINK_DEVICE void rank1_lane1(Walk<Wire>& walk) {
  enum : End { from_gpu0, from_gpu5, from_gpu6 };
  walk.open(0, 7, 10);
  walk.contributors(4);
  const Slice tree1 = walk.slice(1, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree1.chunks + 1);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv_reduce_copy(tree1, tick - 1, ends(from_gpu0, from_gpu5, from_gpu6), 1, complete);
  }
  walk.close();
}

// GPU 3, lane 2.
//   tree 2: sends its own to GPU 5.
template <class Wire>
BLINK_DEVICE void rank1_lane2(Walk<Wire>& walk) {
  enum : End { to_gpu5 };
  walk.open(4);
  const Slice tree2 = walk.slice(2, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree2.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree2, tick, ends(to_gpu5));
  }
  walk.close();
}

// GPU 3, lane 3.
//   tree 3: sends its own to GPU 6.
template <class Wire>
BLINK_DEVICE void rank1_lane3(Walk<Wire>& walk) {
  enum : End { to_gpu6 };
  walk.open(5);
  const Slice tree3 = walk.slice(3, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree3.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree3, tick, ends(to_gpu6));
  }
  walk.close();
}

// GPU 5, lane 0.
//   tree 0: sends its own to GPU 0.
template <class Wire>
BLINK_DEVICE void rank2_lane0(Walk<Wire>& walk) {
  enum : End { to_gpu0 };
  walk.open(6);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree0.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree0, tick, ends(to_gpu0));
  }
  walk.close();
}

// GPU 5, lane 1.
//   tree 1: sends its own to GPU 3.
template <class Wire>
BLINK_DEVICE void rank2_lane1(Walk<Wire>& walk) {
  enum : End { to_gpu3 };
  walk.open(7);
  const Slice tree1 = walk.slice(1, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree1.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree1, tick, ends(to_gpu3));
  }
  walk.close();
}

// GPU 5, lane 2.
//   tree 2, root: combines GPU 0's, GPU 3's, its own and GPU 6's and keeps the result.
template <class Wire>
BLINK_DEVICE void rank2_lane2(Walk<Wire>& walk) {
  enum : End { from_gpu0, from_gpu3, from_gpu6 };
  walk.open(1, 4, 11);
  walk.contributors(4);
  const Slice tree2 = walk.slice(2, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree2.chunks + 1);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv_reduce_copy(tree2, tick - 1, ends(from_gpu0, from_gpu3, from_gpu6), 2, complete);
  }
  walk.close();
}

// GPU 5, lane 3.
//   tree 3: sends its own to GPU 6.
template <class Wire>
BLINK_DEVICE void rank2_lane3(Walk<Wire>& walk) {
  enum : End { to_gpu6 };
  walk.open(8);
  const Slice tree3 = walk.slice(3, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree3.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree3, tick, ends(to_gpu6));
  }
  walk.close();
}

// GPU 6, lane 0.
//   tree 0: sends its own to GPU 0.
template <class Wire>
BLINK_DEVICE void rank3_lane0(Walk<Wire>& walk) {
  enum : End { to_gpu0 };
  walk.open(9);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree0.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree0, tick, ends(to_gpu0));
  }
  walk.close();
}

// GPU 6, lane 1.
//   tree 1: sends its own to GPU 3.
template <class Wire>
BLINK_DEVICE void rank3_lane1(Walk<Wire>& walk) {
  enum : End { to_gpu3 };
  walk.open(10);
  const Slice tree1 = walk.slice(1, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree1.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree1, tick, ends(to_gpu3));
  }
  walk.close();
}

// GPU 6, lane 2.
//   tree 2: sends its own to GPU 5.
template <class Wire>
BLINK_DEVICE void rank3_lane2(Walk<Wire>& walk) {
  enum : End { to_gpu5 };
  walk.open(11);
  const Slice tree2 = walk.slice(2, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree2.chunks);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.send(tree2, tick, ends(to_gpu5));
  }
  walk.close();
}

// GPU 6, lane 3.
//   tree 3, root: combines GPU 0's, GPU 3's, GPU 5's and its own and keeps the result.
template <class Wire>
BLINK_DEVICE void rank3_lane3(Walk<Wire>& walk) {
  enum : End { from_gpu0, from_gpu3, from_gpu5 };
  walk.open(2, 5, 8);
  walk.contributors(4);
  const Slice tree3 = walk.slice(3, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree3.chunks + 1);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv_reduce_copy(tree3, tick - 1, ends(from_gpu0, from_gpu3, from_gpu5), 3, complete);
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

}  // namespace reduce_scatter
}  // namespace

BLINK_ENTRY(blink_reduce_scatter_simple, Simple, reduce_scatter::run)
BLINK_ENTRY(blink_reduce_scatter_ll, LL, reduce_scatter::run)
BLINK_ENTRY(blink_reduce_scatter_ll128, LL128, reduce_scatter::run)
BLINK_COPY_ENTRY(blink_reduce_scatter_copies, reduce_scatter::run)

BLINK_FOLD_ENTRY(blink_fold)
