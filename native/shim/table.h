// Which communicator of ours belongs to a real handle? Callers hold the real ncclComm_t; a handle that is not in here
// is none of our business.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "communicator.h"

namespace blink::shim {

// What the outer functions have to know of a communicator.
struct Member {
  std::shared_ptr<Communicator> communicator;
  ncclComm_t real = nullptr;
  int nranks = 0, rank = -1;
  bool blocking = true;
  // Revoked, suspended or finalized: whatever comes now is for the real one, which refuses it or runs it.
  std::atomic<bool> ended{false};

  // Operations made by ncclRedOpCreatePreMulSum: the real number → ours. They are the same, but where a call in an open
  // group still means an operation that has been destroyed and NCCL gives its number to the next.
  struct Scalar {
    int number = 0, dtype = 0;
  };
  std::mutex mutex;
  std::map<int, Scalar> scalars;
  std::set<int> lingering;               // our numbers, destroyed and still meant
  std::map<std::string, int> shrinks;    // how often without these ranks
};

class Table {
 public:
  std::shared_ptr<Member> find(ncclComm_t comm) const;
  // Returns what was there for this handle before: a communicator that the real NCCL has freed behind our back.
  std::shared_ptr<Member> insert(std::shared_ptr<Member> member);
  // To be called before the real handle is freed: NCCL may give it to the next communicator at once.
  std::shared_ptr<Member> take(ncclComm_t comm);

 private:
  mutable std::mutex mutex_;
  std::unordered_map<ncclComm_t, std::shared_ptr<Member>> members_;
};

// The one of this process. Never destroyed: NCCL may be called while the process ends.
Table& table();

}  // namespace blink::shim
