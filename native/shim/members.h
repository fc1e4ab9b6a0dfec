// Communicators by NCCL's handle: the live ones, and those that NCCL is creating. NCCL creates the real one first, and
// its handle may come late: at the end of the group or, for non-blocking calls, with ncclCommGetAsyncError. Then Blink
// creates its own, whose ranks meet. Callers hold the real ncclComm_t; handles that are not in the table are NCCL's.
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

// A communicator with the data that NCCL's entry points need.
struct Member : Communicator {
  using Communicator::Communicator;

  ncclComm_t real = nullptr;  // once it is known
  // True after a revoke, suspend or finalize, and with a window: the real one runs or refuses all later calls.
  std::atomic<bool> ended{false};

  std::mutex mutex;
  std::map<int, PremulSum> scalars;    // by the number that ncclRedOpCreatePreMulSum gave
  std::map<std::string, int> shrinks;  // number of shrinks without these ranks
};

// A communicator that the real NCCL is creating.
struct Pending {
  std::shared_ptr<Member> member;
  ncclComm_t* slot = nullptr;  // where the caller gets the handle
  // For a child: the place where the real NCCL writes the handle, at any time, and the parent, whose state says when it
  // has. The caller's slot is valid then. `written` is not freed before, since NCCL may write there late.
  ncclComm_t* written = nullptr;
  ncclComm_t parent = nullptr;

  // Copies the handle to the caller's slot once NCCL has written it.
  void deliver();
};

// For ranks that know nranks and rank; to be called before the real NCCL synchronises the ranks.
Pending announced(const std::string& key, int nranks, int rank, ncclComm_t* slot, const ncclConfig_t* config);
// For children, whose ranks are announced after NCCL has numbered them.
Pending child_of(const Member& parent, const std::string& what, ncclComm_t* slot, const ncclConfig_t* config);

// The real NCCL has returned `result` for all of these: begins Blink's communicators, then waits for the blocking ones.
// A communicator that fails in Blink runs in NCCL alone; its peers miss this rank and use NCCL alone, too.
void begin_all(std::vector<Pending> pending, ncclResult_t result);

// Begins the non-blocking ones that are complete by now. `comm`, a parent or child, has just been queried and is in
// `state`; nullptr: none was queried.
void begin_completed(ncclComm_t comm, ncclResult_t state);

// The member of this handle. A completed one that no ncclCommGetAsyncError has seen begins here, before its first call,
// so that all ranks run that call in the same library.
std::shared_ptr<Member> find_member(ncclComm_t comm);

// Removes the handle from all tables before the real one is freed. Returns its member, if it has one.
std::shared_ptr<Member> take_member(ncclComm_t comm);

// Runs Blink's own steps beside a real call. Their failure leaves the trees unused and never changes NCCL's result.
// False if they failed.
template <class Body>
bool beside(Body body) {
  const ncclResult_t result = guarded([&] {
    body();
    return ncclSuccess;
  });
  if (result != ncclSuccess) warn("Blink cannot set up a communicator: NCCL runs all of its calls");
  return result == ncclSuccess;
}

}  // namespace blink::shim
