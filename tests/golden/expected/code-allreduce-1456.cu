// allreduce among 4 GPUs of dgx-1v, by optimal. Made by Blink; a change is lost when it is made again.
// ranks  0 = GPU 1, 1 = GPU 4, 2 = GPU 5, 3 = GPU 6
// rate   2 × 25 GB/s = 50 GB/s; optimal
// from   program 0e488bea2e763b80, forest 20af7d87adb22047, topology 038686c314e9956e
// tree 0: 1/2 of S, root GPU 5; up 1→5 4→5 6→5; down 5→1 5→4 5→6
// tree 1: 1/2 of S, root GPU 5; up 4→6 1→5 6→5; down 5→1 5→6→4

#include "blink/context.h"

namespace {
namespace allreduce {
using namespace blink;

// GPU 1, channel 0.
//   tree 0: keeps GPU 5's data.
//   tree 0: sends its own data to GPU 5.
template <class Wire>
BLINK_DEVICE void rank0_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu5, to_gpu5 };
  const Slice& tree0 = context.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  context.open(4, 0);
  const Word end = latest(tree0.chunks + 2);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.recv(tree0, tick - 2, from_gpu5);
    context.send(tree0, tick, ends(to_gpu5));
  }
  context.close();
}

// GPU 1, channel 1.
//   tree 1: keeps GPU 5's data.
//   tree 1: sends its own data to GPU 5.
template <class Wire>
BLINK_DEVICE void rank0_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu5, to_gpu5 };
  const Slice& tree1 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  context.open(5, 1);
  const Word end = latest(tree1.chunks + 3);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv(tree1, tick - 3, from_gpu5);
    context.send(tree1, tick - 1, ends(to_gpu5));
  }
  context.close();
}

// GPU 4, channel 0.
//   tree 0: keeps GPU 5's data.
//   tree 0: sends its own data to GPU 5.
template <class Wire>
BLINK_DEVICE void rank1_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu5, to_gpu5 };
  const Slice& tree0 = context.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  context.open(6, 2);
  const Word end = latest(tree0.chunks + 2);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.recv(tree0, tick - 2, from_gpu5);
    context.send(tree0, tick, ends(to_gpu5));
  }
  context.close();
}

// GPU 4, channel 1.
//   tree 1: keeps GPU 6's data.
//   tree 1: sends its own data to GPU 6.
template <class Wire>
BLINK_DEVICE void rank1_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu6, to_gpu6 };
  const Slice& tree1 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  context.open(9, 3);
  const Word end = latest(tree1.chunks + 4);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.recv(tree1, tick - 4, from_gpu6);
    context.send(tree1, tick, ends(to_gpu6));
  }
  context.close();
}

// GPU 5, channel 0.
//   tree 0, root: reduces GPU 1's, GPU 4's, its own and GPU 6's data, keeps the result and sends it to GPU 1, GPU 4
//     and GPU 6.
template <class Wire>
BLINK_DEVICE void rank2_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu1, from_gpu4, from_gpu6, to_gpu1, to_gpu4, to_gpu6 };
  context.contributors(4);
  const Slice& tree0 = context.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  context.open(0, 2, 10, 4, 6, 7);
  const Word end = latest(tree0.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_reduce_copy_send(tree0, tick - 1, ends(from_gpu1, from_gpu4, from_gpu6), 2, ends(to_gpu1, to_gpu4,
        to_gpu6), complete);
  }
  context.close();
}

// GPU 5, channel 1.
//   tree 1, root: reduces GPU 1's, GPU 6's and its own data, keeps the result and sends it to GPU 1 and GPU 6.
template <class Wire>
BLINK_DEVICE void rank2_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu1, from_gpu6, to_gpu1, to_gpu6 };
  context.contributors(4);
  const Slice& tree1 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  context.open(1, 11, 5, 8);
  const Word end = latest(tree1.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_reduce_copy_send(tree1, tick - 2, ends(from_gpu1, from_gpu6), 2, ends(to_gpu1, to_gpu6), complete);
  }
  context.close();
}

// GPU 6, channel 0.
//   tree 0: keeps GPU 5's data.
//   tree 0: sends its own data to GPU 5.
template <class Wire>
BLINK_DEVICE void rank3_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu5, to_gpu5 };
  const Slice& tree0 = context.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  context.open(7, 10);
  const Word end = latest(tree0.chunks + 2);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.recv(tree0, tick - 2, from_gpu5);
    context.send(tree0, tick, ends(to_gpu5));
  }
  context.close();
}

// GPU 6, channel 1.
//   tree 1: keeps GPU 5's data and sends it to GPU 4.
//   tree 1: reduces GPU 4's and its own data and sends the result to GPU 5.
template <class Wire>
BLINK_DEVICE void rank3_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu5, from_gpu4, to_gpu4, to_gpu5 };
  const Slice& tree1 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  context.open(8, 3, 9, 11);
  const Word end = latest(tree1.chunks + 3);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree1, tick - 3, from_gpu5, ends(to_gpu4));
    context.recv_reduce_send(tree1, tick - 1, ends(from_gpu4), 1, ends(to_gpu5), partial);
  }
  context.close();
}

constexpr uint32_t kRanks = 4, kChannels = 2;

template <class Wire>
BLINK_DEVICE void run(KernelContext<Wire>& context, uint32_t rank, uint32_t channel) {
  context.program(kRanks, kChannels);
  switch (rank * kChannels + channel) {
    case 0: return rank0_channel0(context);
    case 1: return rank0_channel1(context);
    case 2: return rank1_channel0(context);
    case 3: return rank1_channel1(context);
    case 4: return rank2_channel0(context);
    case 5: return rank2_channel1(context);
    case 6: return rank3_channel0(context);
    case 7: return rank3_channel1(context);
  }
}

}  // namespace allreduce
}  // namespace

BLINK_ENTRY(blink_allreduce_simple, Simple, allreduce::run)
BLINK_ENTRY(blink_allreduce_ll, LL, allreduce::run)
BLINK_ENTRY(blink_allreduce_ll128, LL128, allreduce::run)
BLINK_COPY_ENTRY(blink_allreduce_copies, allreduce::run)

BLINK_FOLD_ENTRY(blink_fold)
