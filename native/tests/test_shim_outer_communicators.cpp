// Do our communicators come to life, have children and end beside NCCL's: announced before, begun after, with the right
// keys, however late the handle comes?

#include <array>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "exports.h"
#include "shim_stand_in.h"
#include "shim_stand_in_inner.h"

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

float data[8];

ncclUniqueId id_of(char first) {
  ncclUniqueId id{};
  id.internal[0] = first;
  id.internal[127] = 9;
  return id;
}

ncclComm_t make(char id, int nranks, int rank) {
  ncclComm_t comm = nullptr;
  is(ncclCommInitRank(&comm, nranks, id_of(id), rank), ncclSuccess, "init");
  return comm;
}

// "ours" or "NCCL": who runs a call of this communicator?
std::string who(ncclComm_t comm) {
  history();
  is(ncclAllReduce(data, data, 8, kFloat, kSum, comm, nullptr), ncclSuccess, "allreduce");
  return history().find("run ") != std::string::npos ? "ours" : "NCCL";
}

int state_of(ncclComm_t comm) {
  int state = -1;
  is(ncclCommGetAsyncError(comm, &state), ncclSuccess, "async error");
  return state;
}

void complete(ncclComm_t comm) { shim_test::stand_in<void(ncclComm_t)>("stand_in_complete")(comm); }

struct Config : ConfigHead {
  explicit Config(int blocks) : ConfigHead{sizeof(ConfigHead), kConfigMagic, 23203, blocks} {}
  ncclConfig_t* get() { return reinterpret_cast<ncclConfig_t*>(static_cast<ConfigHead*>(this)); }
};

void one_by_one() {
  const ncclComm_t comm = make(1, 2, 1);
  same(history(),
       "announce k1.128 1; nccl init 1 of 2 id 1 9; begin k1.128 1 of 2 on 11 grace 0; settle 1",
       "announced before, begun after");
  same(who(comm), "ours", "a communicator of two");
  is(state_of(comm), ncclSuccess, "state");
  history();
  is(ncclCommFinalize(comm), ncclSuccess, "finalize");
  same(who(comm), "NCCL", "finalized");
  is(ncclCommDestroy(comm), ncclSuccess, "destroy");
  same(history(), "nccl deregister; nccl destroy", "ours was ended before");
  // The stand-in hands the same handle out again, to somebody who is alone.
  const ncclComm_t alone = make(1, 1, 0);
  expect(alone == comm, "the handle is used again");
  same(history(), "nccl init 0 of 1 id 1 9", "one rank needs nobody");
  same(who(alone), "NCCL", "no stale entry");
  is(ncclCommDestroy(alone), ncclSuccess, "destroy");
  // Freed by a name of NCCL's that nobody wraps.
  const ncclComm_t lost = make(1, 2, 1);
  shim_test::stand_in<void(ncclComm_t)>("stand_in_free")(lost);
  history();
  expect(make(1, 1, 0) == lost, "the handle is used again");
  same(history(), "nccl init 0 of 1 id 1 9; abort 1", "what it was is given up");
  same(who(lost), "NCCL", "no stale entry");
  is(ncclCommDestroy(lost), ncclSuccess, "destroy");
  history();
}

void endings() {
  ncclComm_t comm = make(1, 2, 0);
  history();
  is(ncclCommDestroy(comm), ncclSuccess, "destroy");
  same(history(), "finalize 0; nccl deregister; nccl destroy", "destroyed");
  comm = make(1, 2, 0);
  history();
  is(ncclCommAbort(comm), ncclSuccess, "abort");
  same(history(), "abort 0; nccl abort", "ours first");
  comm = make(1, 2, 0);
  history();
  is(ncclCommRevoke(comm, 0), ncclSuccess, "revoke");
  same(history(), "abort 0; nccl revoke", "revoked");
  same(who(comm), "NCCL", "revoked");
  is(ncclCommAbort(comm), ncclSuccess, "abort");
  same(history(), "abort 0; nccl abort", "aborted");
  comm = make(1, 2, 0);
  history();
  is(ncclCommSuspend(comm, 1), ncclSuccess, "suspend");
  is(ncclCommResume(comm), ncclSuccess, "resume");
  same(history(), "finalize 0; nccl suspend; nccl resume", "suspended");
  same(who(comm), "NCCL", "resumed");
  is(ncclCommDestroy(comm), ncclSuccess, "destroy");
  history();
}

