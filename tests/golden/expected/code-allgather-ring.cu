// allgather among 5 GPUs of ring:5, by ring. Made by Blink; a change is lost when it is made again.
// ranks  0 = GPU 0, 1 = GPU 1, 2 = GPU 2, 3 = GPU 3, 4 = GPU 4
// rate   5/2 × 25 GB/s = 62.5 GB/s; optimal
// from   program 7800977a4694bb52, forest 4b81c5c29040af44, topology cac5f813361b4895
// tree 0: 1/10 of S, block of GPU 0, root GPU 0; down 0→1→2→3→4
// tree 1: 1/10 of S, block of GPU 1, root GPU 1; down 1→2→3→4→0
// tree 2: 1/10 of S, block of GPU 2, root GPU 2; down 2→3→4→0→1
// tree 3: 1/10 of S, block of GPU 3, root GPU 3; down 3→4→0→1→2
// tree 4: 1/10 of S, block of GPU 4, root GPU 4; down 4→0→1→2→3
// tree 5: 1/10 of S, block of GPU 0, root GPU 0; down 0→4→3→2→1
// tree 6: 1/10 of S, block of GPU 1, root GPU 1; down 1→0→4→3→2
// tree 7: 1/10 of S, block of GPU 2, root GPU 2; down 2→1→0→4→3
// tree 8: 1/10 of S, block of GPU 3, root GPU 3; down 3→2→1→0→4
// tree 9: 1/10 of S, block of GPU 4, root GPU 4; down 4→3→2→1→0

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
//   tree 5, root: keeps its own and sends it to GPU 4.
template <class Wire>
BLINK_DEVICE void rank0_channel1(KernelContext<Wire>& context) {
  enum : End { to_gpu4 };
  context.open(4);
  const Slice tree5 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree5.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree5, tick, ends(to_gpu4));
  }
  context.close();
}

// GPU 0, channel 2.
//   tree 1: keeps what GPU 4 sends.
template <class Wire>
BLINK_DEVICE void rank0_channel2(KernelContext<Wire>& context) {
  enum : End { from_gpu4 };
  context.open(32);
  const Slice tree1 = context.slice(0, 1, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree1.chunks + 4);
  for (Word tick = 4; tick < end && context.running(); ++tick) {
    context.recv(tree1, tick - 4, from_gpu4);
  }
  context.close();
}

// GPU 0, channel 3.
//   tree 6: keeps what GPU 1 sends and sends it to GPU 4.
template <class Wire>
BLINK_DEVICE void rank0_channel3(KernelContext<Wire>& context) {
  enum : End { from_gpu1, to_gpu4 };
  context.open(8, 5);
  const Slice tree6 = context.slice(0, 1, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree6.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree6, tick - 1, from_gpu1, ends(to_gpu4));
  }
  context.close();
}

// GPU 0, channel 4.
//   tree 2: keeps what GPU 4 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank0_channel4(KernelContext<Wire>& context) {
  enum : End { from_gpu4, to_gpu1 };
  context.open(33, 1);
  const Slice tree2 = context.slice(0, 2, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree2.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree2, tick - 3, from_gpu4, ends(to_gpu1));
  }
  context.close();
}

// GPU 0, channel 5.
//   tree 7: keeps what GPU 1 sends and sends it to GPU 4.
template <class Wire>
BLINK_DEVICE void rank0_channel5(KernelContext<Wire>& context) {
  enum : End { from_gpu1, to_gpu4 };
  context.open(9, 6);
  const Slice tree7 = context.slice(0, 2, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree7.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree7, tick - 2, from_gpu1, ends(to_gpu4));
  }
  context.close();
}

// GPU 0, channel 6.
//   tree 3: keeps what GPU 4 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank0_channel6(KernelContext<Wire>& context) {
  enum : End { from_gpu4, to_gpu1 };
  context.open(34, 2);
  const Slice tree3 = context.slice(0, 3, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree3.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree3, tick - 2, from_gpu4, ends(to_gpu1));
  }
  context.close();
}

