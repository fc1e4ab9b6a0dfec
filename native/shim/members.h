// Communicators by NCCL's handle: those that live, and those that NCCL is still making. The real one is made first, and
// its handle may come late: at the end of the group, or, where calls do not block, when ncclCommGetAsyncError says so.
// Then ours is made, and its ranks meet. Callers hold the real ncclComm_t; a handle that is not in the table is NCCL's.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "communicator.h"
#include "exports.h"

namespace blink::shim {

// A communicator with what the functions that NCCL's users call have to know of it.
struct Member : Communicator {
  using Communicator::Communicator;

  ncclComm_t real = nullptr;  // once it is known
  // Revoked, suspended or finalized: whatever comes now is for the real one, which refuses it or runs it.
  std::atomic<bool> ended{false};

  std::mutex mutex;
  std::map<int, PremulSum> scalars;    // by the number that ncclRedOpCreatePreMulSum gave
  std::map<std::string, int> shrinks;  // how often without these ranks
};

// One that the real NCCL is making.
struct Pending {
  std::shared_ptr<Member> member;
  ncclComm_t* slot = nullptr;  // where the caller gets the handle
  // Of a child: where the real NCCL writes it, in its own time; and the parent, whose state says when it has. Then the
  // caller's slot is there still. Never freed before: NCCL may write there when nobody waits for it any more.
  ncclComm_t* written = nullptr;
  ncclComm_t parent = nullptr;

  // Hands over a handle that has come.
  void deliver();
};

// For ranks that all know nranks and rank: to be called before the real NCCL makes sure that all have got here.
Pending announced(const std::string& key, int nranks, int rank, ncclComm_t* slot, const ncclConfig_t* config);
// For children: their ranks are announced when NCCL has said who they are.
Pending child_of(const Member& parent, const std::string& what, ncclComm_t* slot, const ncclConfig_t* config);

// The real NCCL has returned `result` for all of these: makes ours, begins all, then waits for those that block.
// A communicator that fails here is NCCL's alone; the other ranks find nobody, and it is theirs alone too.
void begin_all(std::vector<Pending> pending, ncclResult_t result);

// Begins what is complete by now among those that do not block. `comm` was just asked for its state, and says `state`:
// a parent or a child. nullptr: nobody was asked.
void begin_completed(ncclComm_t comm, ncclResult_t state);

// The member of this handle; one that was just completed and not yet asked for its state is begun here: before its
// first call, so that all ranks take the same road in it.
std::shared_ptr<Member> find_member(ncclComm_t comm);

// Takes the handle out of everything, before the real one is freed. The member, if it has one.
std::shared_ptr<Member> take_member(ncclComm_t comm);

// Our own steps beside a real one: what fails in them costs the trees, never NCCL's result. False if they failed.
template <class Body>
bool beside(Body body) {
  const ncclResult_t result = guarded([&] {
    body();
    return ncclSuccess;
  });
  if (result != ncclSuccess) warn("a communicator could not be made: NCCL runs everything of it");
  return result == ncclSuccess;
}

}  // namespace blink::shim
