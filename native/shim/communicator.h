// One NCCL communicator in libblink.so: its key, the agreement of its ranks, and the way that each call takes. The real
// handle belongs to NCCL.
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
  std::uint64_t next_child() { return children_++; }  // numbers this communicator's splits, shrinks and grows

  Place place;  // constant after begin()

  // The reason why NCCL runs all calls; empty if its plan is loaded. Settles first.
  std::string why_not();

  // Makes this rank reachable for the others. If it precedes the real initialisation, which synchronises all ranks,
  // place.grace_s may be 0.
  void announce();
  // Starts the setup in its own thread once the real communicator is complete: announces (if announce() was not
  // called), meets the other ranks, plans, loads. settle() waits for its end.
  void begin();
  void settle();

  // True if Blink runs this call; equal on all ranks. Settles first. Logs once per (collective, size class, type, op)
  // which library runs it and why, or stores in `why_left` (if given) why it stays with NCCL. Calls that the real NCCL
  // must refuse never get here, since arguments are checked first.
  bool takes(const Operation& operation, std::string* why_left = nullptr);
  // Enqueues the call and returns; all ranks make these calls in the same order.
  ncclResult_t enqueue(const Operation& operation);
  // Joins streams before and after a group's calls of this communicator: each stream waits for the present work of all.
  // ncclInvalidUsage, as in NCCL, unless all are captured by the same graph or none is.
  ncclResult_t join(const std::vector<CUstream>& streams);

  // Order a call that NCCL runs after all earlier calls of Blink and before all later ones. Both return the result for
  // the caller; `result` is NCCL's own. After ncclInProgress, ncclCommGetAsyncError observes the call's end.
  ncclResult_t before_nccl(CUstream stream) { return order(stream, &Engine::before_nccl); }
  ncclResult_t after_nccl(CUstream stream, ncclResult_t result);

  // Messages outside a group's order, in two steps: before anything else of the group is enqueued, and after all of it.
  // They begin after the stream's work at the first step, and the stream's later work waits for them.
  void fork(CUstream stream);
  ncclResult_t enqueue(const std::vector<Operation>& messages, CUstream stream);

  // Blink's part of ncclCommGetAsyncError: ncclSuccess, ncclInProgress during the setup, or an error.
  ncclResult_t async_error();

  void abort();     // Makes waiting kernels give up; Blink enqueues nothing afterwards.
  // Ends Blink's part: waits for its work, and frees memory after all ranks. Returns the error of a call, if any.
  ncclResult_t finalize();

 private:
  void say(const std::string& text, bool every_rank = false) const;
  void prepare();
  Caller caller() const { return {key_, place.rank, place.nranks}; }
  std::uint64_t bytes_of(const Operation& operation) const {
    return total_bytes(operation.collective, operation.count, operation.dtype, place.nranks);
  }
  // The row of the plan for this call, or −1 for NCCL, and the reason.
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
  // begin(): theirs → settling → ours, or back to theirs. `ours` ends as failed, with an error for all later calls, or
  // as theirs after a release.
  enum class State { kTheirs, kSettling, kOurs, kFailed };
  std::atomic<State> state_{State::kTheirs};
  std::atomic<bool> cancelled_{false};  // the setup must end
  std::mutex joining_, mutex_;
  std::thread setup_;
  std::unique_ptr<Resources> resources_;
  std::unique_ptr<ChunkSearches> searches_;
  std::mutex page_mutex_;
  std::shared_ptr<SharedPage> page_;  // that of resources_, for callers that cannot wait for mutex_
  CUresult forked_ = kCudaSuccess;  // the result of fork()
  std::atomic<bool> late_{false};   // NCCL is still enqueuing a call on late_stream_
  CUstream late_stream_ = nullptr;
};

}  // namespace blink::shim
