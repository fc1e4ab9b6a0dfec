// allreduce among 4 GPUs of dgx-1v, by optimal. Made by Blink; a change is lost when it is made again.
// ranks  0 = GPU 1, 1 = GPU 4, 2 = GPU 5, 3 = GPU 6
// rate   2 × 25 GB/s = 50 GB/s; optimal
// from   program 632d7462024ba84d, forest 20af7d87adb22047, topology 038686c314e9956e
// tree 0: 1/2 of S, root GPU 5; up 1→5 4→5 6→5; down 5→1 5→4 5→6
// tree 1: 1/2 of S, root GPU 5; up 4→6 1→5 6→5; down 5→1 5→6→4

#include "blink/walk.h"

namespace {
namespace allreduce {
using namespace blink;

// GPU 1, lane 0.
//   tree 0: keeps what GPU 5 sends.
//   tree 0: sends its own to GPU 5.
template <class Wire>
BLINK_DEVICE void rank0_lane0(Walk<Wire>& walk) {
  enum : End { from_gpu5, to_gpu5 };
  walk.open(4, 0);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree0.chunks + 2);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.recv(tree0, tick - 2, from_gpu5);
    walk.send(tree0, tick, ends(to_gpu5));
  }
  walk.close();
}

// GPU 1, lane 1.
//   tree 1: keeps what GPU 5 sends.
//   tree 1: sends its own to GPU 5.
template <class Wire>
BLINK_DEVICE void rank0_lane1(Walk<Wire>& walk) {
  enum : End { from_gpu5, to_gpu5 };
  walk.open(5, 1);
  const Slice tree1 = walk.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree1.chunks + 3);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv(tree1, tick - 3, from_gpu5);
    walk.send(tree1, tick - 1, ends(to_gpu5));
  }
  walk.close();
}

// GPU 4, lane 0.
//   tree 0: keeps what GPU 5 sends.
//   tree 0: sends its own to GPU 5.
template <class Wire>
BLINK_DEVICE void rank1_lane0(Walk<Wire>& walk) {
  enum : End { from_gpu5, to_gpu5 };
  walk.open(6, 2);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree0.chunks + 2);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.recv(tree0, tick - 2, from_gpu5);
    walk.send(tree0, tick, ends(to_gpu5));
  }
  walk.close();
}

// GPU 4, lane 1.
//   tree 1: keeps what GPU 6 sends.
//   tree 1: sends its own to GPU 6.
template <class Wire>
BLINK_DEVICE void rank1_lane1(Walk<Wire>& walk) {
  enum : End { from_gpu6, to_gpu6 };
  walk.open(9, 3);
  const Slice tree1 = walk.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree1.chunks + 4);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.recv(tree1, tick - 4, from_gpu6);
    walk.send(tree1, tick, ends(to_gpu6));
  }
  walk.close();
}

// GPU 5, lane 0.
//   tree 0, root: combines GPU 1's, GPU 4's, its own and GPU 6's, keeps the result and sends it to GPU 1, GPU 4 and
//     GPU 6.
template <class Wire>
BLINK_DEVICE void rank2_lane0(Walk<Wire>& walk) {
  enum : End { from_gpu1, from_gpu4, from_gpu6, to_gpu1, to_gpu4, to_gpu6 };
  walk.open(0, 2, 10, 4, 6, 7);
  walk.contributors(4);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree0.chunks + 1);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv_reduce_copy_send(tree0, tick - 1, ends(from_gpu1, from_gpu4, from_gpu6), 2, ends(to_gpu1, to_gpu4,
        to_gpu6), complete);
  }
  walk.close();
}

// GPU 5, lane 1.
//   tree 1, root: combines GPU 1's, its own and GPU 6's, keeps the result and sends it to GPU 1 and GPU 6.
template <class Wire>
BLINK_DEVICE void rank2_lane1(Walk<Wire>& walk) {
  enum : End { from_gpu1, from_gpu6, to_gpu1, to_gpu6 };
  walk.open(1, 11, 5, 8);
  walk.contributors(4);
  const Slice tree1 = walk.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree1.chunks + 2);
  for (Word tick = 2; tick < end && walk.running(); ++tick) {
    walk.recv_reduce_copy_send(tree1, tick - 2, ends(from_gpu1, from_gpu6), 1, ends(to_gpu1, to_gpu6), complete);
  }
  walk.close();
}

// GPU 6, lane 0.
//   tree 0: keeps what GPU 5 sends.
//   tree 0: sends its own to GPU 5.
template <class Wire>
BLINK_DEVICE void rank3_lane0(Walk<Wire>& walk) {
  enum : End { from_gpu5, to_gpu5 };
  walk.open(7, 10);
  const Slice tree0 = walk.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree0.chunks + 2);
  for (Word tick = 0; tick < end && walk.running(); ++tick) {
    walk.recv(tree0, tick - 2, from_gpu5);
    walk.send(tree0, tick, ends(to_gpu5));
  }
  walk.close();
}

// GPU 6, lane 1.
//   tree 1: keeps what GPU 5 sends and sends it to GPU 4.
//   tree 1: combines GPU 4's and its own and sends the result to GPU 5.
template <class Wire>
BLINK_DEVICE void rank3_lane1(Walk<Wire>& walk) {
  enum : End { from_gpu5, from_gpu4, to_gpu4, to_gpu5 };
  walk.open(8, 3, 9, 11);
  const Slice tree1 = walk.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree1.chunks + 3);
  for (Word tick = 1; tick < end && walk.running(); ++tick) {
    walk.recv_copy_send(tree1, tick - 3, from_gpu5, ends(to_gpu4));
    walk.recv_reduce_send(tree1, tick - 1, ends(from_gpu4), 1, ends(to_gpu5), partial);
  }
  walk.close();
}

constexpr uint32_t kLanes = 2;

template <class Wire>
BLINK_DEVICE void run(Walk<Wire>& walk, uint32_t rank, uint32_t lane) {
  switch (rank * kLanes + lane) {
    case 0: return rank0_lane0(walk);
    case 1: return rank0_lane1(walk);
    case 2: return rank1_lane0(walk);
    case 3: return rank1_lane1(walk);
    case 4: return rank2_lane0(walk);
    case 5: return rank2_lane1(walk);
    case 6: return rank3_lane0(walk);
    case 7: return rank3_lane1(walk);
  }
}

}  // namespace allreduce
}  // namespace

BLINK_ENTRY(blink_allreduce_simple, Simple, allreduce::run)
BLINK_ENTRY(blink_allreduce_ll, LL, allreduce::run)
BLINK_ENTRY(blink_allreduce_ll128, LL128, allreduce::run)
BLINK_COPY_ENTRY(blink_allreduce_copies, allreduce::run)

BLINK_FOLD_ENTRY(blink_fold)
