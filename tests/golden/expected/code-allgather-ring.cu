// allgather among 3 GPUs of ring:3, by ring. Made by Blink; a change is lost when it is made again.
// ranks  0 = GPU 0, 1 = GPU 1, 2 = GPU 2
// rate   3 × 25 GB/s = 75 GB/s; optimal
// from   program 29abe9e5ceba8ff9, forest ee9ae692384f0df4, topology b6681759e3432a0f
// tree 0: 1/6 of S, block of GPU 0, root GPU 0; down 0→1→2
// tree 1: 1/6 of S, block of GPU 1, root GPU 1; down 1→2→0
// tree 2: 1/6 of S, block of GPU 2, root GPU 2; down 2→0→1
// tree 3: 1/6 of S, block of GPU 0, root GPU 0; down 0→2→1
// tree 4: 1/6 of S, block of GPU 1, root GPU 1; down 1→0→2
// tree 5: 1/6 of S, block of GPU 2, root GPU 2; down 2→1→0

#define BLINK_MOVES_ONLY  // nothing is combined
#include "blink/context.h"

namespace {
namespace allgather {
using namespace blink;

// GPU 0, channel 0.
//   tree 0, root: keeps its own and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank0_channel0(KernelContext<Wire>& context) {
  enum : End { to_gpu1 };
  context.open(0);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree0.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree0, tick, ends(to_gpu1));
  }
  context.close();
}

// GPU 0, channel 1.
//   tree 3, root: keeps its own and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank0_channel1(KernelContext<Wire>& context) {
  enum : End { to_gpu2 };
  context.open(2);
  const Slice tree3 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree3.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree3, tick, ends(to_gpu2));
  }
  context.close();
}

// GPU 0, channel 2.
//   tree 1: keeps what GPU 2 sends.
template <class Wire>
BLINK_DEVICE void rank0_channel2(KernelContext<Wire>& context) {
  enum : End { from_gpu2 };
  context.open(8);
  const Slice tree1 = context.slice(0, 1, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree1.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv(tree1, tick - 2, from_gpu2);
  }
  context.close();
}

// GPU 0, channel 3.
//   tree 4: keeps what GPU 1 sends and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank0_channel3(KernelContext<Wire>& context) {
  enum : End { from_gpu1, to_gpu2 };
  context.open(4, 3);
  const Slice tree4 = context.slice(0, 1, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree4.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree4, tick - 1, from_gpu1, ends(to_gpu2));
  }
  context.close();
}

// GPU 0, channel 4.
//   tree 2: keeps what GPU 2 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank0_channel4(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu1 };
  context.open(9, 1);
  const Slice tree2 = context.slice(0, 2, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree2.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree2, tick - 1, from_gpu2, ends(to_gpu1));
  }
  context.close();
}

// GPU 0, channel 5.
//   tree 5: keeps what GPU 1 sends.
template <class Wire>
BLINK_DEVICE void rank0_channel5(KernelContext<Wire>& context) {
  enum : End { from_gpu1 };
  context.open(5);
  const Slice tree5 = context.slice(0, 2, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree5.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv(tree5, tick - 2, from_gpu1);
  }
  context.close();
}

// GPU 1, channel 0.
//   tree 0: keeps what GPU 0 sends and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank1_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu0, to_gpu2 };
  context.open(0, 6);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree0.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree0, tick - 1, from_gpu0, ends(to_gpu2));
  }
  context.close();
}

// GPU 1, channel 1.
//   tree 3: keeps what GPU 2 sends.
template <class Wire>
BLINK_DEVICE void rank1_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu2 };
  context.open(10);
  const Slice tree3 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree3.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv(tree3, tick - 2, from_gpu2);
  }
  context.close();
}

// GPU 1, channel 2.
//   tree 1, root: keeps its own and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank1_channel2(KernelContext<Wire>& context) {
  enum : End { to_gpu2 };
  context.open(7);
  const Slice tree1 = context.slice(0, 1, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree1.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree1, tick, ends(to_gpu2));
  }
  context.close();
}

