// A stand-in for libnccl.so.2, for tests of how Blink forwards: it moves nothing, notes every call, calls its own
// interface the way the real one does (through the dynamic linker, so that the calls land in Blink), gives handles back
// to the next communicator, and has functions that fail on demand. Some functions of NCCL are missing on purpose.

#include "shim_stand_in_nccl.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "exports.h"
#include "shim_events.h"

// A program that the test's list is not a part of gets no events.
extern "C" __attribute__((weak)) void shim_event(const char* text);

struct ncclComm {
  int nranks = 0, rank = 0, device = 0;
  bool blocks = true;
  std::atomic<int> state{0};
};

namespace {

using namespace blink::shim;

// Calls are noted one by one; communicators are made by several threads.
std::mutex mutex;
std::vector<ncclComm*> unused;
std::vector<std::pair<ncclComm_t*, ncclComm*>> to_fill;  // at the end of the group, or when their parent is complete
thread_local int depth = 0;
std::atomic<int> failing{0};
char failing_name[64];
int next_op = 5;
void (*plugin)(ncclComm_t) = nullptr;
std::vector<int> unused_ops;

__attribute__((format(printf, 1, 2))) void note(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (shim_event != nullptr) shim_event(text);
}

int outcome(const char* name) { return std::strcmp(name, failing_name) == 0 ? failing.load() : 0; }

ncclComm* make(int nranks, int rank, int device, bool blocks, int state = ncclSuccess) {
  const std::lock_guard<std::mutex> lock(mutex);
  ncclComm* comm = nullptr;
  if (unused.empty()) {
    comm = new ncclComm;
  } else {
    comm = unused.back();
    unused.pop_back();
  }
  comm->nranks = nranks;
  comm->rank = rank;
  comm->device = device;
  comm->blocks = blocks;
  comm->state = state;
  return comm;
}

void give(ncclComm_t* slot, ncclComm* comm, bool later) {
  if (later) {
    *slot = nullptr;
    const std::lock_guard<std::mutex> lock(mutex);
    to_fill.emplace_back(slot, comm);
  } else {
    __atomic_store_n(slot, comm, __ATOMIC_RELEASE);
  }
}

void fill() {
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [slot, comm] : to_fill) __atomic_store_n(slot, comm, __ATOMIC_RELEASE);
  to_fill.clear();
}

void give_back(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(mutex);
  unused.push_back(comm);
}

int init(ncclComm_t* comm, int nranks, const ncclUniqueId& id, int rank, bool blocks) {
  note("nccl init %d of %d id %d %d", rank, nranks, id.internal[0], id.internal[127]);
  if (const int result = outcome("ncclCommInitRank")) return result;
  if (nranks < 1 || rank < 0 || rank >= nranks) return ncclInvalidArgument;
  give(comm, make(nranks, rank, 10 + rank, blocks, blocks ? ncclSuccess : ncclInProgress), blocks && depth > 0);
  return blocks || depth > 0 ? ncclSuccess : ncclInProgress;
}

bool blocks(const ncclConfig_t* config) {
  return config == nullptr || reinterpret_cast<const ConfigHead*>(config)->blocking != 0;
}

}  // namespace

void stand_in_fail(const char* name, int result) {
  std::snprintf(failing_name, sizeof failing_name, "%s", name);
  failing = result;
}

void stand_in_complete(ncclComm_t comm) {
  fill();
  comm->state = ncclSuccess;
}

int stand_in_thread_sees(ncclComm_t comm) {
  int state = -1;
  int result = -1;  // kept, so that the call is no jump: who calls is seen by where it returns to
  std::thread([&] { result = ncclCommGetAsyncError(comm, &state); }).join();
  return result == ncclSuccess ? state : -1;
}

void stand_in_free(ncclComm_t comm) { give_back(comm); }

void stand_in_plug(void (*function)(ncclComm_t)) { plugin = function; }

void stand_in_clear() {
  const std::lock_guard<std::mutex> lock(mutex);
  for (ncclComm* comm : unused) delete comm;
  unused.clear();
}

ncclResult_t ncclGetVersion(int* version) {
  *version = 23203;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t) { return "stand-in"; }
const char* ncclGetLastError(ncclComm_t) { return "nothing"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  note("nccl unique id");
  std::memset(id->internal, 7, sizeof id->internal);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return init(comm, nranks, id, rank, true);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return init(comm, nranks, id, rank, blocks(config));
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int, ncclUniqueId* ids,
                                      ncclConfig_t* config) {
  return init(comm, nranks, ids[0], rank, blocks(config));
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int ndev, const int* devices) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);  // lands in Blink
  note("nccl init all %d", ndev);
  for (int i = 0; i < ndev; ++i) give(comms + i, make(ndev, i, devices ? devices[i] : i, true), false);
  return ncclSuccess;
}

