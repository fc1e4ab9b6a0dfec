// The open group of a thread. Our calls wait in it, in the order of the program, for the outermost ncclGroupEnd, as
// NCCL's do; so do communicators, whose handles come then. Messages of a group go side by side, with each other and
// with those that NCCL has: a rank may call them in any order.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "communicator.h"
#include "members.h"

namespace blink::shim {

class Group {
 public:
  // Of the calling thread; nullptr where none is open.
  static Group* current();

  void add(std::shared_ptr<Member> member, const Operation& operation);
  // A call of the communicator on this stream is in the group, ours or NCCL's: the group begins when all its streams
  // get there, and all of them go on when it has ended.
  void uses(const Member* member, CUstream stream);
  void add(Pending pending) { pending_.push_back(std::move(pending)); }

  // NCCL serves a call of the communicator on this stream, in the group.
  void leaves(std::shared_ptr<Member> member, CUstream stream);

  // Before the real group's end: where it begins, ours begins.
  ncclResult_t begin();
  // The real group has ended with `result`. `runs`: false where it was only simulated.
  ncclResult_t end(ncclResult_t result, bool runs);

 private:
  struct Call {
    std::shared_ptr<Member> member;
    Operation operation;
  };
  // What the group has of a communicator of which some calls are ours.
  struct Part {
    std::shared_ptr<Member> member;
    std::vector<Operation> messages;
  };
  Part& part_of(const std::shared_ptr<Member>& member);
  ncclResult_t join_streams();
  ncclResult_t enqueue();
  void settle_real();
  ncclResult_t note_left(ncclResult_t result);

  std::vector<Call> calls_;  // of collectives
  std::vector<Part> parts_;
  std::vector<std::pair<std::shared_ptr<Member>, CUstream>> left_;  // to NCCL, each once
  std::map<const Member*, std::vector<CUstream>> streams_;  // each once, in the order of the calls
  std::vector<Pending> pending_;
};

// Into the group of this thread, or right away: what begin_all() does.
void begin_or_defer(std::vector<Pending> pending, ncclResult_t result);

}  // namespace blink::shim