// GPU 1, channel 3.
//   tree 4, root: keeps its own and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank1_channel3(KernelContext<Wire>& context) {
  enum : End { to_gpu0 };
  context.open(4);
  const Slice tree4 = context.slice(0, 1, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree4.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree4, tick, ends(to_gpu0));
  }
  context.close();
}

// GPU 1, channel 4.
//   tree 2: keeps what GPU 0 sends.
template <class Wire>
BLINK_DEVICE void rank1_channel4(KernelContext<Wire>& context) {
  enum : End { from_gpu0 };
  context.open(1);
  const Slice tree2 = context.slice(0, 2, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree2.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv(tree2, tick - 2, from_gpu0);
  }
  context.close();
}

// GPU 1, channel 5.
//   tree 5: keeps what GPU 2 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank1_channel5(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu0 };
  context.open(11, 5);
  const Slice tree5 = context.slice(0, 2, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree5.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree5, tick - 1, from_gpu2, ends(to_gpu0));
  }
  context.close();
}

// GPU 2, channel 0.
//   tree 0: keeps what GPU 1 sends.
template <class Wire>
BLINK_DEVICE void rank2_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu1 };
  context.open(6);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree0.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv(tree0, tick - 2, from_gpu1);
  }
  context.close();
}

// GPU 2, channel 1.
//   tree 3: keeps what GPU 0 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank2_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu0, to_gpu1 };
  context.open(2, 10);
  const Slice tree3 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree3.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree3, tick - 1, from_gpu0, ends(to_gpu1));
  }
  context.close();
}

// GPU 2, channel 2.
//   tree 1: keeps what GPU 1 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank2_channel2(KernelContext<Wire>& context) {
  enum : End { from_gpu1, to_gpu0 };
  context.open(7, 8);
  const Slice tree1 = context.slice(0, 1, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree1.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree1, tick - 1, from_gpu1, ends(to_gpu0));
  }
  context.close();
}

// GPU 2, channel 3.
//   tree 4: keeps what GPU 0 sends.
template <class Wire>
BLINK_DEVICE void rank2_channel3(KernelContext<Wire>& context) {
  enum : End { from_gpu0 };
  context.open(3);
  const Slice tree4 = context.slice(0, 1, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree4.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv(tree4, tick - 2, from_gpu0);
  }
  context.close();
}

// GPU 2, channel 4.
//   tree 2, root: keeps its own and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank2_channel4(KernelContext<Wire>& context) {
  enum : End { to_gpu0 };
  context.open(9);
  const Slice tree2 = context.slice(0, 2, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree2.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree2, tick, ends(to_gpu0));
  }
  context.close();
}

// GPU 2, channel 5.
//   tree 5, root: keeps its own and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank2_channel5(KernelContext<Wire>& context) {
  enum : End { to_gpu1 };
  context.open(11);
  const Slice tree5 = context.slice(0, 2, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree5.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree5, tick, ends(to_gpu1));
  }
  context.close();
}

constexpr uint32_t kChannels = 6;

template <class Wire>
BLINK_DEVICE void run(KernelContext<Wire>& context, uint32_t rank, uint32_t channel) {
  switch (rank * kChannels + channel) {
    case 0: return rank0_channel0(context);
    case 1: return rank0_channel1(context);
    case 2: return rank0_channel2(context);
    case 3: return rank0_channel3(context);
    case 4: return rank0_channel4(context);
    case 5: return rank0_channel5(context);
    case 6: return rank1_channel0(context);
    case 7: return rank1_channel1(context);
    case 8: return rank1_channel2(context);
    case 9: return rank1_channel3(context);
    case 10: return rank1_channel4(context);
    case 11: return rank1_channel5(context);
    case 12: return rank2_channel0(context);
    case 13: return rank2_channel1(context);
    case 14: return rank2_channel2(context);
    case 15: return rank2_channel3(context);
    case 16: return rank2_channel4(context);
    case 17: return rank2_channel5(context);
  }
}

}  // namespace allgather
}  // namespace

BLINK_ENTRY(blink_allgather_simple, Simple, allgather::run)
BLINK_ENTRY(blink_allgather_ll, LL, allgather::run)
BLINK_ENTRY(blink_allgather_ll128, LL128, allgather::run)
BLINK_COPY_ENTRY(blink_allgather_copies, allgather::run)
