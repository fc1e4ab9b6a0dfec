// The third protocol, `copies`, besides Simple and LL: a program on copy engines, as in Blink (MLSys 2020, §4.1). The
// generated loop runs on the host, and every execution becomes copies, waits and reduce kernels in streams.
//
// Messages: the sender's stream waits for a free slot (`head`, in the sender's own memory), copies into the slot, and
// increments `tail` in the receiver's memory; the receiver's stream waits for that. Both waits are stream memory
// operations, so ranks in different processes share no events.
//
// A staged message goes into a slot in pinned host memory, with both counters there. The receiver has a separate stream
// per peer and level. It copies the message into a slot of a second ring, on the receiver's GPU, and frees the host
// slot at once. So one chunk is copied down while the next is copied up and the last is reduced. The main stream
// follows by an event, and an event for each slot of that ring marks the end of its reading.
//
// Streams: one per link, and a shared one for all trees that use the link at the same level (§4.2.2), which alternate
// chunk by chunk. An execution runs in the stream of its first send; its other sends follow by events. One kernel
// (blink_fold) reduces all operands, into the own output if the result is kept, otherwise in place of the first
// message. That slot is freed after the copies from it. So no memory is needed besides the slots.
//
// Nothing waits on the host, except the driver in a stream with too many commands (about a thousand). Then a thread
// that serves several ranks could wait for itself, so chunks are large enough that a call has few of them.
//
// Messages between two ranks (ncclSend and ncclRecv) use separate paths, and the plan divides the bytes among them. On
// every path the sender copies a chunk into a slot and the receiver copies it to its destination. The slots are on the
// receiver's GPU, in pinned host memory, or on a GPU in between, whose rank only provides the memory. All messages of a
// group run in parallel, in a stream per end of a path. They begin with the group, beside the calls that NCCL serves.
// They are enqueued by chunk, sends before receives. So if all ranks call the same group, every wait is for something
// earlier in a common order.
//
// Positions are counted on the host, which a replayed graph would not repeat: during stream capture the communicator
// uses a kernel protocol for the call.
//
// With BLINK_PROTOCOL=copies the planner selects this protocol wherever it has a program for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blink/call.h"
#include "bundle.h"
#include "driver.h"

namespace blink::shim {

class CopyEngines {
 public:
  // Numbers of launches begun and ended, written by streams to memory that the GPU and this process can access.
  struct Words {
    std::uint64_t begun, ended;
  };
  // The resources of the engines, all of which outlive them.
  struct Place {
    int rank = 0;
    CUdevice device = 0;
    CUcontext context = nullptr;
    std::vector<CUdeviceptr> segments;          // by rank, 0 without a connection; then the host memories, in order;
    char* staging = nullptr;                    // the host memories' address in this process;
    CUdeviceptr staging_device = 0;             // their address on the GPU;
    std::uint64_t staging_bytes = 0;            // their size;
    Words* words = nullptr;                     // writable by the GPU, initially 0;
    CUdeviceptr words_device = 0;               // their address on the GPU
    volatile std::uint32_t* abort = nullptr;
  };
  // One end of a message.
  struct Message {
    const Bundle::Split* split = nullptr;
    bool sends = false;
    CUdeviceptr at = 0;
    std::uint64_t bytes = 0;
  };

  // Requires `place.context` to be current, like all functions but idle() and status(). Returns nullptr and `why` if
  // the driver or the GPU lacks stream memory operations.
  static std::unique_ptr<CopyEngines> open(const Driver& driver, const Bundle& bundle, const Place& place,
                                           std::string* why);
  virtual ~CopyEngines() = default;

  // Prepares a program: loads its object and creates its streams. `fold` is the reduce kernel of its image.
  virtual bool add(int program, CUfunction fold, std::string* why) = 0;
  // Enqueues one collective: after all earlier work in `stream`, and before all later work.
  virtual CUresult launch(int program, const Call& call, CUstream stream) = 0;
  // Sets the beginning of the next messages: after all work in the stream so far.
  virtual CUresult fork(CUstream stream) = 0;
  // Enqueues messages that run in parallel; later work in `stream` follows them.
  virtual CUresult launch(const std::vector<Message>& messages, std::uint64_t timeout_ns, CUstream stream) = 0;
  // Whether all launches have ended.
  virtual bool idle() = 0;
  // The reason why launches ended early; code 0: none did.
  virtual Status status() const = 0;
};

}  // namespace blink::shim
