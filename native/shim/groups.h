// The open group of a thread. Our calls wait in it, in the order of the program, for the outermost ncclGroupEnd, as
// NCCL's do; so do communicators, whose handles come then.
#pragma once

#include <memory>
#include <vector>

#include "communicator.h"
#include "pending_communicators.h"

namespace blink::shim {

class Group {
 public:
  // Of the calling thread; nullptr where none is open.
  static Group* current();

  void add(std::shared_ptr<Member> member, const Operation& operation) {
    calls_.push_back({std::move(member), operation});
  }
  void add(PendingCommunicator pending) { pending_.push_back(std::move(pending)); }

  // The real group has ended with `result`. `runs`: false where it was only simulated.
  ncclResult_t end(ncclResult_t result, bool runs);

 private:
  struct Call {
    std::shared_ptr<Member> member;
    Operation operation;
  };
  void settle_real();

  std::vector<Call> calls_;
  std::vector<PendingCommunicator> pending_;
};

// Into the group of this thread, or right away: what begin_all() does.
void begin_or_defer(PendingCommunicator pending, ncclResult_t result);

}  // namespace blink::shim
