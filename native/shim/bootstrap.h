// The bootstrap of libblink.so: the ranks of one communicator on this host find each other and agree, without NCCL and
// without Python (blink/bootstrap.h). All ranks know a key. A rank without a listener is missing: it runs without
// Blink, on another host or in another network namespace. Then all ranks get an error and fall back to NCCL.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "blink/bootstrap.h"
#include "deadline.h"

namespace blink::shim {

class Bootstrap {
 public:
  Bootstrap(blink_bootstrap* handle, int nranks, int rank) : handle_(handle), nranks_(nranks), rank_(rank) {}
  ~Bootstrap() { blink_bootstrap_leave(handle_); }
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  // Makes this rank reachable for the others. If the call precedes an operation that synchronises all ranks (NCCL's own
  // initialisation), `grace_s` of all_gather may be 0. nullptr and `why` if no socket can be opened.
  static std::unique_ptr<Bootstrap> announce(const std::string& key, int nranks, int rank, std::string* why);

  // One round, which all ranks call: each contributes `words`, or an error message if it is not `good`. Each rank
  // receives all contributions by rank, and a duplicate of rank 0's file descriptor `*descriptor`, which the call
  // closes (−1: none; nullptr: rank 0 passes none). False and `why` if a rank reported an error or is missing (named),
  // or after the timeout; then all ranks present return false. `grace_s`: seconds until a rank without a listener
  // counts as missing, in the first call only.
  bool all_gather(bool good, const std::string& words, std::vector<std::string>* all, int* descriptor, double grace_s,
                  const Deadline& deadline, std::string* why);

 private:
  blink_bootstrap* const handle_;
  const int nranks_, rank_;
};

// The key of a communicator derived from another one: a hash of both parts.
std::string derived_key(const std::string& parent, const std::string& what);

// A key from the bytes of NCCL's unique ids.
std::string key_of(const void* bytes, std::size_t size);

}  // namespace blink::shim
