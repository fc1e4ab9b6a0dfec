// Creation and destruction of communicators. Creation is a barrier: every rank waits for all others.
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "group.h"
#include "journal.h"

using namespace nccl_double;

namespace {

constexpr char kIdMagic[8] = "dblnccl";

std::string key_of(const ncclUniqueId& id) {
  std::string key;
  for (int i = 8; i < 24; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(id.internal[i]));
    key += digits;
  }
  return key;
}

// Registers the communicator, and lets it join its meeting. `prepare` sets key, ranks and rank if that needs
// communication with others; it may set ranks to 0: this rank is in none.
ncclResult_t begin(const std::shared_ptr<ncclComm>& comm, ncclComm_t* out, Job prepare,
                   const std::shared_ptr<ncclComm>& parent = nullptr) {
  *out = comm.get();
  const bool blocking = comm->blocking;
  if (parent && !blocking) parent->state = ncclInProgress;  // while it notifies the others
  return add_job(comm, [comm, out, prepare, blocking, parent] {
    ncclResult_t result = prepare ? prepare() : ncclSuccess;
    if (parent && !blocking) parent->state = result;
    const bool member = comm->ranks > 0;
    if (!result && member) result = join(*comm);
    if ((result || !member) && blocking) {
      *out = nullptr;
      forget(comm.get());
    }
    return result;
  });
}

ncclResult_t init(const char* function, ncclComm_t* out, int ranks, const ncclUniqueId& id, int rank,
                  const ncclConfig_t* config) {
  if (!out) return fail(ncclInvalidArgument, "%s : comm argument is NULL", function);
  if (ranks < 1 || rank < 0 || rank >= ranks || ranks > kMostRanks) {
    return fail(ncclInvalidArgument, "%s : invalid rank requested : %d/%d", function, rank, ranks);
  }
  if (ncclResult_t error = check_config(config)) return error;
  if (std::memcmp(id.internal, kIdMagic, sizeof kIdMagic)) {
    return fail(ncclSystemError, "%s : nobody answers to this unique id", function);
  }
  ncclResult_t error = ncclSuccess;
  const auto comm = make(config, nullptr, &error);
  if (!comm) return error;
  comm->key = key_of(id);
  comm->ranks = ranks;
  comm->rank = rank;
  return begin(comm, out, nullptr);
}

void clean_up(ncclComm& comm) {
  if (!comm.context) return;
  std::thread([&comm] {
    const Inner guard;
    const Current current(comm.context);
    if (comm.staging_handle) ncclCommDeregister(&comm, comm.staging_handle);
    if (comm.staging) ncclMemFree(comm.staging);
    driver()->event_destroy(comm.order);
    for (const auto& entry : comm.order_in_captures) driver()->event_destroy(entry.second);
  }).join();
}

void finish_work(ncclComm& comm) {
  std::unique_lock<std::mutex> lock(comm.mutex);
  comm.idle.wait(lock, [&] { return comm.pending == 0 || comm.aborted || comm.revoked || comm.state > ncclSuccess; });
  comm.idle.wait(lock, [&] { return comm.running == 0; });
}

}  // namespace

NCCL_API(ncclResult_t, ncclGetUniqueId, (ncclUniqueId* id)) {
  note(__func__);
  if (!id) return fail(ncclInvalidArgument, "ncclGetUniqueId : out argument is NULL");
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, kIdMagic, sizeof kIdMagic);
  return getrandom(id->internal + 8, 16, 0) == 16 ? ncclSuccess : fail(ncclSystemError, "no random numbers");
}

NCCL_API(ncclResult_t, ncclCommInitRank, (ncclComm_t* comm, int ranks, ncclUniqueId id, int rank)) {
  note(__func__);
  return init("ncclCommInitRank", comm, ranks, id, rank, nullptr);
}

NCCL_API(ncclResult_t, ncclCommInitRankConfig,
         (ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config)) {
  note(__func__);
  return init("ncclCommInitRankConfig", comm, ranks, id, rank, config);
}

