// broadcast (root GPU 2) among 4 GPUs of dgx-1v, by blink. Made by Blink; a change is lost when it is made again.
// ranks  0 = GPU 0, 1 = GPU 1, 2 = GPU 2, 3 = GPU 3
// rate   4 × 25 GB/s = 100 GB/s; optimal
// from   program 3c46a14dad9ff63e, forest 8c7f6abb45e096fa, topology e4821f6f726f5f7a
// tree 0: 1/4 of S, root GPU 2; down 2→1→3→0
// tree 1: 1/4 of S, root GPU 2; down 2→3→1→0
// tree 2: 1/4 of S, root GPU 2; down 2→3→0→1
// tree 3: 1/4 of S, root GPU 2; down 2→0 2→1 0→3

#define BLINK_MOVES_ONLY  // nothing is combined
#include "blink/context.h"

namespace {
namespace broadcast {
using namespace blink;

// GPU 0, channel 0.
//   tree 0: keeps what GPU 3 sends.
template <class Wire>
BLINK_DEVICE void rank0_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu3 };
  context.open(9);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 4);  // 0 … 1/4 of the block
  const Word end = latest(tree0.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv(tree0, tick - 3, from_gpu3);
  }
  context.close();
}

// GPU 0, channel 1.
//   tree 1: keeps what GPU 1 sends.
template <class Wire>
BLINK_DEVICE void rank0_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu1 };
  context.open(2);
  const Slice tree1 = context.slice(0, 0, 1, 4, 1, 2);  // 1/4 … 1/2 of the block
  const Word end = latest(tree1.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv(tree1, tick - 3, from_gpu1);
  }
  context.close();
}

// GPU 0, channel 2.
//   tree 2: keeps what GPU 3 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank0_channel2(KernelContext<Wire>& context) {
  enum : End { from_gpu3, to_gpu1 };
  context.open(10, 0);
  const Slice tree2 = context.slice(0, 0, 1, 2, 3, 4);  // 1/2 … 3/4 of the block
  const Word end = latest(tree2.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree2, tick - 2, from_gpu3, ends(to_gpu1));
  }
  context.close();
}

// GPU 0, channel 3.
//   tree 3: keeps what GPU 2 sends and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank0_channel3(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu3 };
  context.open(4, 1);
  const Slice tree3 = context.slice(0, 0, 3, 4, 1, 1);  // 3/4 … 1 of the block
  const Word end = latest(tree3.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree3, tick - 1, from_gpu2, ends(to_gpu3));
  }
  context.close();
}

// GPU 1, channel 0.
//   tree 0: keeps what GPU 2 sends and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank1_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu3 };
  context.open(5, 3);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 4);  // 0 … 1/4 of the block
  const Word end = latest(tree0.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree0, tick - 1, from_gpu2, ends(to_gpu3));
  }
  context.close();
}

// GPU 1, channel 1.
//   tree 1: keeps what GPU 3 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank1_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu3, to_gpu0 };
  context.open(11, 2);
  const Slice tree1 = context.slice(0, 0, 1, 4, 1, 2);  // 1/4 … 1/2 of the block
  const Word end = latest(tree1.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree1, tick - 2, from_gpu3, ends(to_gpu0));
  }
  context.close();
}

// GPU 1, channel 2.
//   tree 2: keeps what GPU 0 sends.
template <class Wire>
BLINK_DEVICE void rank1_channel2(KernelContext<Wire>& context) {
  enum : End { from_gpu0 };
  context.open(0);
  const Slice tree2 = context.slice(0, 0, 1, 2, 3, 4);  // 1/2 … 3/4 of the block
  const Word end = latest(tree2.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv(tree2, tick - 3, from_gpu0);
  }
  context.close();
}

// GPU 1, channel 3.
//   tree 3: keeps what GPU 2 sends.
template <class Wire>
BLINK_DEVICE void rank1_channel3(KernelContext<Wire>& context) {
  enum : End { from_gpu2 };
  context.open(6);
  const Slice tree3 = context.slice(0, 0, 3, 4, 1, 1);  // 3/4 … 1 of the block
  const Word end = latest(tree3.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv(tree3, tick - 1, from_gpu2);
  }
  context.close();
}

// GPU 2, channel 0.
//   tree 0, root: keeps its own and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank2_channel0(KernelContext<Wire>& context) {
  enum : End { to_gpu1 };
  context.open(5);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 4);  // 0 … 1/4 of the block
  const Word end = latest(tree0.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree0, tick, ends(to_gpu1));
  }
  context.close();
}