// GPU 0, channel 7.
//   tree 8: keeps what GPU 1 sends and sends it to GPU 4.
template <class Wire>
BLINK_DEVICE void rank0_channel7(KernelContext<Wire>& context) {
  enum : End { from_gpu1, to_gpu4 };
  context.open(10, 7);
  const Slice tree8 = context.slice(0, 3, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree8.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree8, tick - 3, from_gpu1, ends(to_gpu4));
  }
  context.close();
}

// GPU 0, channel 8.
//   tree 4: keeps what GPU 4 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank0_channel8(KernelContext<Wire>& context) {
  enum : End { from_gpu4, to_gpu1 };
  context.open(35, 3);
  const Slice tree4 = context.slice(0, 4, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree4.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree4, tick - 1, from_gpu4, ends(to_gpu1));
  }
  context.close();
}

// GPU 0, channel 9.
//   tree 9: keeps what GPU 1 sends.
template <class Wire>
BLINK_DEVICE void rank0_channel9(KernelContext<Wire>& context) {
  enum : End { from_gpu1 };
  context.open(11);
  const Slice tree9 = context.slice(0, 4, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree9.chunks + 4);
  for (Word tick = 4; tick < end && context.running(); ++tick) {
    context.recv(tree9, tick - 4, from_gpu1);
  }
  context.close();
}

// GPU 1, channel 0.
//   tree 0: keeps what GPU 0 sends and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank1_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu0, to_gpu2 };
  context.open(0, 12);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree0.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree0, tick - 1, from_gpu0, ends(to_gpu2));
  }
  context.close();
}

// GPU 1, channel 1.
//   tree 5: keeps what GPU 2 sends.
template <class Wire>
BLINK_DEVICE void rank1_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu2 };
  context.open(16);
  const Slice tree5 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree5.chunks + 4);
  for (Word tick = 4; tick < end && context.running(); ++tick) {
    context.recv(tree5, tick - 4, from_gpu2);
  }
  context.close();
}

// GPU 1, channel 2.
//   tree 1, root: keeps its own and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank1_channel2(KernelContext<Wire>& context) {
  enum : End { to_gpu2 };
  context.open(13);
  const Slice tree1 = context.slice(0, 1, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree1.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree1, tick, ends(to_gpu2));
  }
  context.close();
}

// GPU 1, channel 3.
//   tree 6, root: keeps its own and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank1_channel3(KernelContext<Wire>& context) {
  enum : End { to_gpu0 };
  context.open(8);
  const Slice tree6 = context.slice(0, 1, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree6.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree6, tick, ends(to_gpu0));
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
  const Word end = latest(tree2.chunks + 4);
  for (Word tick = 4; tick < end && context.running(); ++tick) {
    context.recv(tree2, tick - 4, from_gpu0);
  }
  context.close();
}

// GPU 1, channel 5.
//   tree 7: keeps what GPU 2 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank1_channel5(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu0 };
  context.open(17, 9);
  const Slice tree7 = context.slice(0, 2, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree7.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree7, tick - 1, from_gpu2, ends(to_gpu0));
  }
  context.close();
}

// GPU 1, channel 6.
//   tree 3: keeps what GPU 0 sends and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank1_channel6(KernelContext<Wire>& context) {
  enum : End { from_gpu0, to_gpu2 };
  context.open(2, 14);
  const Slice tree3 = context.slice(0, 3, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree3.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree3, tick - 3, from_gpu0, ends(to_gpu2));
  }
  context.close();
}

// GPU 1, channel 7.
//   tree 8: keeps what GPU 2 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank1_channel7(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu0 };
  context.open(18, 10);
  const Slice tree8 = context.slice(0, 3, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree8.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree8, tick - 2, from_gpu2, ends(to_gpu0));
  }
  context.close();
}