NCCL_API(ncclResult_t, ncclCommInitRankScalable,
         (ncclComm_t* comm, int ranks, int rank, int ids, ncclUniqueId* id, ncclConfig_t* config)) {
  note(__func__);
  if (ids < 1 || ids > ranks || !id) return fail(ncclInvalidArgument, "ncclCommInitRankScalable : %d ids", ids);
  return init("ncclCommInitRankScalable", comm, ranks, id[0], rank, config);
}

NCCL_API(ncclResult_t, ncclCommInitAll, (ncclComm_t* comms, int devices, const int* list)) {
  note(__func__);
  if (!comms || devices < 0) return fail(ncclInvalidArgument, "ncclCommInitAll : invalid argument");
  int there = 0;
  if (!driver() || driver()->device_count(&there)) {
    return fail(ncclUnhandledCudaError, "there is no CUDA driver or no GPU");
  }
  for (int i = 0; i < devices; ++i) {
    const int device = list ? list[i] : i;
    if (device < 0 || device >= there) return fail(ncclInvalidArgument, "Invalid device %d of %d", device, there);
    for (int j = 0; j < i && list; ++j) {
      if (list[j] == device) return fail(ncclInvalidUsage, "Duplicate device %d", device);
    }
  }
  const Inner guard;
  ncclUniqueId id;
  ncclResult_t error = ncclGetUniqueId(&id);
  start_group();
  for (int i = 0; i < devices && !error; ++i) {
    CUcontext context;
    if (driver()->primary_retain(&context, list ? list[i] : i)) {
      error = ncclUnhandledCudaError;
      break;
    }
    const Current current(context);
    error = init("ncclCommInitAll", &comms[i], devices, id, i, nullptr);
  }
  const ncclResult_t ended = end_group();
  return error ? error : ended;
}

NCCL_API(ncclResult_t, ncclCommSplit,
         (ncclComm_t handle, int color, int key, ncclComm_t* out, ncclConfig_t* config)) {
  note(__func__, handle);
  std::shared_ptr<ncclComm> parent;
  if (!out) return fail(ncclInvalidArgument, "ncclCommSplit : newcomm is NULL");
  if (ncclResult_t error = usable(handle, "ncclCommSplit", &parent)) return error;
  if (ncclResult_t error = check_config(config)) return error;
  if (color < -1) return fail(ncclInvalidArgument, "ncclCommSplit : color must be >= -1, got %d", color);
  ncclResult_t error = ncclSuccess;
  const auto comm = make(config, parent.get(), &error);
  if (!comm) return error;
  comm->key = parent->key + " split " + std::to_string(parent->children++) + " " + std::to_string(color);
  const ncclResult_t begun = begin(comm, out, [parent, comm, color, key] {
    const int own[2] = {color, key};
    std::vector<std::string> said;
    const std::string words(reinterpret_cast<const char*>(own), sizeof own);
    const ncclResult_t told = parent->meeting->tell_all(parent->rank, &parent->notices, words, stop_of(*parent), &said);
    if (told) return told;
    std::vector<std::pair<int, int>> members;  // key, rank
    for (int rank = 0; rank < parent->ranks; ++rank) {
      int theirs[2];
      std::memcpy(theirs, said[static_cast<std::size_t>(rank)].data(), sizeof theirs);
      if (theirs[0] == color) members.emplace_back(theirs[1], rank);
    }
    std::sort(members.begin(), members.end());
    if (color < 0) return ncclSuccess;
    comm->ranks = static_cast<int>(members.size());
    for (int place = 0; place < comm->ranks; ++place) {
      if (members[static_cast<std::size_t>(place)].second == parent->rank) comm->rank = place;
    }
    return ncclSuccess;
  }, parent);
  if (color == -1) *out = nullptr;
  return begun;
}