// GPU 2, channel 1.
//   tree 1, root: keeps its own and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank2_channel1(KernelContext<Wire>& context) {
  enum : End { to_gpu3 };
  context.open(7);
  const Slice tree1 = context.slice(0, 0, 1, 4, 1, 2);  // 1/4 … 1/2 of the block
  const Word end = latest(tree1.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree1, tick, ends(to_gpu3));
  }
  context.close();
}

// GPU 2, channel 2.
//   tree 2, root: keeps its own and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank2_channel2(KernelContext<Wire>& context) {
  enum : End { to_gpu3 };
  context.open(8);
  const Slice tree2 = context.slice(0, 0, 1, 2, 3, 4);  // 1/2 … 3/4 of the block
  const Word end = latest(tree2.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree2, tick, ends(to_gpu3));
  }
  context.close();
}

// GPU 2, channel 3.
//   tree 3, root: keeps its own and sends it to GPU 0 and GPU 1.
template <class Wire>
BLINK_DEVICE void rank2_channel3(KernelContext<Wire>& context) {
  enum : End { to_gpu0, to_gpu1 };
  context.open(4, 6);
  const Slice tree3 = context.slice(0, 0, 3, 4, 1, 1);  // 3/4 … 1 of the block
  const Word end = latest(tree3.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree3, tick, ends(to_gpu0, to_gpu1));
  }
  context.close();
}

// GPU 3, channel 0.
//   tree 0: keeps what GPU 1 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank3_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu1, to_gpu0 };
  context.open(3, 9);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 4);  // 0 … 1/4 of the block
  const Word end = latest(tree0.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree0, tick - 2, from_gpu1, ends(to_gpu0));
  }
  context.close();
}

// GPU 3, channel 1.
//   tree 1: keeps what GPU 2 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank3_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu1 };
  context.open(7, 11);
  const Slice tree1 = context.slice(0, 0, 1, 4, 1, 2);  // 1/4 … 1/2 of the block
  const Word end = latest(tree1.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree1, tick - 1, from_gpu2, ends(to_gpu1));
  }
  context.close();
}

// GPU 3, channel 2.
//   tree 2: keeps what GPU 2 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank3_channel2(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu0 };
  context.open(8, 10);
  const Slice tree2 = context.slice(0, 0, 1, 2, 3, 4);  // 1/2 … 3/4 of the block
  const Word end = latest(tree2.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree2, tick - 1, from_gpu2, ends(to_gpu0));
  }
  context.close();
}

// GPU 3, channel 3.
//   tree 3: keeps what GPU 0 sends.
template <class Wire>
BLINK_DEVICE void rank3_channel3(KernelContext<Wire>& context) {
  enum : End { from_gpu0 };
  context.open(1);
  const Slice tree3 = context.slice(0, 0, 3, 4, 1, 1);  // 3/4 … 1 of the block
  const Word end = latest(tree3.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv(tree3, tick - 2, from_gpu0);
  }
  context.close();
}

constexpr uint32_t kChannels = 4;

template <class Wire>
BLINK_DEVICE void run(KernelContext<Wire>& context, uint32_t rank, uint32_t channel) {
  switch (rank * kChannels + channel) {
    case 0: return rank0_channel0(context);
    case 1: return rank0_channel1(context);
    case 2: return rank0_channel2(context);
    case 3: return rank0_channel3(context);
    case 4: return rank1_channel0(context);
    case 5: return rank1_channel1(context);
    case 6: return rank1_channel2(context);
    case 7: return rank1_channel3(context);
    case 8: return rank2_channel0(context);
    case 9: return rank2_channel1(context);
    case 10: return rank2_channel2(context);
    case 11: return rank2_channel3(context);
    case 12: return rank3_channel0(context);
    case 13: return rank3_channel1(context);
    case 14: return rank3_channel2(context);
    case 15: return rank3_channel3(context);
  }
}

}  // namespace broadcast
}  // namespace

BLINK_ENTRY(blink_broadcast_simple, Simple, broadcast::run)
BLINK_ENTRY(blink_broadcast_ll, LL, broadcast::run)
BLINK_ENTRY(blink_broadcast_ll128, LL128, broadcast::run)
BLINK_COPY_ENTRY(blink_broadcast_copies, broadcast::run)
