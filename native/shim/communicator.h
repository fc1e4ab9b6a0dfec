// One NCCL communicator as libblink.so sees it: its key, what its ranks agreed on, and the roads that its calls take.
// The real handle belongs to NCCL.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bundle.h"
#include "call_arguments.h"
#include "call_report.h"
#include "chunk_searches.h"
#include "deadline.h"
#include "driver.h"
#include "log.h"
#include "bootstrap.h"
#include "nccl_types.h"
#include "setup.h"

namespace blink::shim {

class Communicator {
 public:
  explicit Communicator(std::string key) : key_(std::move(key)) {}
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& key() const { return key_; }
  std::uint64_t next_child() { return children_++; }  // numbers splits, shrinks and grows of this communicator

  Place place;  // not to be changed after begin()

  // Why nothing is ours; empty where the trees are ready. After settle().
  std::string why_not();

  // From now on the other ranks find this one. To be called before the real initialisation where that makes sure that
  // all have got here: then place.grace_s may be 0.
  void announce();
  // The real communicator is complete: announces, where nobody has, then all meet, plan, load. Begins in a thread of
  // its own; settle() waits for its end.
  void begin();
  void settle();

  // Whether this call is ours: the same on all ranks. Settles first. Says once per (collective, size class, type, op)
  // what runs and why, or, where `why_left` is given, puts there why it is not. Never true for what the real NCCL must
  // refuse (arguments are checked first, as it does).
  bool takes(const Operation& operation, std::string* why_left = nullptr);
  // Enqueues it and returns; to be called in the same order on all ranks.
  ncclResult_t enqueue(const Operation& operation);
  // Before and after a group's calls of this communicator: each of these streams waits for what all of them hold now.
  // ncclInvalidUsage, as NCCL has it, where not all are captured by the same graph, or none is.
  ncclResult_t join(const std::vector<CUstream>& streams);

  // Before and after NCCL serves a call of this communicator, which comes after our calls so far, and before our next
  // ones. What is to be returned; `result` is what NCCL did, and where that is ncclInProgress, ncclCommGetAsyncError
  // sees the call's end.
  ncclResult_t before_nccl(CUstream stream) { return order(stream, &Engine::before_nccl); }
  ncclResult_t after_nccl(CUstream stream, ncclResult_t result);

  // Messages that go at once, in two steps: before anything else of their group is enqueued, and after all of it. They
  // begin after what the stream holds at the first step, and what it holds next comes after them.
  void fork(CUstream stream);
  ncclResult_t enqueue(const std::vector<Operation>& messages, CUstream stream);

  // What ncclCommGetAsyncError has to say of our own part: ncclSuccess, ncclInProgress while settling, or an error.
  ncclResult_t async_error();

  void abort();     // kernels that wait give up; nothing of ours is enqueued after it
  // Ends our part: waits for what was enqueued, frees memory when all ranks are done with it. And what became of it all.
  ncclResult_t finalize();

 private:
  void say(const std::string& text, bool every_rank = false) const;
  void prepare();
  Caller caller() const { return {key_, place.rank, place.nranks}; }
  std::uint64_t bytes_of(const Operation& operation) const {
    return total_bytes(operation.collective, operation.count, operation.dtype, place.nranks);
  }
  // The row of the plan by which this call is ours, or −1: NCCL's; and why.
  int decide(const Operation& operation, std::uint64_t bytes, std::string* why = nullptr) const;
  CUresult launch(const Operation& operation, const ChunkSearches::Use& use, const Engine::Capture& capture);
  int decide_message(const Operation& operation, std::uint64_t bytes, std::string* why) const;
  ncclResult_t trouble();
  ncclResult_t order(CUstream stream, CUresult (Engine::*step)(CUstream));
  ncclResult_t refused(CUresult result, const char* what, bool captured = false);
  std::string connection_text(std::uint32_t index) const;
  void share_page(std::shared_ptr<SharedPage> page);
  bool aborted();
  void raise_abort();
  void give_up(const std::string& why, Level level = Level::kWarn);
  ncclResult_t release(double patience_s, bool frees);

  const std::string key_;
  std::unique_ptr<Bootstrap> bootstrap_;
  std::string why_not_;
  double timeout_s_ = 0;  // 0: kernels wait until they are aborted, as NCCL's do
  std::atomic<std::uint64_t> children_{0};
  // begin(): theirs → settling → ours, or theirs again. Ours end as failed, with an error for all calls that come, or
  // as theirs, when they are given back.
  enum class State { kTheirs, kSettling, kOurs, kFailed };
  std::atomic<State> state_{State::kTheirs};
  std::atomic<bool> cancelled_{false};  // the setup is to end
  std::mutex joining_, mutex_;
  std::thread setup_;
  std::unique_ptr<Resources> resources_;
  std::unique_ptr<ChunkSearches> searches_;
  std::mutex page_mutex_;
  std::shared_ptr<SharedPage> page_;  // resources_'s, for those who cannot wait for mutex_
  CUresult forked_ = kCudaSuccess;  // what fork() came to
  std::atomic<bool> late_{false};   // NCCL is still enqueuing a call, on this stream
  CUstream late_stream_ = nullptr;
};

}  // namespace blink::shim