void failures() {
  ncclComm_t comm = nullptr;
  fail("ncclCommInitRank", ncclSystemError);
  is(ncclCommInitRank(&comm, 2, id_of(1), 0), ncclSystemError, "NCCL's error");
  fail("", 0);
  same(history(), "announce k1.128 0; nccl init 0 of 2 id 1 9; leave k1.128 0", "nobody is found here");
  is(ncclCommInitRank(&comm, 2, id_of(1), 2), ncclInvalidArgument, "no such rank");
  is(ncclCommInitRank(&comm, 0, id_of(1), 0), ncclInvalidArgument, "no ranks");
  same(history(), "nccl init 2 of 2 id 1 9; nccl init 0 of 0 id 1 9", "refused by NCCL, not announced");
  behaviour.mute = true;
  comm = make(1, 2, 0);
  same(history(), "nccl init 0 of 2 id 1 9; begin k1.128 0 of 2 on 10 grace 0 without: mute; settle 0", "mute");
  behaviour.mute = false;
  ncclCommDestroy(comm);
  history();
  behaviour.throws_at_make = true;
  comm = make(1, 2, 0);
  behaviour.throws_at_make = false;
  same(history(),
       "announce k1.128 0; nccl init 0 of 2 id 1 9; leave k1.128 0; "
       "warn: a communicator could not be made: NCCL runs everything of it",
       "no memory for ours");
  same(who(comm), "NCCL", "without ours");
  ncclCommDestroy(comm);
  history();
}

void in_groups() {
  std::array<ncclComm_t, 2> comms{};
  ncclGroupStart();
  for (int rank = 0; rank < 2; ++rank) is(ncclCommInitRank(&comms[rank], 2, id_of(2), rank), ncclSuccess, "init");
  expect(comms[0] == nullptr, "the handle comes at the end");
  is(ncclGroupEnd(), ncclSuccess, "end");
  same(history(),
       "nccl group start; announce k2.128 0; nccl init 0 of 2 id 2 9; announce k2.128 1; nccl init 1 of 2 id 2 9; "
       "nccl group end; begin k2.128 0 of 2 on 10 grace 0; begin k2.128 1 of 2 on 11 grace 0; settle 0; settle 1",
       "all begin, then all settle");
  std::array<ncclComm_t, 2> children{};
  ncclGroupStart();
  for (int rank = 0; rank < 2; ++rank) {
    is(ncclCommSplit(comms[rank], 4, rank, &children[rank], nullptr), ncclSuccess, "split");
  }
  is(ncclGroupEnd(), ncclSuccess, "end");
  same(history(),
       "nccl group start; nccl split 4 0; nccl split 4 1; nccl group end; announce k2.128/split:0:4 0; "
       "begin k2.128/split:0:4 0 of 2 on 10 grace 5; announce k2.128/split:0:4 1; "
       "begin k2.128/split:0:4 1 of 2 on 11 grace 5; settle 0; settle 1",
       "children in a group");
  fail("ncclGroupEnd", ncclInternalError);
  ncclComm_t lost = nullptr;
  ncclGroupStart();
  ncclCommInitRank(&lost, 2, id_of(3), 0);
  is(ncclGroupEnd(), ncclInternalError, "NCCL's error");
  fail("", 0);
  same(history(), "nccl group start; announce k3.128 0; nccl init 0 of 2 id 3 9; nccl group end; leave k3.128 0",
       "a group that fails");
  for (int rank = 0; rank < 2; ++rank) {
    is(ncclCommDestroy(children[rank]), ncclSuccess, "destroy");
    is(ncclCommDestroy(comms[rank]), ncclSuccess, "destroy");
  }
  history();
}

