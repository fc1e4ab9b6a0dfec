// The open group of a thread. Blink's calls wait in program order for the outermost ncclGroupEnd, as NCCL's do. New
// communicators wait, too, since their handles come then. Messages of a group run concurrently with each other and with
// NCCL's, since ranks may issue them in any order.
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
  // The calling thread's group; nullptr if none is open.
  static Group* current();

  void add(std::shared_ptr<Member> member, const Operation& operation);
  // Notes that the group has a call of the communicator on this stream, of Blink or NCCL. The group begins when all of
  // its streams reach it, and they continue when it has ended.
  void uses(const Member* member, CUstream stream);
  void add(Pending pending) { pending_.push_back(std::move(pending)); }

  // Notes that NCCL runs a call of the communicator on this stream, in the group.
  void leaves(std::shared_ptr<Member> member, CUstream stream);

  // To be called before the real group's end: both groups begin at the same point of the streams.
  ncclResult_t begin();
  // Ends the group after the real one has returned `result`. `runs`: false after a simulation.
  ncclResult_t end(ncclResult_t result, bool runs);

 private:
  struct Call {
    std::shared_ptr<Member> member;
    Operation operation;
  };
  // The group's share of a communicator for which Blink runs some calls.
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
  std::vector<std::pair<std::shared_ptr<Member>, CUstream>> left_;  // calls that NCCL runs, without duplicates
  std::map<const Member*, std::vector<CUstream>> streams_;  // without duplicates, in the order of the calls
  std::vector<Pending> pending_;
};

// Defers begin_all() to the end of this thread's group, or calls it now if none is open.
void begin_or_defer(std::vector<Pending> pending, ncclResult_t result);

}  // namespace blink::shim