// GPU 1, channel 8.
//   tree 4: keeps what GPU 0 sends and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank1_channel8(KernelContext<Wire>& context) {
  enum : End { from_gpu0, to_gpu2 };
  context.open(3, 15);
  const Slice tree4 = context.slice(0, 4, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree4.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree4, tick - 2, from_gpu0, ends(to_gpu2));
  }
  context.close();
}

// GPU 1, channel 9.
//   tree 9: keeps what GPU 2 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank1_channel9(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu0 };
  context.open(19, 11);
  const Slice tree9 = context.slice(0, 4, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree9.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree9, tick - 3, from_gpu2, ends(to_gpu0));
  }
  context.close();
}

// GPU 2, channel 0.
//   tree 0: keeps what GPU 1 sends and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank2_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu1, to_gpu3 };
  context.open(12, 20);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree0.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree0, tick - 2, from_gpu1, ends(to_gpu3));
  }
  context.close();
}

// GPU 2, channel 1.
//   tree 5: keeps what GPU 3 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank2_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu3, to_gpu1 };
  context.open(24, 16);
  const Slice tree5 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree5.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree5, tick - 3, from_gpu3, ends(to_gpu1));
  }
  context.close();
}

// GPU 2, channel 2.
//   tree 1: keeps what GPU 1 sends and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank2_channel2(KernelContext<Wire>& context) {
  enum : End { from_gpu1, to_gpu3 };
  context.open(13, 21);
  const Slice tree1 = context.slice(0, 1, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree1.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree1, tick - 1, from_gpu1, ends(to_gpu3));
  }
  context.close();
}

// GPU 2, channel 3.
//   tree 6: keeps what GPU 3 sends.
template <class Wire>
BLINK_DEVICE void rank2_channel3(KernelContext<Wire>& context) {
  enum : End { from_gpu3 };
  context.open(25);
  const Slice tree6 = context.slice(0, 1, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree6.chunks + 4);
  for (Word tick = 4; tick < end && context.running(); ++tick) {
    context.recv(tree6, tick - 4, from_gpu3);
  }
  context.close();
}

// GPU 2, channel 4.
//   tree 2, root: keeps its own and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank2_channel4(KernelContext<Wire>& context) {
  enum : End { to_gpu3 };
  context.open(22);
  const Slice tree2 = context.slice(0, 2, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree2.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree2, tick, ends(to_gpu3));
  }
  context.close();
}

// GPU 2, channel 5.
//   tree 7, root: keeps its own and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank2_channel5(KernelContext<Wire>& context) {
  enum : End { to_gpu1 };
  context.open(17);
  const Slice tree7 = context.slice(0, 2, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree7.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree7, tick, ends(to_gpu1));
  }
  context.close();
}

// GPU 2, channel 6.
//   tree 3: keeps what GPU 1 sends.
template <class Wire>
BLINK_DEVICE void rank2_channel6(KernelContext<Wire>& context) {
  enum : End { from_gpu1 };
  context.open(14);
  const Slice tree3 = context.slice(0, 3, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree3.chunks + 4);
  for (Word tick = 4; tick < end && context.running(); ++tick) {
    context.recv(tree3, tick - 4, from_gpu1);
  }
  context.close();
}

// GPU 2, channel 7.
//   tree 8: keeps what GPU 3 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank2_channel7(KernelContext<Wire>& context) {
  enum : End { from_gpu3, to_gpu1 };
  context.open(26, 18);
  const Slice tree8 = context.slice(0, 3, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree8.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree8, tick - 1, from_gpu3, ends(to_gpu1));
  }
  context.close();
}

// GPU 2, channel 8.
//   tree 4: keeps what GPU 1 sends and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank2_channel8(KernelContext<Wire>& context) {
  enum : End { from_gpu1, to_gpu3 };
  context.open(15, 23);
  const Slice tree4 = context.slice(0, 4, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree4.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree4, tick - 3, from_gpu1, ends(to_gpu3));
  }
  context.close();
}

