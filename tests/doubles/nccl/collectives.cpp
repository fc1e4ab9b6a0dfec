// Collectives and messages. Each checks its arguments as NCCL does, and adds a task.
#include <algorithm>
#include <cstring>

#include "group.h"
#include "journal.h"

using namespace nccl_double;

namespace {

struct Wanted {
  Kind kind;
  const void* input;
  void* output;
  std::size_t count;
  int dtype, op, root;
  bool reduces, rooted;
};

ncclResult_t collective(const char* function, const Wanted& wanted, ncclComm_t handle, cudaStream_t stream) {
  note(function, handle, wanted.count);
  ++function;  // 'p'
  std::shared_ptr<ncclComm> comm;
  if (ncclResult_t error = usable(handle, function, &comm)) return error;
  if (size_of(wanted.dtype) == 0) return fail(ncclInvalidArgument, "%s : invalid type %d", function, wanted.dtype);
  if (wanted.rooted && (wanted.root < 0 || wanted.root >= comm->ranks)) {
    return fail(ncclInvalidArgument, "%s : invalid root %d (root should be in the 0..%d range)", function, wanted.root,
                comm->ranks);
  }
  Task task{wanted.kind, wanted.input, wanted.output, wanted.count, wanted.dtype, kSum, wanted.root, {}, stream};
  if (wanted.reduces) {
    const int made = wanted.op - kBuiltInOps;
    if (wanted.op < 0 || made >= static_cast<int>(comm->scales.size()) ||
        (made >= 0 && !comm->scales[static_cast<std::size_t>(made)].alive)) {
      return fail(ncclInvalidArgument, "%s : invalid reduction operation %d", function, wanted.op);
    }
    task.fold = made < 0 ? static_cast<Fold>(wanted.op) : kPreMulSum;
    if (made >= 0) {
      task.scale = comm->scales[static_cast<std::size_t>(made)];
      if (task.scale.dtype != wanted.dtype) {
        return fail(ncclInvalidArgument, "%s : the operation was made for another type", function);
      }
    }
  }
  if (wanted.count == 0) return ncclSuccess;
  const bool root = !wanted.rooted || wanted.root == comm->rank;
  const bool no_input = (wanted.kind == Kind::broadcast || wanted.kind == Kind::scatter) && !root;
  const bool no_output = (wanted.kind == Kind::reduce || wanted.kind == Kind::gather) && !root;
  if ((!wanted.input && !no_input && wanted.kind != Kind::recv) ||
      (!wanted.output && !no_output && wanted.kind != Kind::send)) {
    return fail(ncclInvalidArgument, "%s : a buffer is NULL", function);
  }
  return add_task(comm, task);
}

ncclResult_t check(const ncclCollConfig_t* config) {
  const bool right = !config || config->magic == NCCL_API_MAGIC;
  return right ? ncclSuccess : fail(ncclInvalidArgument, "ncclCollConfig_t was not initialized");
}

}  // namespace

// `between`: the parameters between the type and the communicator.
#define LIST(...) __VA_ARGS__
#define COLLECTIVE(name, between, kind, op, root, reduces, rooted)                                                    \
  NCCL_API(ncclResult_t, nccl##name, (const void* send, void* recv, size_t count, ncclDataType_t type, LIST between   \
                                      ncclComm_t comm, cudaStream_t stream)) {                                        \
    const Wanted wanted{Kind::kind, send, recv, count, type, op, root, reduces, rooted};                              \
    return collective(__func__, wanted, comm, stream);                                                                \
  }                                                                                                                   \
  NCCL_API(ncclResult_t, nccl##name##Config,                                                                          \
           (const void* send, void* recv, size_t count, ncclDataType_t type, LIST between ncclComm_t comm,            \
            cudaStream_t stream, const ncclCollConfig_t* config)) {                                                   \
    const Wanted wanted{Kind::kind, send, recv, count, type, op, root, reduces, rooted};                              \
    if (ncclResult_t error = check(config)) return error;                                                             \
    return collective(__func__, wanted, comm, stream);                                                                \
  }

COLLECTIVE(AllReduce, (ncclRedOp_t op,), allreduce, op, 0, true, false)
COLLECTIVE(Reduce, (ncclRedOp_t op, int root,), reduce, op, root, true, true)
COLLECTIVE(Broadcast, (int root,), broadcast, 0, root, false, true)
COLLECTIVE(AllGather, (), allgather, 0, 0, false, false)
COLLECTIVE(ReduceScatter, (ncclRedOp_t op,), reduce_scatter, op, 0, true, false)
COLLECTIVE(AlltoAll, (), alltoall, 0, 0, false, false)
COLLECTIVE(Gather, (int root,), gather, 0, root, false, true)
COLLECTIVE(Scatter, (int root,), scatter, 0, root, false, true)

NCCL_API(ncclResult_t, ncclBcast,
         (void* buffer, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream)) {
  note(__func__, comm, count);
  const Inner guard;
  return ncclBroadcast(buffer, buffer, count, dtype, root, comm, stream);
}

NCCL_API(ncclResult_t, ncclSend,
         (const void* data, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream)) {
  return collective(__func__, {Kind::send, data, nullptr, count, dtype, 0, peer, false, true}, comm, stream);
}

NCCL_API(ncclResult_t, ncclRecv,
         (void* data, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream)) {
  return collective(__func__, {Kind::recv, nullptr, data, count, dtype, 0, peer, false, true}, comm, stream);
}

NCCL_API(ncclResult_t, ncclRedOpCreatePreMulSum,
         (ncclRedOp_t* op, void* scalar, ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t handle)) {
  note(__func__, handle);
  std::shared_ptr<ncclComm> comm;
  if (ncclResult_t error = usable(handle, "ncclRedOpCreatePreMulSum", &comm)) return error;
  if (!op || !scalar || size_of(dtype) == 0 || (residence != 0 && residence != 1)) {
    return fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum : invalid argument");
  }
  ncclComm::Scale scale{dtype, residence == 0, scalar, {}, true};
  if (residence == 1) std::memcpy(scale.value, scalar, size_of(dtype));
  // As in NCCL, numbers of destroyed operations are reused.
  const auto free = std::find_if(comm->scales.begin(), comm->scales.end(), [](const auto& one) { return !one.alive; });
  *op = kBuiltInOps + static_cast<int>(free - comm->scales.begin());
  if (free != comm->scales.end()) {
    *free = scale;
  } else {
    comm->scales.push_back(scale);
  }
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t handle)) {
  note(__func__, handle);
  if (op >= 0 && op < kBuiltInOps) return fail(ncclInvalidArgument, "ncclRedOpDestroy : operator is a NCCL builtin");
  std::shared_ptr<ncclComm> comm;
  if (ncclResult_t error = usable(handle, "ncclRedOpDestroy", &comm)) return error;
  const auto made = static_cast<std::size_t>(op - kBuiltInOps);
  if (op < 0 || made >= comm->scales.size() || !comm->scales[made].alive) {
    return fail(ncclInvalidArgument, "ncclRedOpDestroy : operator unknown to this communicator");
  }
  comm->scales[made].alive = false;
  return ncclSuccess;
}
