// The arguments of a launch: plain data with one layout on the GPU, on this CPU, in libblink.so and in Python.
//
// A rank runs a program as `channels × parts` blocks. The blocks of a channel execute its roles tick by tick, in
// parallel: each has its own part of every slice, its own messages and its own counters. Launches on one connection may
// use different numbers of parts, up to the number that the connection was created for. All ranks of a launch use the
// same.
#pragma once

#ifdef __CUDACC_RTC__  // NVRTC brings no headers
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
#else
#include <cstdint>
#endif

#include "blink/types.h"

namespace blink {

#ifdef __CUDACC_RTC__
typedef unsigned long long Word;
#else
typedef std::uint64_t Word;
#endif
// Words between the counters of two parts: one cache line each, so that no block polls a line that others write.
constexpr uint32_t kStride = 16;
// The most connections of a channel: a block keeps their counters in shared memory.
constexpr uint32_t kMostEnds = 128;
// The first parts of a slice's pieces are given in kTurns-ths of all parts of a channel.
constexpr uint32_t kTurns = 64;
// Libblink.so cuts no slice into pieces smaller than this: two barriers and a fence would take as long as the copy.
constexpr uint32_t kPieceBytes = 16384;
// The most threads of a block on a GPU, a multiple of 32.
constexpr uint32_t kMostThreads = 512;
// The blocks of kMostThreads threads that a multiprocessor runs at once, with its 65536 registers. This
// leaves each block kBlockBytes of shared memory, besides the part that the GPU reserves.
constexpr uint32_t kBlocksAtOnce = 2;
constexpr uint32_t kThreadRegisters = 64;
constexpr uint32_t kBlockBytes = 18432;
// The most slices of a channel on one rank: a block keeps them in shared memory.
constexpr uint32_t kMostSlices = 128;
// The most messages that one reduce kernel reduces.
constexpr uint32_t kMostOperands = 19;

// One end of a connection, which carries messages in order from one rank to another. All addresses are valid on the
// rank whose end it is. Counters only increase and persist across launches: a replayed graph continues where the last
// launch ended. Part p uses the counters at [p * kStride] and the p-th ring.
// If messages are staged in a processor's memory, everything that both ends share is in that memory.
struct Connection {
  char* ring;      // in the receiver's memory: per part `slots` messages of `slot_bytes`
  char* lines;     // in the receiver's memory, with flags inside: per part `slots` messages of `line_bytes` of LL, then
                   // the same number of LL128
  Word* tail;      // in the receiver's memory: messages that have been written into the ring
  Word* head;      // in the sender's memory: messages that have been read
  Word* position;  // in this rank's own memory: messages that this end has processed
};

// Reason why a launch ended early. The first block that gives up writes it; `code` is written last and is 0 until then.
struct Status {
  uint32_t code;        // a StatusCode
  uint32_t connection;  // on which the block waited
  uint32_t sending;     // 1: for a free slot; 0: for a message
  uint32_t channel;
  Word position;        // index of the message that did not arrive, or had no slot
};

enum StatusCode : uint32_t { kRunning = 0, kAborted = 1, kTimedOut = 2 };

enum ScaleKind : uint32_t {
  kUnscaled = 0,
  kScaleGiven = 1,    // `scale` holds the bits of a number of the accumulator's type;
  kScaleStored = 2,   // `scale_at` points to a number of the element type, read when the launch runs;
  kScaleElement = 3,  // `scale` holds the bits of a number of the element type
};

// The argument of every generated kernel.
struct Call {
  const char* input;
  char* output;
  const Connection* connections;  // all ends of this rank, by connection id; in its own memory
  const uint32_t* abort;          // not 0: give up;
  Status* status;
  const char* scale_at;
  Word scale;
  Word count;          // elements per block of the collective, as the `count` of nccl.h;
  Word chunk_bytes;    // the most in one part's message: a multiple of 16, up to slot_bytes (LL, LL128: lines' data);
  Word timeout_ns;     // 0: no timeout;
  Word slot_bytes;     // a multiple of 128
  Word line_bytes;     // a multiple of 128; half of it is data with LL, 120 of every 128 with LL128;
  uint32_t slots;
  uint32_t parts;
  uint32_t rank;
  uint32_t dtype;      // of blink_dtype
  uint32_t op;         // of blink_operation
  uint32_t average;    // 1: divide where a reduction is complete;
  uint32_t scale_kind;
  uint32_t program;    // index among the kernel's programs
  uint32_t reserved;
  uint32_t piece_bytes;  // the smallest piece of a slice, a multiple of 16; 0: as many pieces as parts
};

}  // namespace blink
