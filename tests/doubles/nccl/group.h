// Groups. At the end happens everything that was called since the start: communicators are made side by side,
// then collectives and messages go into their streams.
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
  ncclComm::Scale scale;  // of kPreMulSum
  cudaStream_t stream;
};

// One piece of work that makes, splits or ends a communicator, which is done in a thread of its own.
typedef std::function<ncclResult_t()> Job;

bool in_group();
// A call was refused: the group's end returns its error, and runs nothing.
void fail_group(ncclResult_t error);
void start_group();
ncclResult_t end_group();
// Runs at once, or at the end of the group of the calling thread.
ncclResult_t add_job(const std::shared_ptr<ncclComm>& comm, Job job);
ncclResult_t add_task(const std::shared_ptr<ncclComm>& comm, const Task& task);

// The tasks of one communicator: into their streams.
ncclResult_t launch(const std::shared_ptr<ncclComm>& comm, const std::vector<Task>& tasks);

}  // namespace nccl_double