// GPU 2, channel 9.
//   tree 9: keeps what GPU 3 sends and sends it to GPU 1.
template <class Wire>
BLINK_DEVICE void rank2_channel9(KernelContext<Wire>& context) {
  enum : End { from_gpu3, to_gpu1 };
  context.open(27, 19);
  const Slice tree9 = context.slice(0, 4, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree9.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree9, tick - 2, from_gpu3, ends(to_gpu1));
  }
  context.close();
}

// GPU 3, channel 0.
//   tree 0: keeps what GPU 2 sends and sends it to GPU 4.
template <class Wire>
BLINK_DEVICE void rank3_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu4 };
  context.open(20, 28);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree0.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree0, tick - 3, from_gpu2, ends(to_gpu4));
  }
  context.close();
}

// GPU 3, channel 1.
//   tree 5: keeps what GPU 4 sends and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank3_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu4, to_gpu2 };
  context.open(36, 24);
  const Slice tree5 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree5.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree5, tick - 2, from_gpu4, ends(to_gpu2));
  }
  context.close();
}

// GPU 3, channel 2.
//   tree 1: keeps what GPU 2 sends and sends it to GPU 4.
template <class Wire>
BLINK_DEVICE void rank3_channel2(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu4 };
  context.open(21, 29);
  const Slice tree1 = context.slice(0, 1, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree1.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree1, tick - 2, from_gpu2, ends(to_gpu4));
  }
  context.close();
}

// GPU 3, channel 3.
//   tree 6: keeps what GPU 4 sends and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank3_channel3(KernelContext<Wire>& context) {
  enum : End { from_gpu4, to_gpu2 };
  context.open(37, 25);
  const Slice tree6 = context.slice(0, 1, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree6.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree6, tick - 3, from_gpu4, ends(to_gpu2));
  }
  context.close();
}

// GPU 3, channel 4.
//   tree 2: keeps what GPU 2 sends and sends it to GPU 4.
template <class Wire>
BLINK_DEVICE void rank3_channel4(KernelContext<Wire>& context) {
  enum : End { from_gpu2, to_gpu4 };
  context.open(22, 30);
  const Slice tree2 = context.slice(0, 2, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree2.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree2, tick - 1, from_gpu2, ends(to_gpu4));
  }
  context.close();
}

// GPU 3, channel 5.
//   tree 7: keeps what GPU 4 sends.
template <class Wire>
BLINK_DEVICE void rank3_channel5(KernelContext<Wire>& context) {
  enum : End { from_gpu4 };
  context.open(38);
  const Slice tree7 = context.slice(0, 2, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree7.chunks + 4);
  for (Word tick = 4; tick < end && context.running(); ++tick) {
    context.recv(tree7, tick - 4, from_gpu4);
  }
  context.close();
}

// GPU 3, channel 6.
//   tree 3, root: keeps its own and sends it to GPU 4.
template <class Wire>
BLINK_DEVICE void rank3_channel6(KernelContext<Wire>& context) {
  enum : End { to_gpu4 };
  context.open(31);
  const Slice tree3 = context.slice(0, 3, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree3.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree3, tick, ends(to_gpu4));
  }
  context.close();
}

// GPU 3, channel 7.
//   tree 8, root: keeps its own and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank3_channel7(KernelContext<Wire>& context) {
  enum : End { to_gpu2 };
  context.open(26);
  const Slice tree8 = context.slice(0, 3, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree8.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree8, tick, ends(to_gpu2));
  }
  context.close();
}

// GPU 3, channel 8.
//   tree 4: keeps what GPU 2 sends.
template <class Wire>
BLINK_DEVICE void rank3_channel8(KernelContext<Wire>& context) {
  enum : End { from_gpu2 };
  context.open(23);
  const Slice tree4 = context.slice(0, 4, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree4.chunks + 4);
  for (Word tick = 4; tick < end && context.running(); ++tick) {
    context.recv(tree4, tick - 4, from_gpu2);
  }
  context.close();
}