void all_at_once() {
  std::array<ncclComm_t, 2> comms{};
  const int devices[] = {5, 3};
  is(ncclCommInitAll(comms.data(), 2, devices), ncclSuccess, "init all");
  std::string all = history();
  const std::string key = all.substr(9, all.find(' ', 9) - 9);
  const std::string first = "begin " + key + " 0 of 2 on ", second = "begin " + key + " 1 of 2 on ";
  same(all,
       "announce " + key + " 0; announce " + key + " 1; nccl unique id; nccl init all 2; " + first +
           "5 grace 0; " + second + "3 grace 0; settle 0; settle 1",
       "NCCL's own call of the unique id goes through");
  for (const ncclComm_t comm : comms) {
    same(who(comm), "ours", "init all");
    is(ncclCommDestroy(comm), ncclSuccess, "destroy");
  }
  std::array<ncclUniqueId, 3> ids{id_of(5), id_of(6), id_of(7)};
  history();
  ncclComm_t comm = nullptr;
  is(ncclCommInitRankScalable(&comm, 4, 2, 3, ids.data(), nullptr), ncclSuccess, "scalable");
  all = history();
  expect(all.rfind("announce k5.384 2; ", 0) == 0, "the key is made of all ids: %s", all.c_str());
  is(ncclCommDestroy(comm), ncclSuccess, "destroy");
  history();
}

void children() {
  const ncclComm_t parent = make(1, 4, 2);
  history();
  ncclComm_t child = parent;
  is(ncclCommSplit(parent, kSplitNoColor, 0, &child, nullptr), ncclSuccess, "no color");
  expect(child == nullptr, "no child");
  same(history(), "nccl split -1 0", "no color");
  is(ncclCommSplit(parent, 7, 1, &child, nullptr), ncclSuccess, "split");
  same(history(),
       "nccl split 7 1; announce k1.128/split:1:7 1; begin k1.128/split:1:7 1 of 2 on 12 grace 5; settle 1",
       "the number was drawn without a color too");
  same(who(child), "ours", "a child");
  is(ncclCommDestroy(child), ncclSuccess, "destroy");
  std::array<int, 2> without{3, 1};
  history();
  for (int i = 0; i < 2; ++i) {
    is(ncclCommShrink(parent, without.data(), 2, &child, nullptr, 0), ncclSuccess, "shrink");
    const std::string key = "k1.128/shrink:" + std::to_string(i) + ":1,3, 2";
    const std::string all = history();
    expect(all.find("announce " + key) != std::string::npos, "%s: %s", key.c_str(), all.c_str());
    ncclCommDestroy(child);
    history();
  }
  is(ncclCommShrink(parent, without.data(), 1, &child, nullptr, kShrinkAbort), ncclSuccess, "shrink");
  const std::string all = history();
  expect(all.rfind("abort 2; nccl shrink 1 flags 1; announce k1.128/shrink:0:3, 2", 0) == 0, "aborted first: %s",
         all.c_str());
  ncclCommDestroy(child);
  ncclComm_t grown = nullptr;
  history();
  is(ncclCommGrow(parent, 5, nullptr, -1, &grown, nullptr), ncclInvalidUsage, "this library cannot");
  ncclCommDestroy(parent);
  history();
}

