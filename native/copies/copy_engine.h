// The third protocol, `copies`, beside Simple and LL: how copy engines run a program, as in Blink (MLSys 2020, §4.1). A generated loop is run on the host, and every execution becomes copies, waits and reduce kernels in streams.
//
// A message: the sender's stream waits until the receiver has given a slot back (`head`, in the sender's own memory),
// copies into the slot, and counts it in `tail`, in the receiver's memory; the receiver's stream waits for that. Both
// are stream memory operations, so ranks in other processes need no event of each other.
//
// A message that is staged goes into a slot in pinned memory of the host, with both counters there. A stream of the
// receiver's of its own (one per peer and level) fetches it into a slot of a second ring, on the receiver's GPU, and
// gives the one on the host back at once: so one chunk comes down while the next goes up and the last is combined. The
// main stream follows by an event, and an event for each slot of that ring says when it was read.
//
// Streams: one per link, and one for all trees that use the link at the same level (§4.2.2), in which they take turns
// chunk by chunk. An execution works in the stream of its first send; its other sends follow it by events. All of its
// operands are combined by one kernel (blink_fold), into the own output if the result is kept, else in the place of its
// first message, whose slot is given back when the copies from there are done. So there is no memory but the slots.
//
// Nothing waits on the host. The driver itself does where a stream holds too many commands (about a thousand), and then
// one thread that serves several ranks could wait for itself: chunks are made so large that a call has few of them.
//
// Messages between two ranks (ncclSend and ncclRecv) take paths of their own, of which the plan says how much goes over
// each. On all of them the sender copies a chunk into a slot and the receiver copies it to where it is wanted; only where
// the slots lie differs: on the receiver's GPU, in pinned memory of the host, or on a GPU between the two, whose rank has
// given the memory and does nothing. All messages of a group go side by side, a stream per end of a path, and begin where
// the group begins, beside what NCCL serves of it. They are enqueued by chunk, sends before receives: so where all ranks
// call the same group, every wait is again for something earlier in an order that they share.
//
// Positions are counted here, on the host, which a graph that is replayed would not know: while a stream is captured,
// the communicator takes a kernel's protocol for the call.
//
// BLINK_PROTOCOL=copies makes the planner choose it wherever it has a program for it.
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
  // Words that streams write, in memory that the GPU and this process see: how many launches have begun, and ended.
  struct Words {
    std::uint64_t begun, ended;
  };
  // What it works with; all of it outlives it.
  struct Place {
    int rank = 0;
    CUdevice device = 0;
    CUcontext context = nullptr;
    std::vector<CUdeviceptr> segments;          // by rank; 0 where no connection leads; then of memories, which lie
    char* staging = nullptr;                    // one behind the other here,
    CUdeviceptr staging_device = 0;             // where the GPU finds them,
    std::uint64_t staging_bytes = 0;            // and are as large
    Words* words = nullptr;                     // which the GPU can write, both 0,
    CUdeviceptr words_device = 0;               // where it finds them
    volatile std::uint32_t* abort = nullptr;
  };
  // One end of a message.
  struct Message {
    const Bundle::Split* split = nullptr;
    bool sends = false;
    CUdeviceptr at = 0;
    std::uint64_t bytes = 0;
  };

  // With `place.context` current, as all but idle() and status(). nullptr and `why` if the driver or the GPU has no
  // stream memory operations.
  static std::unique_ptr<CopyEngines> open(const Driver& driver, const Bundle& bundle, const Place& place,
                                           std::string* why);
  virtual ~CopyEngines() = default;

  // Makes a program ready: its object is opened, its streams are created. `fold` is the reduce kernel of its image.
  virtual bool add(int program, CUfunction fold, std::string* why) = 0;
  // Enqueues one collective: after all that `stream` holds, and before all that comes next.
  virtual CUresult launch(int program, const Call& call, CUstream stream) = 0;
  // Where messages that are launched next begin: after all that the stream holds now.
  virtual CUresult fork(CUstream stream) = 0;
  // Enqueues messages that all go at once: what `stream` holds next comes after them.
  virtual CUresult launch(const std::vector<Message>& messages, std::uint64_t timeout_ns, CUstream stream) = 0;
  // Whether all launches have ended.
  virtual bool idle() = 0;
  // Why launches were ended early; code 0: none was.
  virtual Status status() const = 0;
};

}  // namespace blink::shim
