// What this library has only so that every symbol is there: one-sided messages, the device interface, parameters and
// encryption. A call is noted and gets an error; arguments are looked at where a test wants to see that they arrive.
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

#define ABSENT(name) \
  NCCL_API(ncclResult_t, nccl##name, ()) { return absent(__func__, false); }
#define TEAM(name) \
  NCCL_API(ncclTeam_t, ncclTeam##name, (ncclComm_t comm)) { return team(__func__, comm); }

ABSENT(Signal)
ABSENT(WaitSignal)
ABSENT(SetEncryption)
ABSENT(DevCommCreate)
ABSENT(DevCommDestroy)
ABSENT(LsaBarrierCreateRequirement)
ABSENT(GinBarrierCreateRequirement)
ABSENT(GinOutboxCreateRequirement)
ABSENT(GinInboxA2ACreateRequirement)
ABSENT(LLA2ACreateRequirement)
ABSENT(GetLsaDevicePointer)
ABSENT(GetPeerDevicePointer)
ABSENT(GetLsaMultimemDevicePointer)
ABSENT(GetMultimemDevicePointer)
ABSENT(GetMultimemDeviceLeInfo)
ABSENT(GetPeerDeviceLeInfo)
ABSENT(ParamBind)
ABSENT(ParamGetI8)
ABSENT(ParamGetI16)
ABSENT(ParamGetI32)
ABSENT(ParamGetI64)
ABSENT(ParamGetU8)
ABSENT(ParamGetU16)
ABSENT(ParamGetU32)
ABSENT(ParamGetU64)
ABSENT(ParamGetStr)
ABSENT(ParamGet)
ABSENT(ParamGetParameter)
ABSENT(ParamGetAllParameterKeys)
ABSENT(CommMemStats)
ABSENT(CommQueryProperties)
ABSENT(CommGetUniqueId)
ABSENT(WinGetUserPtr)
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
