// What does this library have only so that every symbol is there? One-sided messages, the device interface, parameters
// and encryption: they check that they were called with something and say that they are not to be had.
#include <cstring>

#include "communicator.h"
#include "journal.h"

using namespace nccl_double;

namespace {

ncclResult_t absent(const char* function, ncclComm_t comm, bool sensible) {
  note(function, comm);
  if (!sensible) return fail(ncclInvalidArgument, "%s : invalid argument", function + 1);
  return fail(ncclInvalidUsage, "%s : the test double does not have it", function + 1);
}

ncclTeam_t team(const char* function, ncclComm_t handle) {
  note(function, handle);
  const auto comm = handle ? find(handle) : nullptr;
  return comm ? ncclTeam_t{comm->ranks, comm->rank, 1} : ncclTeam_t{0, 0, 0};
}

bool known(ncclComm_t comm) { return comm && find(comm); }

}  // namespace

NCCL_API(ncclResult_t, ncclPutSignal,
         (const void*, size_t, ncclDataType_t, int, ncclWindow_t window, size_t, int, int, unsigned, ncclComm_t comm,
          cudaStream_t)) {
  return absent(__func__, comm, known(comm) && window);
}
NCCL_API(ncclResult_t, ncclSignal, (int, int, int, unsigned, ncclComm_t comm, cudaStream_t)) {
  return absent(__func__, comm, known(comm));
}
NCCL_API(ncclResult_t, ncclWaitSignal, (int count, ncclWaitSignalDesc_t* list, ncclComm_t comm, cudaStream_t)) {
  return absent(__func__, comm, known(comm) && count >= 0 && (count == 0 || list));
}
NCCL_API(ncclResult_t, ncclSetEncryption, (const ncclEncryptionConfig_t* config)) {
  return absent(__func__, nullptr, config && config->magic == kConfigMagic);
}

NCCL_API(ncclResult_t, ncclDevCommCreate, (ncclComm_t comm, const void* wanted, void* out)) {
  return absent(__func__, comm, known(comm) && wanted && out);
}
NCCL_API(ncclResult_t, ncclDevCommDestroy, (ncclComm_t comm, const void* made)) {
  return absent(__func__, comm, known(comm) && made);
}
NCCL_API(ncclTeam_t, ncclTeamWorld, (ncclComm_t comm)) { return team(__func__, comm); }
NCCL_API(ncclTeam_t, ncclTeamLsa, (ncclComm_t comm)) { return team(__func__, comm); }
NCCL_API(ncclTeam_t, ncclTeamRail, (ncclComm_t comm)) { return team(__func__, comm); }
NCCL_API(ncclTeam_t, ncclTeamCft, (ncclComm_t comm, int)) { return team(__func__, comm); }
NCCL_API(ncclTeam_t, ncclTeamCftMultimem, (ncclComm_t comm)) { return team(__func__, comm); }
NCCL_API(int, ncclTeamRankToWorld, (ncclComm_t comm, ncclTeam_t, int rank)) { return note(__func__, comm), rank; }
NCCL_API(int, ncclTeamRankToLsa, (ncclComm_t comm, ncclTeam_t, int rank)) { return note(__func__, comm), rank; }
NCCL_API(ncclResult_t, ncclLsaBarrierCreateRequirement, (ncclTeam_t, int, void* handle, void* out)) {
  return absent(__func__, nullptr, handle && out);
}
NCCL_API(ncclResult_t, ncclGinBarrierCreateRequirement, (ncclComm_t comm, ncclTeam_t, int, void* handle, void* out)) {
  return absent(__func__, comm, handle && out);
}
NCCL_API(ncclResult_t, ncclGinOutboxCreateRequirement, (int, int, void* handle, void* out)) {
  return absent(__func__, nullptr, handle && out);
}
NCCL_API(ncclResult_t, ncclGinInboxA2ACreateRequirement, (ncclTeam_t, int, int, void* handle, void* out)) {
  return absent(__func__, nullptr, handle && out);
}
NCCL_API(int, ncclLLA2ACalcSlots, (int elements, int bytes)) { return note(__func__), elements * ((bytes + 7) / 8); }
NCCL_API(ncclResult_t, ncclLLA2ACreateRequirement, (int, int, void* handle, void* out)) {
  return absent(__func__, nullptr, handle && out);
}
NCCL_API(ncclResult_t, ncclGetLsaDevicePointer, (ncclWindow_t window, size_t, int, void** out)) {
  return absent(__func__, nullptr, window && out);
}
NCCL_API(ncclResult_t, ncclGetPeerDevicePointer, (ncclWindow_t window, size_t, int, void** out)) {
  return absent(__func__, nullptr, window && out);
}
NCCL_API(ncclResult_t, ncclGetLsaMultimemDevicePointer, (ncclWindow_t window, size_t, void** out)) {
  return absent(__func__, nullptr, window && out);
}
NCCL_API(ncclResult_t, ncclGetMultimemDevicePointer, (ncclWindow_t window, size_t, void* multimem, void** out)) {
  return absent(__func__, nullptr, window && multimem && out);
}
NCCL_API(ncclResult_t, ncclGetMultimemDeviceLeInfo, (ncclWindow_t window, size_t, uint32_t* id, size_t* offset)) {
  return absent(__func__, nullptr, window && id && offset);
}
NCCL_API(ncclResult_t, ncclGetCftDeviceLeInfo,
         (ncclWindow_t window, size_t, int, ncclTeam_t, uint32_t* id, size_t* offset)) {
  return absent(__func__, nullptr, window && id && offset);
}
NCCL_API(ncclResult_t, ncclGetPeerDeviceLeInfo, (ncclWindow_t window, size_t, int, uint32_t* id, size_t* offset)) {
  return absent(__func__, nullptr, window && id && offset);
}

NCCL_API(ncclResult_t, ncclParamBind, (ncclParamHandle_t* out, const char* key)) {
  return absent(__func__, nullptr, out && key);
}
#define PARAMETER(name, type) \
  NCCL_API(ncclResult_t, ncclParamGet##name, (ncclParamHandle_t handle, type* out)) { \
    return absent(__func__, nullptr, handle && out); \
  }
PARAMETER(I8, int8_t)
PARAMETER(I16, int16_t)
PARAMETER(I32, int32_t)
PARAMETER(I64, int64_t)
PARAMETER(U8, uint8_t)
PARAMETER(U16, uint16_t)
PARAMETER(U32, uint32_t)
PARAMETER(U64, uint64_t)
PARAMETER(Str, const char*)
NCCL_API(ncclResult_t, ncclParamGet, (ncclParamHandle_t handle, void* out, int, int* length)) {
  return absent(__func__, nullptr, handle && out && length);
}
NCCL_API(ncclResult_t, ncclParamGetParameter, (const char* key, const char** value, int* length)) {
  return absent(__func__, nullptr, key && value && length);
}
NCCL_API(ncclResult_t, ncclParamGetAllParameterKeys, (const char*** table, int* length)) {
  note(__func__);
  if (!table || !length) return fail(ncclInvalidArgument, "ncclParamGetAllParameterKeys : invalid argument");
  *table = nullptr;
  *length = 0;
  return ncclSuccess;
}
NCCL_API(void, ncclParamDumpAll, ()) { note(__func__); }
