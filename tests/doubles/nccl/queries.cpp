// Queries: versions, errors, and properties of a communicator.
#include <cstdlib>

#include "communicator.h"
#include "journal.h"

using namespace nccl_double;

namespace {

ncclResult_t ask(const char* function, ncclComm_t handle, int* out, int ncclComm::* member) {
  note(function, handle);
  const auto comm = handle ? find(handle) : nullptr;
  if (!comm || !out) return fail(ncclInvalidArgument, "%s : invalid argument", function + 1);
  if (!comm->ready) return fail(ncclInvalidArgument, "%s : the communicator is not ready yet", function + 1);
  *out = (*comm).*member;
  return ncclSuccess;
}

}  // namespace

NCCL_API(ncclResult_t, ncclGetVersion, (int* version)) {
  note(__func__);
  if (!version) return fail(ncclInvalidArgument, "ncclGetVersion : version is NULL");
  const char* const told = std::getenv("BLINK_DOUBLE_NCCL_VERSION");
  *version = told ? std::atoi(told) : NCCL_VERSION_CODE;
  return ncclSuccess;
}

NCCL_API(const char*, ncclGetErrorString, (ncclResult_t code)) {
  note(__func__);
  return code == ncclSuccess ? "no error" : "an error of the test double";
}

NCCL_API(const char*, ncclGetLastError, (ncclComm_t handle)) {
  note(__func__, handle);
  return last_failure();
}

NCCL_API(void, ncclResetDebugInit, ()) { note(__func__); }

NCCL_API(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t handle, ncclResult_t* state)) {
  note(__func__, handle);
  const auto comm = handle ? find(handle) : nullptr;
  if (!comm || !state) return fail(ncclInvalidArgument, "ncclCommGetAsyncError : invalid argument");
  *state = static_cast<ncclResult_t>(comm->state.load());
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommCount, (ncclComm_t comm, int* count)) {
  return ask(__func__, comm, count, &ncclComm::ranks);
}
NCCL_API(ncclResult_t, ncclCommCuDevice, (ncclComm_t comm, int* device)) {
  return ask(__func__, comm, device, &ncclComm::device);
}
NCCL_API(ncclResult_t, ncclCommUserRank, (ncclComm_t comm, int* rank)) {
  return ask(__func__, comm, rank, &ncclComm::rank);
}

NCCL_API(ncclResult_t, ncclCommSuspend, (ncclComm_t handle, int flags)) {
  note(__func__, handle);
  return handle && find(handle) && flags == 1 ? ncclSuccess : fail(ncclInvalidArgument, "ncclCommSuspend");
}

// NCCL calls plugins, which are code of other libraries; here one at the address in a variable.
NCCL_API(ncclResult_t, ncclCommResume, (ncclComm_t handle)) {
  note(__func__, handle);
  if (const char* plugin = std::getenv("BLINK_DOUBLE_NCCL_PLUGIN")) {
    reinterpret_cast<void (*)(ncclComm_t)>(std::strtoull(plugin, nullptr, 10))(handle);
  }
  return handle && find(handle) ? ncclSuccess : fail(ncclInvalidArgument, "ncclCommResume");
}
