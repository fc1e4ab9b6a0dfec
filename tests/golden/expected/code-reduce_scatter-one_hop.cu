// reduce_scatter among 3 GPUs of dgx-a100, by one_hop. Made by Blink; a change is lost when it is made again.
// ranks  0 = GPU 0, 1 = GPU 3, 2 = GPU 5
// rate   3/2 × 300 GB/s = 450 GB/s; optimal
// from   program 8652b5326249d2ae, forest d37385afaa515f3c, topology a0d13e6f5eea3658
// tree 0: 1/3 of S, block of GPU 0, root GPU 0; up 3→0 5→0
// tree 1: 1/3 of S, block of GPU 3, root GPU 3; up 0→3 5→3
// tree 2: 1/3 of S, block of GPU 5, root GPU 5; up 0→5 3→5

#include "blink/context.h"

namespace {
namespace reduce_scatter {
using namespace blink;

// GPU 0, channel 0.
//   tree 0, root: combines its own, GPU 3's and GPU 5's and keeps the result.
template <class Wire>
BLINK_DEVICE void rank0_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu3, from_gpu5 };
  context.open(2, 4);
  context.contributors(3);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree0.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_reduce_copy(tree0, tick - 1, ends(from_gpu3, from_gpu5), 0, complete);
  }
  context.close();
}

// GPU 0, channel 1.
//   tree 1: sends its own to GPU 3.
template <class Wire>
BLINK_DEVICE void rank0_channel1(KernelContext<Wire>& context) {
  enum : End { to_gpu3 };
  context.open(0);
  const Slice tree1 = context.slice(1, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree1.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.send(tree1, tick, ends(to_gpu3));
  }
  context.close();
}

// GPU 0, channel 2.
//   tree 2: sends its own to GPU 5.
template <class Wire>
BLINK_DEVICE void rank0_channel2(KernelContext<Wire>& context) {
  enum : End { to_gpu5 };
  context.open(1);
  const Slice tree2 = context.slice(2, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree2.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.send(tree2, tick, ends(to_gpu5));
  }
  context.close();
}

// GPU 3, channel 0.
//   tree 0: sends its own to GPU 0.
template <class Wire>
BLINK_DEVICE void rank1_channel0(KernelContext<Wire>& context) {
  enum : End { to_gpu0 };
  context.open(2);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree0.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.send(tree0, tick, ends(to_gpu0));
  }
  context.close();
}

// GPU 3, channel 1.
//   tree 1, root: combines GPU 0's, its own and GPU 5's and keeps the result.
template <class Wire>
BLINK_DEVICE void rank1_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu0, from_gpu5 };
  context.open(0, 5);
  context.contributors(3);
  const Slice tree1 = context.slice(1, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree1.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_reduce_copy(tree1, tick - 1, ends(from_gpu0, from_gpu5), 1, complete);
  }
  context.close();
}

// GPU 3, channel 2.
//   tree 2: sends its own to GPU 5.
template <class Wire>
BLINK_DEVICE void rank1_channel2(KernelContext<Wire>& context) {
  enum : End { to_gpu5 };
  context.open(3);
  const Slice tree2 = context.slice(2, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree2.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.send(tree2, tick, ends(to_gpu5));
  }
  context.close();
}

// GPU 5, channel 0.
//   tree 0: sends its own to GPU 0.
template <class Wire>
BLINK_DEVICE void rank2_channel0(KernelContext<Wire>& context) {
  enum : End { to_gpu0 };
  context.open(4);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree0.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.send(tree0, tick, ends(to_gpu0));
  }
  context.close();
}

// GPU 5, channel 1.
//   tree 1: sends its own to GPU 3.
template <class Wire>
BLINK_DEVICE void rank2_channel1(KernelContext<Wire>& context) {
  enum : End { to_gpu3 };
  context.open(5);
  const Slice tree1 = context.slice(1, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree1.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.send(tree1, tick, ends(to_gpu3));
  }
  context.close();
}

// GPU 5, channel 2.
//   tree 2, root: combines GPU 0's, GPU 3's and its own and keeps the result.
template <class Wire>
BLINK_DEVICE void rank2_channel2(KernelContext<Wire>& context) {
  enum : End { from_gpu0, from_gpu3 };
  context.open(1, 3);
  context.contributors(3);
  const Slice tree2 = context.slice(2, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(tree2.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_reduce_copy(tree2, tick - 1, ends(from_gpu0, from_gpu3), 2, complete);
  }
  context.close();
}

constexpr uint32_t kChannels = 3;

template <class Wire>
BLINK_DEVICE void run(KernelContext<Wire>& context, uint32_t rank, uint32_t channel) {
  switch (rank * kChannels + channel) {
    case 0: return rank0_channel0(context);
    case 1: return rank0_channel1(context);
    case 2: return rank0_channel2(context);
    case 3: return rank1_channel0(context);
    case 4: return rank1_channel1(context);
    case 5: return rank1_channel2(context);
    case 6: return rank2_channel0(context);
    case 7: return rank2_channel1(context);
    case 8: return rank2_channel2(context);
  }
}

}  // namespace reduce_scatter
}  // namespace

BLINK_ENTRY(blink_reduce_scatter_simple, Simple, reduce_scatter::run)
BLINK_ENTRY(blink_reduce_scatter_ll, LL, reduce_scatter::run)
BLINK_ENTRY(blink_reduce_scatter_ll128, LL128, reduce_scatter::run)
BLINK_COPY_ENTRY(blink_reduce_scatter_copies, reduce_scatter::run)

BLINK_FOLD_ENTRY(blink_fold)
