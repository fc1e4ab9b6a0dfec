// Execution of a collective: a function in the stream meets the other ranks; inputs are exchanged whole, and each rank
// computes its own output.
#include <algorithm>
#include <cstring>

#include "group.h"
#include "journal.h"

namespace nccl_double {
namespace {

struct Batch {
  std::shared_ptr<ncclComm> comm;
  std::vector<Task> tasks;
  bool replayed = false;  // captured: it runs at each launch of its graph
};

// The transfers of a call, block by block: sender, receiver, and place.
class Round {
 public:
  Round(ncclComm& comm, const Task& task)
      : comm_(comm), task_(task), block_(task.count * size_of(task.dtype)),
        input_(static_cast<char*>(const_cast<void*>(task.input))), output_(static_cast<char*>(task.output)) {}

  ncclResult_t run() {
    const int n = comm_.ranks, me = comm_.rank;
    const bool root = task_.root == me;
    switch (task_.kind) {
      case Kind::allreduce: return fold([&](int) { return input_; }, true);
      case Kind::reduce: return fold([&](int to) { return to == task_.root ? input_ : nullptr; }, root);
      case Kind::reduce_scatter: return fold([&](int to) { return input_ + block(to); }, true);
      case Kind::broadcast:
        if (root) {
          for (int to = 0; to < n; ++to) send(to, input_);
        }
        receive(task_.root);
        return finish([&](int) { return output_; });
      case Kind::allgather:
        for (int peer = 0; peer < n; ++peer) send(peer, input_), receive(peer);
        return finish([&](int from) { return output_ + block(from); });
      case Kind::alltoall:
        for (int peer = 0; peer < n; ++peer) send(peer, input_ + block(peer)), receive(peer);
        return finish([&](int from) { return output_ + block(from); });
      case Kind::gather:
        send(task_.root, input_);
        if (root) {
          for (int peer = 0; peer < n; ++peer) receive(peer);
        }
        return finish([&](int from) { return output_ + block(from); });
      case Kind::scatter:
        if (root) {
          for (int peer = 0; peer < n; ++peer) send(peer, input_ + block(peer));
        }
        receive(task_.root);
        return finish([&](int) { return output_; });
      default: return ncclInternalError;
    }
  }

 private:
  std::size_t block(int index) const { return block_ * static_cast<std::size_t>(index); }
  void send(int to, char* data) { sends_.push_back({to, data, block_}); }
  void receive(int from) {
    received_.emplace_back(block_);
    receives_.push_back({from, received_.back().data(), block_});
  }
  ncclResult_t move() { return comm_.meeting->exchange(kCollective, comm_.rank, sends_, receives_, stop_of(comm_)); }

  template <class Place>
  ncclResult_t finish(Place place) {
    if (ncclResult_t error = move()) return error;
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      std::memcpy(place(receives_[i].peer), received_[i].data(), block_);
    }
    return ncclSuccess;
  }

  template <class Piece>
  ncclResult_t fold(Piece piece, bool takes) {
    char scale[8] = {};
    if (task_.fold == kPreMulSum) {
      std::memcpy(scale, task_.scale.on_device ? task_.scale.device : task_.scale.value, size_of(task_.dtype));
    }
    // Each rank scales its operands with its own number, which is sent along.
    std::vector<std::vector<char>> own;
    for (int to = 0; to < comm_.ranks; ++to) {
      const char* data = piece(to);
      if (!data) continue;
      own.emplace_back(data, data + block_);
      own.back().insert(own.back().end(), scale, scale + sizeof scale);
      sends_.push_back({to, own.back().data(), own.back().size()});
    }
    if (takes) {
      for (int from = 0; from < comm_.ranks; ++from) {
        received_.emplace_back(block_ + sizeof scale);
        receives_.push_back({from, received_.back().data(), received_.back().size()});
      }
    }
    if (ncclResult_t error = move()) return error;
    if (!takes) return ncclSuccess;
    std::vector<const char*> operands, scales;
    for (const auto& one : received_) operands.push_back(one.data()), scales.push_back(one.data() + block_);
    reduce(task_.fold, task_.dtype, operands, scales, output_, task_.count);
    return ncclSuccess;
  }