NCCL_API(ncclResult_t, ncclCommShrink,
         (ncclComm_t handle, int* excluded, int count, ncclComm_t* out, ncclConfig_t* config, int flags)) {
  note(__func__, handle);
  std::shared_ptr<ncclComm> parent = handle ? find(handle) : nullptr;
  if (!parent || !out || !excluded || count <= 0 || count >= parent->ranks || flags != 0) {
    return fail(ncclInvalidArgument, "ncclCommShrink : invalid argument");
  }
  if (ncclResult_t error = check_config(config)) return error;
  std::vector<int> gone(excluded, excluded + count);
  std::sort(gone.begin(), gone.end());
  int rank = 0;
  std::string how = " shrink " + std::to_string(parent->children++);
  for (const int one : gone) {
    if (one < 0 || one >= parent->ranks) return fail(ncclInvalidArgument, "ncclCommShrink : no rank %d", one);
    if (one == parent->rank) return fail(ncclInvalidArgument, "ncclCommShrink : an excluded rank must not call it");
    how += " " + std::to_string(one);
    rank += one < parent->rank;
  }
  ncclResult_t error = ncclSuccess;
  const auto comm = make(config, parent.get(), &error);
  if (!comm) return error;
  comm->key = parent->key + how;
  comm->ranks = parent->ranks - count;
  comm->rank = parent->rank - rank;
  return begin(comm, out, nullptr);
}

NCCL_API(ncclResult_t, ncclCommGrow,
         (ncclComm_t handle, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* out, ncclConfig_t* config)) {
  note(__func__, handle);
  std::shared_ptr<ncclComm> parent;
  if (!out || (!handle && !id)) return fail(ncclInvalidArgument, "ncclCommGrow : invalid argument");
  if (ncclResult_t error = check_config(config)) return error;
  if (handle) {
    if (ncclResult_t error = usable(handle, "ncclCommGrow", &parent)) return error;
    if (rank != -1 || ranks <= parent->ranks) return fail(ncclInvalidArgument, "ncclCommGrow : invalid rank or size");
  } else if (rank < 0 || rank >= ranks) {
    return fail(ncclInvalidArgument, "ncclCommGrow : invalid rank %d of %d", rank, ranks);
  }
  ncclResult_t error = ncclSuccess;
  const auto comm = make(config, parent.get(), &error);
  if (!comm) return error;
  comm->ranks = ranks;
  comm->rank = parent ? parent->rank : rank;
  const std::string words = id ? key_of(*id) : "";
  comm->key = words;
  return begin(comm, out, [parent, comm, words] {
    if (!parent) return ncclSuccess;
    std::vector<std::string> said;
    const ncclResult_t told = parent->meeting->tell_all(parent->rank, &parent->notices, words, stop_of(*parent), &said);
    if (told) return told;
    for (const std::string& one : said) {
      if (one[0]) comm->key = one.c_str();
    }
    return comm->key.empty() ? fail(ncclInvalidArgument, "ncclCommGrow : no rank gave an id") : ncclSuccess;
  }, parent);
}

NCCL_API(ncclResult_t, ncclCommFinalize, (ncclComm_t handle)) {
  note(__func__, handle);
  const auto comm = handle ? find(handle) : nullptr;
  if (!comm) return fail(ncclInvalidArgument, "ncclCommFinalize : comm is %s", handle ? "unknown" : "NULL");
  if (comm->finalized.exchange(true)) return fail(ncclInvalidArgument, "ncclCommFinalize was called before");
  return add_job(comm, [comm] {
    finish_work(*comm);
    return ncclSuccess;
  });
}

static ncclResult_t release(const char* function, ncclComm_t handle, bool aborts) {
  note(function, handle);
  if (!handle) return ncclSuccess;
  const auto comm = find(handle);
  if (!comm) return fail(ncclInvalidArgument, "%s : comm is unknown", function + 1);
  if (aborts) comm->aborted = true;
  while (comm->state == ncclInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  finish_work(*comm);
  clean_up(*comm);
  forget(handle);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommDestroy, (ncclComm_t handle)) { return release(__func__, handle, false); }

NCCL_API(ncclResult_t, ncclCommAbort, (ncclComm_t handle)) { return release(__func__, handle, true); }

NCCL_API(ncclResult_t, ncclCommRevoke, (ncclComm_t handle, int flags)) {
  note(__func__, handle);
  const auto comm = handle ? find(handle) : nullptr;
  if (!comm || flags != 0) return fail(ncclInvalidArgument, "ncclCommRevoke : invalid argument");
  comm->revoked = true;
  return ncclSuccess;
}
