// One rank's part of the GPU: a segment that its peers write into, the generated code as loaded modules, and the
// arguments of launches: tables of connections, the abort word, and the status in which a launch reports an error.
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
  // Opens the device's primary context, allocates the segment (zeroed on return) and loads the modules for its
  // architecture. nullptr and `why`: no memory, no image for this GPU, a missing kernel, no room for the blocks.
  // `sharing`: ranks of the communicator on this GPU, which together may use `multiprocessors`.
  static std::unique_ptr<Engine> open(const Driver& driver, const Bundle& bundle, int rank, int device, int sharing,
                                      unsigned multiprocessors, std::shared_ptr<SharedPage> page, std::string* why);
  // To be called after all launches have ended and this rank has reported that to the others.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Blocks that fit on this GPU. A launch has at most as many as fit on every rank's.
  std::uint32_t blocks() const { return room_; }
  void use_blocks(std::uint32_t blocks);
  // The segment's address for peers, as one line of text.
  std::string address() const;
  // Maps the segments of all peers with a connection from here, and writes this rank's table of connections.
  bool connect(const std::vector<std::string>& addresses, std::string* why);
  // write_probes() writes probes into those peers' memory. check_probes(), after all ranks have written, checks that
  // theirs have arrived. False and `why` on an error or after the timeout; then the engine is never drained.
  bool write_probes(const Deadline& deadline, std::string* why);
  bool check_probes(const Deadline& deadline, std::string* why);

  // A stream's capture. `id` 0: none. `lost`: the capture has failed, and the stream accepts nothing until the program
  // ends it.
  struct Capture {
    unsigned long long id = 0;
    bool lost = false;
    bool any() const { return id != 0 || lost; }
  };
  CUresult capture_of(CUstream stream, Capture* capture) const;

  // Enqueues one program. `call` holds buffers, sizes, type and operation; the engine fills in the rest. `capture`: the
  // result of capture_of(). `before` and `after` (null: none) are recorded around the launch, outside of captures.
  CUresult launch(int program, Bundle::Protocol protocol, Call call, CUstream stream, const Capture& capture,
                  CUevent before, CUevent after);

  // Makes each of these streams, and the communicator's next call, wait for the present work of all of them.
  // kCudaCaptureMerge if only some of them are in the same capture.
  CUresult join(const std::vector<CUstream>& streams);

  // Bracket a call of this communicator that NCCL runs on `stream`. Work enqueued between the two comes after Blink's
  // earlier calls and before its later ones.
  CUresult before_nccl(CUstream stream);
  CUresult after_nccl(CUstream stream);

  // Messages, in two steps. fork() marks their beginning, after the stream's present work; launch() enqueues them once
  // the earlier calls of their group are enqueued. Later work of the stream waits for them.
  CUresult fork(CUstream stream);
  CUresult launch(const std::vector<CopyEngines::Message>& messages, std::uint64_t timeout_ns, CUstream stream);

  // The error of a launch; code 0: none.
  Status status() const;
  // True if a graph may exist whose replays drain() cannot observe.
  bool has_unseen_replays() const { return unseen_; }
  // Waits until all launches and replays so far have ended; false after the timeout.
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
    CUfunction fold = nullptr;  // if copy engines run the program
  };

  const Driver& driver_;
  const Bundle& bundle_;
  int rank_;
  int ordinal_ = 0;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::uint64_t kept_ = 0;  // the pool's number for this GPU's context
  std::string arch_;
  Arena arena_;  // with copies_' words in its status page
  CUdeviceptr table_ = 0;
  std::vector<Peer> peers_;
  std::vector<Kernels> kernels_;
  ResidentBlocks blocks_;
  std::uint32_t room_ = 0;  // 0: copy engines run all programs
  std::shared_ptr<SharedPage> page_;
  std::unique_ptr<PeerWriteProbe> probe_;  // since connect()
  std::unique_ptr<CopyEngines> copies_;  // if some program or message needs them
  bool remote_ = false;  // has_remote_domain()
  CUdeviceptr staging_device_ = 0, abort_device_ = 0;
  CUstream setup_stream_ = nullptr;
  // Calls of one communicator run one after another on any streams, and so do replays: each waits for this event and
  // records it. Inside a capture an event of the capture orders them.
  CUevent last_event_ = nullptr;
  CUevent nccl_event_ = nullptr;  // after NCCL's last call; drain() ignores it, since NCCL waits for its own calls
  CUevent joined_ = nullptr;  // only for join()
  std::vector<Captured> captures_;  // the latest ones, the oldest first
  bool mixes_ = true;       // replays wait for last_event_ and record it
  bool in_graphs_ = false;  // a graph may refer to these events
  bool beside_nccl_ = false;  // NCCL has run a call
  bool unseen_ = false;
};

}  // namespace blink::shim
