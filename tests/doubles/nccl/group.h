// Groups. The end of a group executes all calls since its start: communicators are created in parallel, then
// collectives and messages are enqueued in their streams.
#pragma once

#include <functional>
#include <memory>

#include "communicator.h"

namespace nccl_double {

enum class Kind { allreduce, reduce, broadcast, allgather, reduce_scatter, alltoall, gather, scatter, send, recv };

struct Task {
  Kind kind;
  const void* input;
  void* output;
  std::size_t count;
  int dtype;
  Fold fold;
  int root;  // or the peer
  ncclComm::Scale scale;  // for kPreMulSum
  cudaStream_t stream;
};

// A task that creates, splits or destroys a communicator, in its own thread.
typedef std::function<ncclResult_t()> Job;

bool in_group();
// A call was rejected: the group's end returns its error, and executes nothing.
void fail_group(ncclResult_t error);
void start_group();
ncclResult_t end_group();
// Runs the job at once, or at the end of the calling thread's group.
ncclResult_t add_job(const std::shared_ptr<ncclComm>& comm, Job job);
ncclResult_t add_task(const std::shared_ptr<ncclComm>& comm, const Task& task);

// Enqueues the tasks of one communicator in their streams.
ncclResult_t launch(const std::shared_ptr<ncclComm>& comm, const std::vector<Task>& tasks);

}  // namespace nccl_double
