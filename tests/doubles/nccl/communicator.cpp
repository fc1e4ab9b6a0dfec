#include "communicator.h"

#include <thread>

#include "journal.h"

namespace nccl_double {
namespace {

struct Alive {
  std::mutex mutex;
  std::map<const ncclComm*, std::shared_ptr<ncclComm>> comms;
};

Alive& alive() {
  static Alive& only = *new Alive;
  return only;
}

// The activity of the real library's threads: they call public functions with the program's communicators.
void look_after(const std::shared_ptr<ncclComm>& comm) {
  std::thread([comm] {
    const Inner guard;
    for (int i = 0; i < 3 && !comm->gone; ++i) {
      ncclResult_t state;
      ncclCommGetAsyncError(comm.get(), &state);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }).detach();
}

}  // namespace

std::shared_ptr<ncclComm> find(const ncclComm* comm) {
  std::lock_guard<std::mutex> lock(alive().mutex);
  const auto at = alive().comms.find(comm);
  return at == alive().comms.end() ? nullptr : at->second;
}

ncclResult_t usable(const ncclComm* comm, const char* function, std::shared_ptr<ncclComm>* out) {
  *out = comm ? find(comm) : nullptr;
  if (!*out) return fail(ncclInvalidArgument, "%s: comm argument is %s", function, comm ? "unknown" : "NULL");
  if ((*out)->aborted || (*out)->revoked) return fail(ncclInvalidUsage, "%s: the communicator was aborted", function);
  if ((*out)->finalized) return fail(ncclInvalidUsage, "%s: the communicator was finalized", function);
  const int state = (*out)->state;
  if (!(*out)->ready || state == ncclInProgress) {
    return fail(ncclInvalidArgument, "%s: the previous operation on the communicator is still in progress", function);
  }
  return static_cast<ncclResult_t>(state);
}

ncclResult_t check_config(const ncclConfig_t* config) {
  if (!config) return ncclSuccess;
  if (config->magic != NCCL_API_MAGIC) return fail(ncclInvalidArgument, "ncclConfig_t was not initialized");
  if (config->size < 20 || (config->blocking != kUndefined && config->blocking != 0 && config->blocking != 1)) {
    return fail(ncclInvalidArgument, "ncclConfig_t: blocking is 0 or 1");
  }
  return ncclSuccess;
}

std::shared_ptr<ncclComm> make(const ncclConfig_t* config, const ncclComm* parent, ncclResult_t* error) {
  auto comm = std::make_shared<ncclComm>();
  if (!current_device(&comm->device, &comm->context)) {
    *error = fail(ncclUnhandledCudaError, "there is no CUDA driver or no GPU");
    return nullptr;
  }
  if (parent) {
    comm->device = parent->device;
    comm->context = parent->context;
    comm->blocking = parent->blocking;
  }
  if (config && config->blocking != kUndefined) comm->blocking = config->blocking == 1;
  const Current current(comm->context);
  if (driver()->event_create(&comm->order, 2)) {
    *error = fail(ncclUnhandledCudaError, "the driver refuses an event");
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(alive().mutex);
  alive().comms[comm.get()] = comm;
  return comm;
}

void forget(ncclComm* comm) {
  std::shared_ptr<ncclComm> kept;
  std::lock_guard<std::mutex> lock(alive().mutex);
  const auto at = alive().comms.find(comm);
  if (at == alive().comms.end()) return;
  kept = at->second;
  kept->gone = true;
  alive().comms.erase(at);
}

Stop stop_of(ncclComm& comm) {
  return [&comm] { return comm.aborted.load() || comm.revoked.load(); };
}

ncclResult_t join(ncclComm& comm) {
  const Inner guard;
  int version;
  if (ncclResult_t error = ncclGetVersion(&version)) return error;
  const ncclResult_t joined = Meeting::join(comm.key, comm.ranks, comm.rank, stop_of(comm), &comm.meeting);
  if (joined) return joined;
  const Current current(comm.context);
  if (ncclResult_t error = ncclMemAlloc(&comm.staging, kStagingBytes)) return error;
  comm.ready = true;  // for its own calls
  if (ncclResult_t error = ncclCommRegister(&comm, comm.staging, kStagingBytes, &comm.staging_handle)) return error;
  if (const auto shared = find(&comm)) look_after(shared);
  return ncclSuccess;
}

}  // namespace nccl_double