// GPU 3, channel 9.
//   tree 9: keeps what GPU 4 sends and sends it to GPU 2.
template <class Wire>
BLINK_DEVICE void rank3_channel9(KernelContext<Wire>& context) {
  enum : End { from_gpu4, to_gpu2 };
  context.open(39, 27);
  const Slice tree9 = context.slice(0, 4, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree9.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree9, tick - 1, from_gpu4, ends(to_gpu2));
  }
  context.close();
}

// GPU 4, channel 0.
//   tree 0: keeps what GPU 3 sends.
template <class Wire>
BLINK_DEVICE void rank4_channel0(KernelContext<Wire>& context) {
  enum : End { from_gpu3 };
  context.open(28);
  const Slice tree0 = context.slice(0, 0, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree0.chunks + 4);
  for (Word tick = 4; tick < end && context.running(); ++tick) {
    context.recv(tree0, tick - 4, from_gpu3);
  }
  context.close();
}

// GPU 4, channel 1.
//   tree 5: keeps what GPU 0 sends and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank4_channel1(KernelContext<Wire>& context) {
  enum : End { from_gpu0, to_gpu3 };
  context.open(4, 36);
  const Slice tree5 = context.slice(0, 0, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree5.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree5, tick - 1, from_gpu0, ends(to_gpu3));
  }
  context.close();
}

// GPU 4, channel 2.
//   tree 1: keeps what GPU 3 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank4_channel2(KernelContext<Wire>& context) {
  enum : End { from_gpu3, to_gpu0 };
  context.open(29, 32);
  const Slice tree1 = context.slice(0, 1, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree1.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree1, tick - 3, from_gpu3, ends(to_gpu0));
  }
  context.close();
}

// GPU 4, channel 3.
//   tree 6: keeps what GPU 0 sends and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank4_channel3(KernelContext<Wire>& context) {
  enum : End { from_gpu0, to_gpu3 };
  context.open(5, 37);
  const Slice tree6 = context.slice(0, 1, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree6.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree6, tick - 2, from_gpu0, ends(to_gpu3));
  }
  context.close();
}

// GPU 4, channel 4.
//   tree 2: keeps what GPU 3 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank4_channel4(KernelContext<Wire>& context) {
  enum : End { from_gpu3, to_gpu0 };
  context.open(30, 33);
  const Slice tree2 = context.slice(0, 2, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree2.chunks + 2);
  for (Word tick = 2; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree2, tick - 2, from_gpu3, ends(to_gpu0));
  }
  context.close();
}

// GPU 4, channel 5.
//   tree 7: keeps what GPU 0 sends and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank4_channel5(KernelContext<Wire>& context) {
  enum : End { from_gpu0, to_gpu3 };
  context.open(6, 38);
  const Slice tree7 = context.slice(0, 2, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree7.chunks + 3);
  for (Word tick = 3; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree7, tick - 3, from_gpu0, ends(to_gpu3));
  }
  context.close();
}

// GPU 4, channel 6.
//   tree 3: keeps what GPU 3 sends and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank4_channel6(KernelContext<Wire>& context) {
  enum : End { from_gpu3, to_gpu0 };
  context.open(31, 34);
  const Slice tree3 = context.slice(0, 3, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree3.chunks + 1);
  for (Word tick = 1; tick < end && context.running(); ++tick) {
    context.recv_copy_send(tree3, tick - 1, from_gpu3, ends(to_gpu0));
  }
  context.close();
}

// GPU 4, channel 7.
//   tree 8: keeps what GPU 0 sends.
template <class Wire>
BLINK_DEVICE void rank4_channel7(KernelContext<Wire>& context) {
  enum : End { from_gpu0 };
  context.open(7);
  const Slice tree8 = context.slice(0, 3, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree8.chunks + 4);
  for (Word tick = 4; tick < end && context.running(); ++tick) {
    context.recv(tree8, tick - 4, from_gpu0);
  }
  context.close();
}

