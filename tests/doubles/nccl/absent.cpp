// Functions that exist only so that no symbol is missing: one-sided messages, the device interface, parameters and
// encryption. A call is recorded and returns an error; arguments are read only if a test checks that they arrive.
#include "communicator.h"
#include "journal.h"

using namespace nccl_double;

namespace {

ncclResult_t absent(const char* function, bool sensible) {
  note(function);
  if (!sensible) return fail(ncclInvalidArgument, "%s : invalid argument", function + 1);
  return fail(ncclInvalidUsage, "%s : the test double does not have it", function + 1);
}

ncclTeam_t team(const char* function, ncclComm_t handle) {
  note(function, handle);
  const auto comm = handle ? find(handle) : nullptr;
  return comm ? ncclTeam_t{comm->ranks, comm->rank, 1} : ncclTeam_t{0, 0, 0};
}

}  // namespace

#define ABSENT_FUNCTIONS(X)                                                                                  \
  X(Signal) X(WaitSignal) X(SetEncryption) X(DevCommCreate) X(DevCommDestroy) X(LsaBarrierCreateRequirement) \
  X(GinBarrierCreateRequirement) X(GinOutboxCreateRequirement) X(GinInboxA2ACreateRequirement)               \
  X(LLA2ACreateRequirement) X(GetLsaDevicePointer) X(GetPeerDevicePointer) X(GetLsaMultimemDevicePointer)    \
  X(GetMultimemDevicePointer) X(GetMultimemDeviceLeInfo) X(GetPeerDeviceLeInfo) X(ParamBind) X(ParamGetI8)   \
  X(ParamGetI16) X(ParamGetI32) X(ParamGetI64) X(ParamGetU8) X(ParamGetU16) X(ParamGetU32) X(ParamGetU64)    \
  X(ParamGetStr) X(ParamGet) X(ParamGetParameter) X(ParamGetAllParameterKeys) X(CommMemStats)                \
  X(CommQueryProperties) X(CommGetUniqueId) X(CommWindowRegister) X(CommWindowDeregister) X(WinGetUserPtr)

#define ABSENT(name) \
  NCCL_API(ncclResult_t, nccl##name, ()) { return absent(__func__, false); }
ABSENT_FUNCTIONS(ABSENT)

#define TEAM(name) \
  NCCL_API(ncclTeam_t, ncclTeam##name, (ncclComm_t comm)) { return team(__func__, comm); }
TEAM(World)
TEAM(Lsa)
TEAM(Rail)
TEAM(CftMultimem)

NCCL_API(ncclTeam_t, ncclTeamCft, (ncclComm_t comm, int)) { return team(__func__, comm); }
NCCL_API(int, ncclTeamRankToWorld, (ncclComm_t comm, ncclTeam_t, int rank)) { return note(__func__, comm), rank; }
NCCL_API(int, ncclTeamRankToLsa, (ncclComm_t comm, ncclTeam_t, int rank)) { return note(__func__, comm), rank; }
NCCL_API(int, ncclLLA2ACalcSlots, (int elements, int)) { return note(__func__), elements; }
NCCL_API(void, ncclParamDumpAll, ()) { note(__func__); }
NCCL_API(ncclResult_t, ncclPutSignal,
         (const void*, size_t, ncclDataType_t, int, ncclWindow_t window, size_t, int, int, unsigned, ncclComm_t comm,
          cudaStream_t)) {
  return absent(__func__, comm && find(comm) && window);
}
NCCL_API(ncclResult_t, ncclGetCftDeviceLeInfo,
         (ncclWindow_t window, size_t, int, ncclTeam_t, uint32_t* id, size_t* offset)) {
  return absent(__func__, window && id && offset);
}
