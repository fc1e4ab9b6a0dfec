// allreduce among 4 GPUs of dgx-a100, by one_shot. Made by Blink; a change is lost when it is made again.
// ranks  0 = GPU 0, 1 = GPU 3, 2 = GPU 5, 3 = GPU 6
// rate   1/3 × 300 GB/s = 100 GB/s; at most 2/3 × 300 GB/s = 200 GB/s can be had
// from   program e5c1e3b10a5628be, forest 09d410ffab003fbb, topology 671a9740491b33b5
// tree 0: 1 of S, root GPU 0; up 3→0 5→0 6→0
// tree 1: 1 of S, root GPU 3; up 0→3 5→3 6→3
// tree 2: 1 of S, root GPU 5; up 0→5 3→5 6→5
// tree 3: 1 of S, root GPU 6; up 0→6 3→6 5→6

#include "blink/context.h"

namespace {
namespace allreduce {
using namespace blink;

// GPU 0, channel 0.
//   tree 0, root: combines its own, GPU 3's, GPU 5's and GPU 6's and keeps the result.
//   trees 1, 2 and 3: sends its own to GPU 3, GPU 5 and GPU 6.
template <class Wire>
BLINK_DEVICE void rank0_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu3, from_gpu5, from_gpu6, to_gpu3, to_gpu5, to_gpu6 };
  context.open(3, 6, 9, 0, 1, 2);
  context.contributors(4);
  const Slice slice0 = context.slice(0, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(slice0.chunks + 1);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.recv_reduce_copy(slice0, tick - 1, ends(from_gpu3, from_gpu5, from_gpu6), 0, complete);
    context.send(slice0, tick, ends(to_gpu3, to_gpu5, to_gpu6));
  }
  context.close();
}

// GPU 3, channel 0.
//   tree 1, root: combines GPU 0's, its own, GPU 5's and GPU 6's and keeps the result.
//   trees 0, 2 and 3: sends its own to GPU 0, GPU 5 and GPU 6.
template <class Wire>
BLINK_DEVICE void rank1_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu0, from_gpu5, from_gpu6, to_gpu0, to_gpu5, to_gpu6 };
  context.open(0, 7, 10, 3, 4, 5);
  context.contributors(4);
  const Slice slice0 = context.slice(0, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(slice0.chunks + 1);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.recv_reduce_copy(slice0, tick - 1, ends(from_gpu0, from_gpu5, from_gpu6), 1, complete);
    context.send(slice0, tick, ends(to_gpu0, to_gpu5, to_gpu6));
  }
  context.close();
}

// GPU 5, channel 0.
//   tree 2, root: combines GPU 0's, GPU 3's, its own and GPU 6's and keeps the result.
//   trees 0, 1 and 3: sends its own to GPU 0, GPU 3 and GPU 6.
template <class Wire>
BLINK_DEVICE void rank2_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu0, from_gpu3, from_gpu6, to_gpu0, to_gpu3, to_gpu6 };
  context.open(1, 4, 11, 6, 7, 8);
  context.contributors(4);
  const Slice slice0 = context.slice(0, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(slice0.chunks + 1);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.recv_reduce_copy(slice0, tick - 1, ends(from_gpu0, from_gpu3, from_gpu6), 2, complete);
    context.send(slice0, tick, ends(to_gpu0, to_gpu3, to_gpu6));
  }
  context.close();
}

// GPU 6, channel 0.
//   tree 3, root: combines GPU 0's, GPU 3's, GPU 5's and its own and keeps the result.
//   trees 0, 1 and 2: sends its own to GPU 0, GPU 3 and GPU 5.
template <class Wire>
BLINK_DEVICE void rank3_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu0, from_gpu3, from_gpu5, to_gpu0, to_gpu3, to_gpu5 };
  context.open(2, 5, 8, 9, 10, 11);
  context.contributors(4);
  const Slice slice0 = context.slice(0, 0, 0, 1, 1, 1);  // the whole block
  const Word end = latest(slice0.chunks + 1);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.recv_reduce_copy(slice0, tick - 1, ends(from_gpu0, from_gpu3, from_gpu5), 3, complete);
    context.send(slice0, tick, ends(to_gpu0, to_gpu3, to_gpu5));
  }
  context.close();
}

constexpr uint32_t kChannels = 1;

template <class Wire>
BLINK_DEVICE void run(KernelContext<Wire>& context, uint32_t rank, uint32_t channel) {
  switch (rank * kChannels + channel) {
    case 0: return rank0_channel0(context);
    case 1: return rank1_channel0(context);
    case 2: return rank2_channel0(context);
    case 3: return rank3_channel0(context);
  }
}

}  // namespace allreduce
}  // namespace

BLINK_ENTRY(blink_allreduce_simple, Simple, allreduce::run)
BLINK_ENTRY(blink_allreduce_ll, LL, allreduce::run)
BLINK_ENTRY(blink_allreduce_ll128, LL128, allreduce::run)
BLINK_COPY_ENTRY(blink_allreduce_copies, allreduce::run)

BLINK_FOLD_ENTRY(blink_fold)