// The rank's new place is its key, in a communicator of two.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  note("nccl split %d %d", color, key);
  if (color < 0) {
    *newcomm = nullptr;
    return ncclSuccess;
  }
  const bool waits = config == nullptr ? comm->blocks : blocks(config);
  if (!waits) comm->state = ncclInProgress;
  give(newcomm, make(2, key, comm->device, waits), depth > 0 || !waits);
  return waits || depth > 0 ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int*, int count, ncclComm_t* newcomm, ncclConfig_t*, int flags) {
  note("nccl shrink %d flags %d", count, flags);
  give(newcomm, make(comm->nranks - count, comm->rank, comm->device, comm->blocks), depth > 0);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->state;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->nranks;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void*) {
  note("nccl deregister");
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t) {
  note("nccl finalize");
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  ncclCommDeregister(comm, nullptr);  // lands in Blink
  note("nccl destroy");
  give_back(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  note("nccl abort");
  give_back(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t, int) {
  note("nccl revoke");
  return ncclSuccess;
}

ncclResult_t ncclCommSuspend(ncclComm_t, int) {
  note("nccl suspend");
  return ncclSuccess;
}

ncclResult_t ncclCommResume(ncclComm_t comm) {
  note("nccl resume");
  if (plugin != nullptr) plugin(comm);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++depth;
  note("nccl group start");
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  if (--depth > 0) return ncclSuccess;
  note("nccl group end");
  if (const int result = outcome("ncclGroupEnd")) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto& waiting : to_fill) unused.push_back(waiting.second);
    to_fill.clear();
    return result;
  }
  fill();
  return ncclSuccess;
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) {
  --depth;
  note("nccl group simulated");
  return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) {
  if (unused_ops.empty()) {
    *op = next_op++;
  } else {
    *op = unused_ops.back();
    unused_ops.pop_back();
  }
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t) {
  unused_ops.push_back(op);
  return ncclSuccess;
}

#define NOTED(name, parameters)             \
  ncclResult_t name parameters {            \
    note("nccl " #name " %zu", count);      \
    return outcome(#name);                  \
  }

NOTED(ncclAllReduce, (const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))
NOTED(ncclAllReduceConfig, (const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t,
                            const ncclCollConfig_t*))
NOTED(ncclBroadcast, (const void*, void*, size_t count, ncclDataType_t, int, ncclComm_t, cudaStream_t))
NOTED(ncclReduce, (const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t))
NOTED(ncclAllGather, (const void*, void*, size_t count, ncclDataType_t, ncclComm_t, cudaStream_t))
NOTED(ncclReduceScatter, (const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))
NOTED(ncclAlltoAll, (const void*, void*, size_t count, ncclDataType_t, ncclComm_t, cudaStream_t))
NOTED(ncclGather, (const void*, void*, size_t count, ncclDataType_t, int, ncclComm_t, cudaStream_t))
NOTED(ncclScatter, (const void*, void*, size_t count, ncclDataType_t, int, ncclComm_t, cudaStream_t))
NOTED(ncclSend, (const void*, size_t count, ncclDataType_t, int, ncclComm_t, cudaStream_t))

ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  note("nccl ncclBcast %zu", count);
  return ncclBroadcast(buff, buff, count, type, root, comm, stream);  // lands in Blink
}

// By value, in registers of their own kinds.
ncclTeam_t ncclTeamWorld(ncclComm_t comm) { return {comm->nranks, comm->rank, 77}; }
ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode) { return {comm->nranks, mode, 88}; }
int ncclTeamRankToWorld(ncclComm_t, ncclTeam_t team, int rank) {
  return team.nRanks * 10000 + team.rank * 1000 + team.stride * 10 + rank;
}

ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t, size_t offset, ncclMultimemHandle_t multimem, void** out) {
  *out = static_cast<char*>(multimem.mcBasePtr) + offset;
  return ncclSuccess;
}

ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t, size_t offset, int peer, ncclTeam_t team, ncclCftLeId_t* id,
                                    size_t* le_offset) {
  *id = static_cast<ncclCftLeId_t>(team.nRanks * 100 + team.rank * 10 + team.stride + peer);
  *le_offset = offset;
  return ncclSuccess;
}

ncclResult_t ncclPutSignal(const void*, size_t count, ncclDataType_t type, int peer, ncclWindow_t, size_t offset,
                           int signal, int context, unsigned flags, ncclComm_t, cudaStream_t) {
  note("nccl put %zu %d %d %zu %d %d %u", count, type, peer, offset, signal, context, flags);
  return ncclSuccess;
}

void ncclParamDumpAll() { note("nccl dump"); }
