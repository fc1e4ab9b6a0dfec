// The implementation of copy engines (copy_engine.h): the commands of each stream, and the watch that ends endless
// waits.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "blink/call.h"
#include "blink/cut.h"
#include "blink/reduction.h"
#include "copy_engine.h"
#include "copy_plan.h"

namespace blink::shim {

// Frees streams that wait for a rank that will never come. Unlike kernels, waits in a stream have no timeout and no
// abort flag. So a thread checks the words that the streams write, and the abort word, while launches run.
class CopyWatch {
 public:
  typedef CopyEngines::Words Words;
  // Frees the current waits. Called repeatedly, because freed work of peers may still write its own, lower values to
  // this rank's counters.
  typedef std::function<void()> Free;

  // `words` and `abort` outlive the watch.
  CopyWatch(const Words* words, volatile std::uint32_t* abort, Free free);
  ~CopyWatch();
  CopyWatch(const CopyWatch&) = delete;
  CopyWatch& operator=(const CopyWatch&) = delete;

  // Watches launch number `launch` (1, 2, …), which is about to be enqueued, for `timeout_ns`; 0: no timeout.
  void look_after(std::uint64_t launch, std::uint64_t timeout_ns);
  // Whether all launches have ended; after a failed enqueueing, as far as can be known.
  bool idle();
  void stop_counting();
  // The reason why launches ended early: a StatusCode.
  std::uint32_t code() const { return __atomic_load_n(&code_, __ATOMIC_ACQUIRE); }

 private:
  void run();
  bool all_ended() const;
  bool late();
  std::uint32_t trouble();

  const Words* words_;
  volatile std::uint32_t* abort_;
  const Free free_;
  std::uint32_t code_ = kRunning;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t launched_ = 0, timeout_ns_ = 0;
  std::uint64_t seen_ = 0;  // state of the words at `since_`
  std::chrono::steady_clock::time_point since_;
  bool stopping_ = false;
  std::thread thread_;
};

class CopyEngineRun final : public CopyEngines {
 public:
  CopyEngineRun(const Driver& driver, const Bundle& bundle, const Place& place);
  bool prepare(std::string* why);
  ~CopyEngineRun();  // requires the context to be current
  CopyEngineRun(const CopyEngineRun&) = delete;
  CopyEngineRun& operator=(const CopyEngineRun&) = delete;

  bool add(int program, CUfunction fold, std::string* why) override;
  CUresult launch(int program, const Call& call, CUstream stream) override;
  CUresult fork(CUstream stream) override { return driver_.event_record(forked_, stream); }
  CUresult launch(const std::vector<Message>& messages, std::uint64_t timeout_ns, CUstream stream) override;
  bool idle() override { return watch_->idle(); }
  Status status() const override;

 private:
  enum class Use { kSend, kReceive, kOwn, kFetch, kPath };
  typedef std::tuple<std::uint32_t, Use, int> Key;  // level, use, peer

  struct Stream {
    CUstream handle = nullptr;
    CUevent event = nullptr;   // of the last command that another stream had to follow;
    std::uint64_t launch = 0;  // the last that used the stream
  };
  struct Role {
    CopyRole role;
    Stream* main = nullptr;
    std::vector<Stream*> sends;
    std::vector<Stream*> fetches;  // by message; nullptr: the message arrives in this GPU's memory
  };
  struct Program {
    void* object = nullptr;
    const device::ProgramRows* rows = nullptr;  // in the object
    CUfunction fold = nullptr;
    std::vector<Role> roles;  // of this rank's rows
  };
  // An execution, stored until all are sorted.
  struct Step {
    Word chunk_number;
    Role* role;
    device::Chunk chunk;
    std::uint32_t own_operand_index, divisor;
    bool keeps;
  };

  // A chunk of a message. `number` counts those of its path in a launch.
  struct Piece {
    Word number;
    bool sends;
    std::uint32_t path;
    CUdeviceptr at;
    std::size_t bytes;
  };

  // --- preparation
  bool open_object(int program, Program* made, std::string* why);
  Stream* stream_for(std::uint32_t level, Use use, int peer, std::string* why);
  void describe(const Call& call);
  void list_steps(const device::Channel& of);