void without_waiting() {
  Config config(0);
  std::array<ncclComm_t, 2> comms{};
  for (int rank = 0; rank < 2; ++rank) {
    is(ncclCommInitRankConfig(&comms[rank], 2, id_of(1), rank, config.get()), ncclInProgress, "in progress");
  }
  same(history(), "announce k1.128 0; nccl init 0 of 2 id 1 9; announce k1.128 1; nccl init 1 of 2 id 1 9",
       "announced, not begun");
  is(state_of(comms[0]), ncclInProgress, "NCCL is at it");
  complete(comms[0]);
  complete(comms[1]);
  behaviour.late = true;
  is(state_of(comms[0]), ncclInProgress, "now we are at it");
  same(history(), "begin k1.128 0 of 2 on 10 grace 0; begin k1.128 1 of 2 on 11 grace 0",
       "one was asked, and both begin: they meet");
  const auto thread_sees = shim_test::stand_in<int(ncclComm_t)>("stand_in_thread_sees");
  is(thread_sees(comms[0]), ncclSuccess, "NCCL's own threads see NCCL's own state");
  shim_test::finish();
  is(state_of(comms[0]), ncclSuccess, "done");
  behaviour.late = false;
  ncclComm_t child = nullptr;
  is(ncclCommSplit(comms[0], 1, 0, &child, nullptr), ncclInProgress, "the child of one that does not block");
  is(state_of(comms[0]), ncclInProgress, "NCCL is at it");
  expect(child == nullptr, "no handle yet");
  complete(comms[0]);
  history();
  is(state_of(comms[0]), ncclSuccess, "the parent says so");
  same(history(), "announce k1.128/split:0:1 0; begin k1.128/split:0:1 0 of 2 on 10 grace 5", "the child begins");
  same(who(child), "ours", "the child");
  ncclCommDestroy(child);
  // Only the child is asked, or used.
  for (const bool asked : {true, false}) {
    is(ncclCommSplit(comms[0], 1, 0, &child, nullptr), ncclInProgress, "another child");
    complete(comms[0]);
    history();
    if (asked) is(state_of(child), ncclSuccess, "the child says so itself");
    expect((history().find("begin ") != std::string::npos) == asked, "begun when it was asked");
    same(who(child), "ours", asked ? "the child that was asked" : "the child that was used");
    ncclCommDestroy(child);
  }
  history();
  // Nobody asks, and the call comes: begun at the last moment.
  ncclComm_t hasty = nullptr;
  is(ncclCommInitRankConfig(&hasty, 2, id_of(3), 0, config.get()), ncclInProgress, "in progress");
  same(who(hasty), "NCCL", "not complete: NCCL refuses it");
  complete(hasty);
  same(who(hasty), "ours", "complete");
  ncclCommDestroy(hasty);
  is(ncclCommInitRankConfig(&hasty, 2, id_of(3), 0, config.get()), ncclInProgress, "in progress");
  history();
  is(ncclCommAbort(hasty), ncclSuccess, "aborted before it was complete");
  same(history(), "leave k3.128 0; nccl abort", "nobody is found here");
  for (const ncclComm_t comm : comms) ncclCommDestroy(comm);
  // In a group, and configurations that cannot be read.
  ncclGroupStart();
  is(ncclCommInitRankConfig(&comms[0], 2, id_of(4), 0, config.get()), ncclSuccess, "in a group");
  ncclGroupEnd();
  complete(comms[0]);
  history();
  is(state_of(comms[0]), ncclSuccess, "done");
  same(history(), "begin k4.128 0 of 2 on 10 grace 0", "begun when it was complete");
  ncclCommDestroy(comms[0]);
  expect(blocking(nullptr, true) && !blocking(nullptr, false) && !blocking(config.get(), true), "blocking");
  config.size = 16;
  expect(blocking(config.get(), false), "a configuration that is too short");
  config.size = sizeof(ConfigHead);
  config.magic = 1;
  expect(blocking(config.get(), false), "no configuration at all");
  setenv("NCCL_COMM_BLOCKING", "0", 1);
  expect(!blocking(nullptr, true), "the environment overrules");
  unsetenv("NCCL_COMM_BLOCKING");
  history();
}

// Ranks as threads, each with groups of its own; many handles come and go.
void at_once() {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([rank] {
      for (int round = 0; round < 40; ++round) {
        ncclComm_t comm = nullptr;
        ncclCommInitRank(&comm, 4, id_of(1), rank);
        ncclGroupStart();
        ncclAllReduce(data, data, 8, kFloat, kSum, comm, nullptr);
        ncclGroupEnd();
        int state = 0;
        ncclCommGetAsyncError(comm, &state);
        if (round % 2 == 0) {
          ncclCommAbort(comm);
        } else {
          ncclCommDestroy(comm);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int ran = 0, begun = 0;
  for (const std::string& line : shim_test::events()) {
    ran += line.rfind("run ", 0) == 0;
    begun += line.rfind("begin ", 0) == 0;
  }
  is(ran, 160, "ran");
  is(begun, 160, "begun");
}

}  // namespace

int main() {
  setenv("BLINK_NCCL_LIB", STAND_IN_NCCL, 1);
  one_by_one();
  endings();
  failures();
  in_groups();
  all_at_once();
  children();
  without_waiting();
  at_once();
  shim_test::stand_in<void()>("stand_in_clear")();
  return blink_test::verdict();
}
