// What one rank owns on its GPU: a segment of memory that its peers write into, the generated code as loaded modules,
// and what a launch needs: the tables of connections, the abort word, the place where a launch says why it ended early.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blink/call.h"
#include "bundle.h"
#include "copy_engine.h"
#include "deadline.h"
#include "driver.h"
#include "peer_write_probe.h"
#include "pool.h"
#include "resident_blocks.h"
#include "shared_page.h"

namespace blink::shim {

class Engine {
 public:
  // The device's primary context, the segment (zeroed when this returns) and the modules for its architecture.
  // nullptr and `why`: no memory, no image for this GPU, a kernel that is missing, no room for the blocks.
  // `sharing`: how many ranks of the communicator use this GPU, of which they may use so many `multiprocessors`.
  static std::unique_ptr<Engine> open(const Driver& driver, const Bundle& bundle, int rank, int device, int sharing,
                                      unsigned multiprocessors, std::shared_ptr<SharedPage> page, std::string* why);
  // When all that was launched has ended, and this rank has told the others that it is done.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Blocks for which there is room here. No launch has more than all ranks have room for.
  std::uint32_t blocks() const { return room_; }
  void use_blocks(std::uint32_t blocks);
  // How others map the segment, as one line of text.
  std::string address() const;
  // Maps the segments of all peers into which a connection leads, and writes this rank's table of connections.
  bool connect(const std::vector<std::string>& addresses, std::string* why);
  // Writes probes into the memory of those peers; and, when all ranks have, whether theirs have arrived here. False and
  // `why` also where that is not over by the deadline: then this engine is never drained.
  bool write_probes(const Deadline& deadline, std::string* why);
  bool check_probes(const Deadline& deadline, std::string* why);

  // The capture that a stream takes part in. `id` 0: none. `lost`: it has failed, and the stream takes nothing until
  // the program ends it.
  struct Capture {
    unsigned long long id = 0;
    bool lost = false;
    bool any() const { return id != 0 || lost; }
  };
  CUresult capture_of(CUstream stream, Capture* capture) const;

  // Enqueues one program. `call` holds buffers, sizes, type and operation; the rest is filled in here. `capture`: what
  // capture_of() says of the stream. `before` and `after` (null: none) are recorded around it, outside of captures.
  CUresult launch(int program, Bundle::Protocol protocol, Call call, CUstream stream, const Capture& capture,
                  CUevent before, CUevent after);

  // Lets each of these streams, and the communicator's next call, wait for all that they hold now. kCudaCaptureMerge
  // where some are in a capture that others are not in.
  CUresult join(const std::vector<CUstream>& streams);

  // NCCL serves a call of this communicator on `stream`. What is put there between the two comes after our calls so
  // far, and before those that follow.
  CUresult before_nccl(CUstream stream);
  CUresult after_nccl(CUstream stream);

  // Messages, in two steps: where they begin, which is after all that the stream holds now; and, when what comes before
  // them in their group is enqueued, the messages. What the stream holds next comes after them.
  CUresult fork(CUstream stream);
  CUresult launch(const std::vector<CopyEngines::Message>& messages, std::uint64_t timeout_ns, CUstream stream);

  // What a launch that ended early has said; code 0: none did.
  Status status() const;
  // Whether there may be a graph whose replays drain() does not see.
  bool has_unseen_replays() const { return unseen_; }
  // All that was launched has ended, here and by replays so far; false if that takes longer than the deadline.
  bool drain(double seconds);

  const Driver& driver() const { return driver_; }
  CUcontext context() const { return context_; }

 private:
  Engine(const Driver& driver, const Bundle& bundle, int rank);
  bool allocate(std::string* why);
  bool load(std::string* why);
  bool reserve_blocks(int sharing, unsigned multiprocessors, std::string* why);
  bool share_host_memory(std::shared_ptr<SharedPage> page, std::string* why);
  bool share_staging(std::string* why);
  std::vector<CUdeviceptr> segments() const;
  bool map_peer(int peer, const std::string& address, std::string* why);
  bool map_for(const Bundle::Connection& connection, const std::vector<std::string>& addresses, std::string* why);
  bool open_copies(std::string* why);
  bool open_copy_engines(std::string* why);
  bool wait_for_setup(const Deadline& deadline, const char* what, std::string* why);
  CUresult run(int program, Bundle::Protocol protocol, Call call, CUstream stream);
  CUresult follow(CUstream stream, unsigned long long capture, bool ours = true);
  CUresult note(CUstream stream, unsigned long long capture) { return note(stream, capture, last_event_); }
  CUresult note(CUstream stream, unsigned long long capture, CUevent event);
  CUresult note_captured(CUstream stream, unsigned long long capture);
  bool ok(CUresult result, const char* what, std::string* why) const;

  struct Peer {
    CUdeviceptr base = 0;
    std::string gpu;  // its bus id
  };
  // The communicator's last launch in one capture.
  struct Captured {
    unsigned long long capture = 0;
    CUstream stream = nullptr;
    CUevent event = nullptr;
  };
  struct Kernels {
    CUfunction by_protocol[3] = {};
    CUfunction fold = nullptr;  // where copy engines run it
  };

  const Driver& driver_;
  const Bundle& bundle_;
  int rank_;
  int ordinal_ = 0;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::uint64_t kept_ = 0;  // where the pool keeps what is on this GPU
  std::string arch_;
  Arena arena_;  // with the words of copies_ in its status page
  CUdeviceptr table_ = 0;
  std::vector<Peer> peers_;
  std::vector<Kernels> kernels_;
  ResidentBlocks blocks_;
  std::uint32_t room_ = 0;  // 0: copy engines run everything
  std::shared_ptr<SharedPage> page_;
  std::unique_ptr<PeerWriteProbe> probe_;  // since connect()
  std::unique_ptr<CopyEngines> copies_;  // where a program is for copy engines
  bool remote_ = false;  // has_remote_domain()
  CUdeviceptr staging_device_ = 0, abort_device_ = 0;
  CUstream setup_stream_ = nullptr;
  // Calls of one communicator follow each other, on whatever streams they come, and so do replays: all wait for this
  // event and record it. Inside a capture they follow each other by an event of the capture.
  CUevent last_event_ = nullptr;
  CUevent nccl_event_ = nullptr;  // behind NCCL's last call, of which drain() does not know: NCCL ends its own
  CUevent joined_ = nullptr;  // of join() alone
  std::vector<Captured> captures_;  // the latest, the oldest first
  bool mixes_ = true;       // replays wait for last_event_ and record it
  bool in_graphs_ = false;  // a graph may name these events
  bool beside_nccl_ = false;  // it has served a call
  bool unseen_ = false;
};

}  // namespace blink::shim