  // --- enqueueing; the first error stops it
  struct Result {
    CUdeviceptr at;  // 0: each send reduces it directly into its slot;
    bool of_main;    // complete only after the main stream's work so far; otherwise from the start
  };
  void begin(std::uint64_t timeout_ns, CUstream stream, CUevent start);
  void cut(const Message& message, std::map<std::uint32_t, Word>* numbers, std::vector<Piece>* pieces) const;
  void enqueue(const Piece& piece);
  void enqueue(const Step& step);
  Result combine(const Step& step);
  void follow_readers(const Step& step);
  void send(const Step& step, std::size_t i, CUdeviceptr source);
  void fold(Stream& stream, const Step& step, CUdeviceptr target);
  void copy(Stream& stream, CUdeviceptr to, CUdeviceptr from, std::size_t bytes);
  void receive(const Step& step, std::size_t i);
  void give_back(Stream& stream, std::uint32_t id);
  void await(Stream& stream, CUdeviceptr counter, Word value);
  void tell(Stream& stream, CUdeviceptr counter, Word value);
  void follow(Stream& later, Stream& earlier);
  void use(Stream& stream);
  void join(CUstream stream);
  bool good(CUresult result) {
    if (result_ == kCudaSuccess) result_ = result;
    return result_ == kCudaSuccess;
  }

  const Bundle::Connection& connection(std::uint32_t id) const { return bundle_.connections[id]; }
  bool make_events(std::uint32_t id, std::string* why);
  // Places of the next message: where its sender writes it, and where it is after its receipt.
  CUdeviceptr slot(std::uint32_t id) const { return segment(connection(id).home) + connection(id).copy_ring + ring(id); }
  CUdeviceptr received(std::uint32_t id) const {
    return connection(id).staged() ? segment(connection(id).dst) + connection(id).copy_landing + ring(id) : slot(id);
  }
  CUevent read(std::uint32_t id) const { return read_.at(id)[position(id) % bundle_.copy_slots]; }
  std::uint64_t ring(std::uint32_t id) const {
    return position(id) % bundle_.slots_of(id) * bundle_.slot_bytes_of(id);
  }
  Word position(std::uint32_t id) const { return positions_[id].load(std::memory_order_relaxed); }
  void advance(std::uint32_t id) { positions_[id].store(position(id) + 1, std::memory_order_relaxed); }
  CUdeviceptr tail(std::uint32_t id) const { return segment(connection(id).tail_at()) + connection(id).copy_tail; }
  CUdeviceptr head(std::uint32_t id) const { return segment(connection(id).head_at()) + connection(id).copy_head; }
  // The address in this process of a place in host memory; nullptr: it is on a GPU.
  char* on_host(CUdeviceptr at) const {
    const bool inside = at >= place_.staging_device && at - place_.staging_device < place_.staging_bytes;
    return inside ? place_.staging + (at - place_.staging_device) : nullptr;
  }
  CUdeviceptr segment(int rank) const { return place_.segments[static_cast<std::size_t>(rank)]; }

  // --- early end
  void free_waits();
  void find_fault();

  const Driver& driver_;
  const Bundle& bundle_;
  const Place place_;
  std::uint32_t most_blocks_ = 1;
  std::map<int, Program> programs_;
  std::map<Key, std::unique_ptr<Stream>> streams_;
  std::vector<std::atomic<Word>> positions_;  // by connection: messages that this end has processed;
  std::map<std::uint32_t, std::vector<CUevent>> read_;  // by connection and slot: the end of reading a fetched message
  CUstream side_ = nullptr;
  CUevent begun_ = nullptr, forked_ = nullptr;
  CUevent start_ = nullptr;  // of the current launch: one of the two
  std::uint64_t launches_ = 0;
  Status fault_ = {};  // the wait that did not end;
  bool fault_known_ = false;  // used by the watch's thread only
  mutable std::mutex fault_mutex_;

  // State of the current launch.
  device::State state_ = {};
  Program* program_ = nullptr;
  const Call* call_ = nullptr;
  std::vector<Step> steps_;
  std::vector<Stream*> used_;
  std::map<const char*, std::vector<Stream*>> readers_;  // by place of the own data that they read
  CUresult result_ = kCudaSuccess;

  std::unique_ptr<CopyWatch> watch_;  // last, so that it is destroyed before the members that it uses
};

}  // namespace blink::shim