  ncclComm& comm_;
  const Task& task_;
  std::size_t block_;
  char* input_;
  char* output_;
  std::vector<Message> sends_, receives_;
  std::vector<std::vector<char>> received_;
};

ncclResult_t perform(ncclComm& comm, const std::vector<Task>& tasks) {
  std::vector<Message> sends, receives;
  for (const Task& task : tasks) {
    const std::size_t bytes = task.count * size_of(task.dtype);
    if (task.kind == Kind::send) {
      sends.push_back({task.root, static_cast<char*>(const_cast<void*>(task.input)), bytes});
    } else if (task.kind == Kind::recv) {
      receives.push_back({task.root, static_cast<char*>(task.output), bytes});
    } else if (ncclResult_t error = Round(comm, task).run()) {
      return error;
    }
  }
  if (sends.empty() && receives.empty()) return ncclSuccess;
  return comm.meeting->exchange(kPointToPoint, comm.rank, sends, receives, stop_of(comm));
}

void in_stream(void* data) {
  auto* const batch = static_cast<Batch*>(data);
  ncclComm& comm = *batch->comm;
  {
    std::lock_guard<std::mutex> lock(comm.mutex);
    ++comm.running;
  }
  if (!stop_of(comm)()) {
    const ncclResult_t result = perform(comm, batch->tasks);
    if (result && !stop_of(comm)()) comm.state = result;
  }
  const std::shared_ptr<ncclComm> kept = batch->comm;
  const bool replayed = batch->replayed;
  if (!replayed) delete batch;
  std::lock_guard<std::mutex> lock(kept->mutex);
  --kept->running;
  if (!replayed) --kept->pending;
  kept->idle.notify_all();
}

}  // namespace

// The end of a graph's life is unknown, so captured batches are never freed.
static void keep(Batch* batch) {
  static std::mutex& mutex = *new std::mutex;
  static std::vector<Batch*>& captured = *new std::vector<Batch*>;
  std::lock_guard<std::mutex> lock(mutex);
  captured.push_back(batch);
}

// Before: earlier calls of this communicator. Each launch of a graph waits for them, and later calls wait for it:
// NCCL's graph mixing.
static int follow(ncclComm& comm, cudaStream_t stream, unsigned long long capture) {
  const Driver& cuda = *driver();
  if (!capture) return cuda.wait_event(stream, comm.order, 0);
  const auto earlier = comm.order_in_captures.find(capture);
  if (earlier == comm.order_in_captures.end()) return cuda.wait_event(stream, comm.order, kEventExternal);
  return cuda.wait_event(stream, earlier->second, 0);
}

static int note_order(ncclComm& comm, cudaStream_t stream, unsigned long long capture) {
  const Driver& cuda = *driver();
  if (!capture) return cuda.event_record(comm.order, stream);
  cudaEvent_t& last = comm.order_in_captures[capture];
  int error = cuda.record_with_flags(comm.order, stream, kEventExternal);
  if (!last) error |= cuda.event_create(&last, 2);
  return error | cuda.event_record(last, stream);
}

ncclResult_t launch(const std::shared_ptr<ncclComm>& comm, const std::vector<Task>& tasks) {
  const Driver& cuda = *driver();
  const Current current(comm->context);
  cudaStream_t const stream = tasks.front().stream;
  int status = 0;
  unsigned long long capture = 0;
  if (cuda.capture_info(stream, &status, &capture, nullptr, nullptr, nullptr) || status > 1) {
    return fail(ncclUnhandledCudaError, "the stream cannot be used");
  }
  const bool capturing = status != 0;
  std::vector<cudaStream_t> others;
  for (const Task& task : tasks) {
    if (task.stream != stream && std::find(others.begin(), others.end(), task.stream) == others.end()) {
      others.push_back(task.stream);
    }
  }
  for (cudaStream_t other : others) {
    unsigned long long its = 0;
    if (cuda.capture_info(other, &status, &its, nullptr, nullptr, nullptr) || (status ? its : 0) != (capturing ? capture : 0)) {
      return fail(ncclInvalidUsage, "streams of a group must all be captured by the same graph, or none");
    }
  }
  int error = follow(*comm, stream, capture);
  // Also waits for earlier work in the other streams.
  cudaEvent_t event = nullptr;
  if (!others.empty()) {
    error |= cuda.event_create(&event, 2);
    for (cudaStream_t other : others) {
      error |= cuda.event_record(event, other);
      error |= cuda.wait_event(stream, event, 0);
    }
  }
  auto* const batch = new Batch{comm, tasks, capturing};
  if (capturing) {
    keep(batch);
  } else {
    std::lock_guard<std::mutex> lock(comm->mutex);
    ++comm->pending;
  }
  if (const int refused = cuda.host_function(stream, in_stream, batch)) {
    if (!capturing) {
      std::lock_guard<std::mutex> lock(comm->mutex);
      --comm->pending;
      delete batch;
    }
    return fail(ncclUnhandledCudaError, "the driver refuses work: %d", refused);
  }
  // After: the other streams continue when the call is complete.
  if (!others.empty()) {
    error |= cuda.event_record(event, stream);
    for (cudaStream_t other : others) error |= cuda.wait_event(other, event, 0);
    error |= cuda.event_destroy(event);
  }
  error |= note_order(*comm, stream, capture);
  return error ? fail(ncclUnhandledCudaError, "the driver refuses an event") : ncclSuccess;
}

}  // namespace nccl_double
