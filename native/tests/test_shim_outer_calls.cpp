// Do collectives, groups and operators take the right road in the right order, and does everything else reach NCCL as
// it was called?

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "check.h"
#include "exports.h"
#include "shim_stand_in.h"
#include "shim_stand_in_inner.h"
#include "table.h"

using blink_test::expect;
using shim_test::behaviour;
using shim_test::fail;
using shim_test::history;
using namespace blink::shim;

namespace {

void same(const std::string& got, const std::string& wanted, const char* what) {
  expect(got == wanted, "%s: got '%s', expected '%s'", what, got.c_str(), wanted.c_str());
}

void is(int got, int wanted, const char* what) { expect(got == wanted, "%s: %d, expected %d", what, got, wanted); }

float data[64];

ncclComm_t make(int nranks, int rank) {
  ncclUniqueId id{};
  id.internal[0] = 3;
  id.internal[127] = 4;
  ncclComm_t comm = nullptr;
  is(ncclCommInitRank(&comm, nranks, id, rank), ncclSuccess, "init");
  return comm;
}

int allreduce(ncclComm_t comm, size_t count, int op = kSum, int type = kFloat) {
  return ncclAllReduce(data, data, count, type, op, comm, nullptr);
}

void forwards(ncclComm_t comm) {
  int version = 0;
  is(ncclGetVersion(&version), ncclSuccess, "version");
  is(version, 23203, "the real version");
  same(ncclGetErrorString(ncclInvalidUsage), "stand-in", "the real text");
  const ncclTeam_t world = ncclTeamWorld(comm);
  is(world.nRanks * 10000 + world.rank * 100 + world.stride, 40177, "a team by value");
  is(ncclTeamCft(comm, 5).rank, 5, "an enum by value");
  is(ncclTeamRankToWorld(comm, {3, 2, 5}, 1), 32051, "a team as an argument");
  void* out = nullptr;
  is(ncclGetMultimemDevicePointer(nullptr, 8, {data}, &out), ncclSuccess, "multimem");
  expect(out == reinterpret_cast<char*>(data) + 8, "a handle by value");
  ncclCftLeId_t id = 0;
  size_t offset = 0;
  is(ncclGetCftDeviceLeInfo(nullptr, 9, 4, {1, 2, 3}, &id, &offset), ncclSuccess, "cft");
  is(static_cast<int>(id * 10 + offset), 1279, "a team between other arguments");
  is(ncclPutSignal(data, 1, 2, 3, nullptr, 4, 5, 6, 7, comm, nullptr), ncclSuccess, "put");
  ncclParamDumpAll();
  is(ncclSend(data, 12, kFloat, 1, comm, nullptr), ncclSuccess, "send");
  same(history(), "nccl put 1 2 3 4 5 6 7; nccl dump; nccl ncclSend 12", "forwarded calls");
}

void missing(ncclComm_t comm) {
  errno = 77;
  is(ncclCommWindowDeregister(comm, nullptr), ncclInvalidUsage, "a function that the library lacks");
  is(ncclCommWindowDeregister(comm, nullptr), ncclInvalidUsage, "again");
  is(errno, 77, "errno");
  same(history(), "warn: this NCCL (version code 23203) has no ncclCommWindowDeregister: the call returns an error",
       "said once");
  is(ncclTeamRankToLsa(comm, {2, 0, 1}, 1), -1, "no such rank");
  is(ncclTeamRail(comm).nRanks, 1, "a team of its own");
  is(ncclLLA2ACalcSlots(1, 1), 0, "no slots");
  history();
}

void roads(ncclComm_t comm) {
  is(allreduce(comm, 8), ncclSuccess, "allreduce");
  is(ncclBroadcast(data, data + 32, 8, kInt8, 2, comm, nullptr), ncclSuccess, "broadcast");
  is(ncclBcast(data, 8, kHalf, 3, comm, nullptr), ncclSuccess, "bcast");
  is(ncclReduce(data, data + 32, 8, kInt32, kMax, 0, comm, nullptr), ncclSuccess, "reduce");
  is(ncclAllGather(data, data + 32, 8, kInt64, comm, nullptr), ncclSuccess, "allgather");
  is(ncclReduceScatter(data, data + 32, 8, kBfloat16, kAvg, comm, nullptr), ncclSuccess, "reduce-scatter");
  is(ncclAlltoAll(data, data + 32, 8, kUint8, comm, nullptr), ncclSuccess, "alltoall");
  is(ncclGather(data, data + 32, 8, kFloat8E4M3, 1, comm, nullptr), ncclSuccess, "gather");
  is(ncclScatter(data, data + 32, 8, kFloat8E5M2, 1, comm, nullptr), ncclSuccess, "scatter");
  std::string ran;
  for (const std::string& line : shim_test::events()) {
    if (line.rfind("run ", 0) == 0) ran += line.substr(4) + "; ";
  }
  same(ran,
       "allreduce 8 type 7 op 0 in place on rank 1; broadcast 8 type 0 op 0 root 2 on rank 1; "
       "broadcast 8 type 6 op 0 root 3 in place on rank 1; reduce 8 type 2 op 2 root 0 on rank 1; "
       "allgather 8 type 4 op 0 on rank 1; reduce_scatter 8 type 9 op 4 on rank 1; alltoall 8 type 1 op 0 on rank 1; "
       "gather 8 type 10 op 0 root 1 on rank 1; scatter 8 type 11 op 0 root 1 on rank 1; ",
       "all collectives");
  behaviour.takes = false;
  is(allreduce(comm, 8), ncclSuccess, "not taken");
  behaviour.takes = true;
  same(history(), "takes? allreduce 8 type 7 op 0 in place on rank 1; nccl ncclAllReduce 8", "left to NCCL");
  is(allreduce(comm, 0), ncclSuccess, "nothing to move");
  same(history(), "nccl ncclAllReduce 0", "nothing to move");
  behaviour.takes = false;
  is(ncclBcast(data, 8, kFloat, 0, comm, nullptr), ncclSuccess, "bcast");
  behaviour.takes = true;
  same(history(), "takes? broadcast 8 type 7 op 0 root 0 in place on rank 1; nccl ncclBcast 8; nccl ncclBroadcast 8",
       "what NCCL calls of itself goes straight through");
  const auto plug = shim_test::stand_in<void(void (*)(ncclComm_t))>("stand_in_plug");
  plug([](ncclComm_t resumed) { allreduce(resumed, 6); });
  is(ncclCommResume(comm), ncclSuccess, "resume");
  plug(nullptr);
  same(history(), "nccl resume; nccl ncclAllReduce 6", "and what its plugins call");
}

void refused(ncclComm_t comm) {
  fail("ncclAllReduce", ncclInvalidArgument);
  is(allreduce(comm, 8, kSum, 12), ncclInvalidArgument, "no such type");
  is(allreduce(comm, 8, kSum, -1), ncclInvalidArgument, "no such type");
  is(allreduce(comm, 8, 99), ncclInvalidArgument, "no such operation");
  is(allreduce(comm, 8, -1), ncclInvalidArgument, "no such operation");
  is(ncclAllReduce(nullptr, data, 8, kFloat, kSum, comm, nullptr), ncclInvalidArgument, "no buffer");
  is(ncclAllReduce(data, data, 8, kFloat, kSum, nullptr, nullptr), ncclInvalidArgument, "no communicator");
  fail("", 0);
  is(ncclBroadcast(data, data, 8, kFloat, 4, comm, nullptr), ncclSuccess, "no such root");
  is(ncclReduce(data, data, 8, kFloat, kSum, -1, comm, nullptr), ncclSuccess, "no such root");
  for (const std::string& line : shim_test::events()) {
    expect(line.rfind("nccl ", 0) == 0, "'%s': NCCL alone is asked", line.c_str());
  }
  // Where the rank needs no buffer it may leave it out.
  is(ncclReduce(data, nullptr, 8, kFloat, kSum, 0, comm, nullptr), ncclSuccess, "reduce off root");
  is(ncclBroadcast(nullptr, data, 8, kFloat, 0, comm, nullptr), ncclSuccess, "broadcast off root");
  is(ncclGather(data, nullptr, 8, kFloat, 0, comm, nullptr), ncclSuccess, "gather off root");
  is(ncclScatter(nullptr, data, 8, kFloat, 0, comm, nullptr), ncclSuccess, "scatter off root");
  int ran = 0;
  for (const std::string& line : shim_test::events()) ran += line.rfind("run ", 0) == 0;
  is(ran, 4, "ours");
}

void configured(ncclComm_t comm) {
  CollConfigHead head{sizeof(CollConfigHead), kConfigMagic, 23203, nullptr, kConfigUnset, kConfigUnset,
                      kConfigUnset, kConfigUnset, nullptr, 1, kConfigUnset, 5, nullptr};
  const auto* config = reinterpret_cast<ncclCollConfig_t*>(&head);
  const auto run = [&](const ncclCollConfig_t* given) {
    is(ncclAllReduceConfig(data, data, 8, kFloat, kSum, comm, nullptr, given), ncclSuccess, "with a configuration");
    const std::string text = history();
    return text.find("run allreduce") != std::string::npos ? "ours" : text;
  };
  same(run(nullptr), "ours", "none");
  same(run(config), "ours", "as usual");
  head.max_ctas = 4;
  same(run(config), "nccl ncclAllReduceConfig 8", "tuned");
  head.max_ctas = kConfigUnset;
  head.alg_selection = "ring";
  same(run(config), "nccl ncclAllReduceConfig 8", "an algorithm");
  head.alg_selection = "";
  same(run(config), "ours", "an empty algorithm");
  head.launch_completion_event = reinterpret_cast<cudaEvent_t>(data);
  same(run(config), "nccl ncclAllReduceConfig 8", "an event");
  head.launch_completion_event = nullptr;
  head.magic = 1;
  same(run(config), "nccl ncclAllReduceConfig 8", "not a configuration");
  head.magic = kConfigMagic;
  head.size += 8;
  same(run(config), "nccl ncclAllReduceConfig 8", "of a newer NCCL");
}

void groups(ncclComm_t first, ncclComm_t second) {
  ncclGroupStart();
  is(allreduce(second, 1), ncclSuccess, "in a group");
  is(ncclGroupStart(), ncclSuccess, "nested");
  is(allreduce(first, 2), ncclSuccess, "in a group");
  is(ncclSend(data, 3, kFloat, 1, first, nullptr), ncclSuccess, "send");
  is(ncclGroupEnd(), ncclSuccess, "nested");
  is(allreduce(second, 4), ncclSuccess, "in a group");
  std::thread([&] { is(allreduce(first, 5), ncclSuccess, "another thread has its own groups"); }).join();
  is(ncclGroupEnd(), ncclSuccess, "the end");
  const std::string ar = "allreduce ", rest = " type 7 op 0 in place on rank ";
  same(history(),
       "nccl group start; takes? " + ar + "1" + rest + "2; nccl group start; takes? " + ar + "2" + rest +
           "1; nccl ncclSend 3; takes? " + ar + "4" + rest + "2; takes? " + ar + "5" + rest + "1; run " + ar + "5" +
           rest + "1; nccl group end; run " + ar + "1" + rest + "2; run " + ar + "2" + rest + "1; run " + ar + "4" +
           rest + "2",
       "in the order of the program, after the real end");
  is(ncclGroupEnd(), ncclInvalidUsage, "an end without a start is NCCL's to refuse");
  history();
}

void failing_groups(ncclComm_t first, ncclComm_t second) {
  behaviour.enqueues = ncclRemoteError;
  is(allreduce(first, 1), ncclRemoteError, "an error at once");
  history();
  ncclGroupStart();
  allreduce(first, 1);
  allreduce(second, 2);
  is(ncclGroupEnd(), ncclRemoteError, "ours is returned by the end");
  const std::string all = history();
  expect(all.find("run allreduce 2") != std::string::npos, "others wait for the second: %s", all.c_str());
  behaviour.enqueues = 0;
  fail("ncclGroupEnd", ncclInvalidArgument);
  ncclGroupStart();
  allreduce(first, 1);
  is(ncclGroupEnd(), ncclInvalidArgument, "NCCL's error");
  fail("", 0);
  expect(history().find("run ") == std::string::npos, "a group with an error runs nothing");
  ncclGroupStart();
  allreduce(first, 1);
  is(ncclGroupSimulateEnd(nullptr), ncclSuccess, "simulated");
  expect(history().find("run ") == std::string::npos, "a simulated group runs nothing");
  is(allreduce(first, 1), ncclSuccess, "after the group");
  expect(history().find("run ") != std::string::npos, "the group is closed");
}

void operators(ncclComm_t comm) {
  unsigned char scalar[8] = {9};
  int first = 0, second = 0;
  is(ncclRedOpCreatePreMulSum(&first, scalar, kFloat, kScalarHost, comm), ncclSuccess, "create");
  is(allreduce(comm, 1, first), ncclSuccess, "premul");
  is(allreduce(comm, 2, first, kDouble), ncclSuccess, "premul of another type");
  is(ncclRedOpDestroy(first, comm), ncclSuccess, "destroy");
  is(allreduce(comm, 3, first), ncclSuccess, "destroyed");
  same(history(),
       "know 5 type 7 first byte 9; takes? allreduce 1 type 7 op 5 in place on rank 1; "
       "run allreduce 1 type 7 op 5 in place on rank 1; nccl ncclAllReduce 2; forget 5; nccl ncclAllReduce 3",
       "premul_sum");
  // Destroyed in the group that uses it, and its number given to the next.
  ncclGroupStart();
  for (int i = 0; i < 2; ++i) {
    is(ncclRedOpCreatePreMulSum(&second, scalar, kFloat, kScalarDevice, comm), ncclSuccess, "create");
    is(second, 5, "NCCL uses numbers again");
    is(allreduce(comm, 1, second), ncclSuccess, "premul in a group");
    is(ncclRedOpDestroy(second, comm), ncclSuccess, "destroy in the group");
  }
  is(ncclGroupEnd(), ncclSuccess, "end");
  const std::string all = history();
  same(all.substr(all.find("nccl group end")),
       "nccl group end; run allreduce 1 type 7 op 5 in place on rank 1; "
       "run allreduce 1 type 7 op 6 in place on rank 1; forget 5; forget 6",
       "two scalars with one number");
  is(ncclRedOpCreatePreMulSum(&second, scalar, kFloat, kScalarDevice, comm), ncclSuccess, "create");
  same(history(), "know 5 type 7 stored", "the number is free again");
  ncclRedOpDestroy(second, comm);
  history();
}

void exceptions(ncclComm_t comm) {
  errno = 66;
  behaviour.throws_bad_alloc = true;
  is(allreduce(comm, 1), ncclSystemError, "no memory");
  behaviour.throws_bad_alloc = false;
  behaviour.throws_other = true;
  is(allreduce(comm, 1), ncclInternalError, "an odd error");
  behaviour.throws_other = false;
  is(errno, 66, "errno");
  same(history(), "warn: internal error: odd", "said");
}

}  // namespace

int main() {
  setenv("BLINK_NCCL_LIB", STAND_IN_NCCL, 1);
  const ncclComm_t first = make(4, 1), second = make(4, 2);
  history();
  forwards(first);
  missing(first);
  roads(first);
  refused(first);
  configured(first);
  groups(first, second);
  failing_groups(first, second);
  operators(first);
  exceptions(first);
  is(ncclCommDestroy(first), ncclSuccess, "destroy");
  is(ncclCommDestroy(second), ncclSuccess, "destroy");
  shim_test::stand_in<void()>("stand_in_clear")();
  return blink_test::verdict();
}
