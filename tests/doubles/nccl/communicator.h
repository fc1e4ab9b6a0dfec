// A communicator of this library: a rank's seat at a meeting, its device, and the state of its calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver.h"
#include "elements.h"
#include "meeting.h"

struct ncclComm {
  std::string key;
  int ranks = 0, rank = 0, device = -1;
  bool blocking = true;
  nccl_double::CUcontext context = nullptr;
  std::shared_ptr<nccl_double::Meeting> meeting;
  std::uint64_t notices = 0;  // of tell_all
  int children = 0;           // communicators made from this one;
  std::atomic<int> state{ncclSuccess};  // returned by ncclCommGetAsyncError
  std::atomic<bool> aborted{false}, ready{false}, finalized{false}, revoked{false}, gone{false};
  void* staging = nullptr;
  void* staging_handle = nullptr;

  std::mutex mutex;
  std::condition_variable idle;
  int pending = 0, running = 0;  // batches in streams; batches in execution

  // Work of one communicator runs in the order of its calls and of the launches of its graphs, in any streams: the
  // event behind the last one, and by capture the event behind the last one there.
  cudaEvent_t order = nullptr;
  std::map<unsigned long long, cudaEvent_t> order_in_captures;

  struct Scale { int dtype; bool on_device; const void* device; char value[8]; bool alive; };
  std::vector<Scale> scales;  // of ncclRedOpCreatePreMulSum
};

namespace nccl_double {

constexpr std::size_t kStagingBytes = 4096;
constexpr int kBuiltInOps = 5;

std::shared_ptr<ncclComm> find(const ncclComm* comm);  // nullptr: no live communicator

// Returns the communicator if it is ready for work, or an error.
ncclResult_t usable(const ncclComm* comm, const char* function, std::shared_ptr<ncclComm>* out);

// A new communicator on the calling thread's device, registered but not joined; nullptr: no GPU.
std::shared_ptr<ncclComm> make(const ncclConfig_t* config, const ncclComm* parent, ncclResult_t* error);
void forget(ncclComm* comm);

// Joins the meeting of comm->key as comm->rank of comm->ranks.
ncclResult_t join(ncclComm& comm);
Stop stop_of(ncclComm& comm);

ncclResult_t check_config(const ncclConfig_t* config);

}  // namespace nccl_double
