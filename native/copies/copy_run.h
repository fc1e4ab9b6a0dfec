// How copy engines run: what is put into which stream (copy_engine.h), and who ends what waits for ever.
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

// Frees streams that wait for a rank that will never come. Waits in a stream know no deadline and no abort flag, as those
// of kernels do. A thread looks at words that the streams write, and at the abort word, while something runs.
class CopyWatch {
 public:
  typedef CopyEngines::Words Words;
  // Frees what waits now. Called again and again: work of peers that was set free may still write counters of ours, as
  // low as they should have been.
  typedef std::function<void()> Free;

  // `words` and `abort` outlive the watch.
  CopyWatch(const Words* words, volatile std::uint32_t* abort, Free free);
  ~CopyWatch();
  CopyWatch(const CopyWatch&) = delete;
  CopyWatch& operator=(const CopyWatch&) = delete;

  // Launch number `launch` (1, 2, …) is about to be enqueued. It may run for `timeout_ns`, 0: as long as it takes.
  void look_after(std::uint64_t launch, std::uint64_t timeout_ns);
  // Whether all has ended; where a launch could not be enqueued, as far as anybody can know.
  bool idle();
  void stop_counting();
  // Why launches were ended early: a StatusCode.
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
  std::uint64_t seen_ = 0;  // of the words, since then
  std::chrono::steady_clock::time_point since_;
  bool stopping_ = false;
  std::thread thread_;
};

class CopyEngineRun final : public CopyEngines {
 public:
  CopyEngineRun(const Driver& driver, const Bundle& bundle, const Place& place);
  bool prepare(std::string* why);
  ~CopyEngineRun();  // with the context current
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
  typedef std::tuple<std::uint32_t, Use, int> Key;  // level, what for, peer

  struct Stream {
    CUstream handle = nullptr;
    CUevent event = nullptr;   // of whatever came last when somebody had to follow
    std::uint64_t launch = 0;  // the last that used it
  };
  struct Role {
    CopyRole role;
    Stream* main = nullptr;
    std::vector<Stream*> sends;
    std::vector<Stream*> fetches;  // by message; nullptr: it comes into this GPU's memory
  };
  struct Program {
    void* object = nullptr;
    const device::ProgramRows* rows = nullptr;  // in the object
    CUfunction fold = nullptr;
    std::vector<Role> roles;  // of this rank's rows
  };
  // An execution, remembered until all are in order.
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

  // --- preparing
  bool open_object(int program, Program* made, std::string* why);
  Stream* stream_for(std::uint32_t level, Use use, int peer, std::string* why);
  void describe(const Call& call);
  void list_steps(const device::Channel& of);

  // --- enqueueing; the first error stops it
  struct Result {
    CUdeviceptr at;  // 0: each send makes it where it goes
    bool of_main;    // it is there when the main stream has got here; else from the start
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
  // Of the next message: where its sender puts it, and where it is when it has been received.
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
  // Where this process has what lies in memory of the host; nullptr: it lies on a GPU.
  char* on_host(CUdeviceptr at) const {
    const bool inside = at >= place_.staging_device && at - place_.staging_device < place_.staging_bytes;
    return inside ? place_.staging + (at - place_.staging_device) : nullptr;
  }
  CUdeviceptr segment(int rank) const { return place_.segments[static_cast<std::size_t>(rank)]; }

  // --- ending early
  void free_waits();
  void find_fault();

  const Driver& driver_;
  const Bundle& bundle_;
  const Place place_;
  std::uint32_t most_blocks_ = 1;
  std::map<int, Program> programs_;
  std::map<Key, std::unique_ptr<Stream>> streams_;
  std::vector<std::atomic<Word>> positions_;  // messages that this end of a connection has passed, by connection
  std::map<std::uint32_t, std::vector<CUevent>> read_;  // by connection and slot: that what was fetched there was read
  CUstream side_ = nullptr;
  CUevent begun_ = nullptr, forked_ = nullptr;
  CUevent start_ = nullptr;  // of the launch at hand: one of the two
  std::uint64_t launches_ = 0;
  Status fault_ = {};  // where it stuck
  bool fault_known_ = false;  // the watch's thread alone
  mutable std::mutex fault_mutex_;

  // Of the launch at hand.
  device::State state_ = {};
  Program* program_ = nullptr;
  const Call* call_ = nullptr;
  std::vector<Step> steps_;
  std::vector<Stream*> used_;
  std::map<const char*, std::vector<Stream*>> readers_;  // of the own data, by their place
  CUresult result_ = kCudaSuccess;

  std::unique_ptr<CopyWatch> watch_;  // goes first: it uses the rest
};

}  // namespace blink::shim