// GPU 4, channel 8.
//   tree 4, root: keeps its own and sends it to GPU 0.
template <class Wire>
BLINK_DEVICE void rank4_channel8(KernelContext<Wire>& context) {
  enum : End { to_gpu0 };
  context.open(35);
  const Slice tree4 = context.slice(0, 4, 0, 1, 1, 2);  // 0 … 1/2 of the block
  const Word end = latest(tree4.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree4, tick, ends(to_gpu0));
  }
  context.close();
}

// GPU 4, channel 9.
//   tree 9, root: keeps its own and sends it to GPU 3.
template <class Wire>
BLINK_DEVICE void rank4_channel9(KernelContext<Wire>& context) {
  enum : End { to_gpu3 };
  context.open(39);
  const Slice tree9 = context.slice(0, 4, 1, 2, 1, 1);  // 1/2 … 1 of the block
  const Word end = latest(tree9.chunks);
  for (Word tick = 0; tick < end && context.running(); ++tick) {
    context.copy_send(tree9, tick, ends(to_gpu3));
  }
  context.close();
}

constexpr uint32_t kChannels = 10;

template <class Wire>
BLINK_DEVICE void run(KernelContext<Wire>& context, uint32_t rank, uint32_t channel) {
  switch (rank * kChannels + channel) {
    case 0: return rank0_channel0(context);
    case 1: return rank0_channel1(context);
    case 2: return rank0_channel2(context);
    case 3: return rank0_channel3(context);
    case 4: return rank0_channel4(context);
    case 5: return rank0_channel5(context);
    case 6: return rank0_channel6(context);
    case 7: return rank0_channel7(context);
    case 8: return rank0_channel8(context);
    case 9: return rank0_channel9(context);
    case 10: return rank1_channel0(context);
    case 11: return rank1_channel1(context);
    case 12: return rank1_channel2(context);
    case 13: return rank1_channel3(context);
    case 14: return rank1_channel4(context);
    case 15: return rank1_channel5(context);
    case 16: return rank1_channel6(context);
    case 17: return rank1_channel7(context);
    case 18: return rank1_channel8(context);
    case 19: return rank1_channel9(context);
    case 20: return rank2_channel0(context);
    case 21: return rank2_channel1(context);
    case 22: return rank2_channel2(context);
    case 23: return rank2_channel3(context);
    case 24: return rank2_channel4(context);
    case 25: return rank2_channel5(context);
    case 26: return rank2_channel6(context);
    case 27: return rank2_channel7(context);
    case 28: return rank2_channel8(context);
    case 29: return rank2_channel9(context);
    case 30: return rank3_channel0(context);
    case 31: return rank3_channel1(context);
    case 32: return rank3_channel2(context);
    case 33: return rank3_channel3(context);
    case 34: return rank3_channel4(context);
    case 35: return rank3_channel5(context);
    case 36: return rank3_channel6(context);
    case 37: return rank3_channel7(context);
    case 38: return rank3_channel8(context);
    case 39: return rank3_channel9(context);
    case 40: return rank4_channel0(context);
    case 41: return rank4_channel1(context);
    case 42: return rank4_channel2(context);
    case 43: return rank4_channel3(context);
    case 44: return rank4_channel4(context);
    case 45: return rank4_channel5(context);
    case 46: return rank4_channel6(context);
    case 47: return rank4_channel7(context);
    case 48: return rank4_channel8(context);
    case 49: return rank4_channel9(context);
  }
}

}  // namespace allgather
}  // namespace

BLINK_ENTRY(blink_allgather_simple, Simple, allgather::run)
BLINK_ENTRY(blink_allgather_ll, LL, allgather::run)
BLINK_ENTRY(blink_allgather_ll128, LL128, allgather::run)
BLINK_COPY_ENTRY(blink_allgather_copies, allgather::run)
