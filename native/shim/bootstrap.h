// The bootstrap as libblink.so uses it: the ranks of one communicator on this host find each other and agree, without
// NCCL and without Python (blink/bootstrap.h). All of them know a key; a rank that nobody listens for is not there: it
// runs without Blink, on another host or in another network namespace; then everybody is told so and all fall back.
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

  // From now on others find this rank. To be called before anything that makes sure that all ranks have got here
  // (NCCL's own initialisation): then `grace_s` of all_gather may be 0. nullptr and `why` if there can be no socket.
  static std::unique_ptr<Bootstrap> announce(const std::string& key, int nranks, int rank, std::string* why);

  // One round: every rank gives words, or, where it is not `good`, says why it cannot go on. All get everybody's words,
  // by rank, and a duplicate of rank 0's open file `*descriptor`, which is closed (−1: none; nullptr: rank 0 gives
  // none). False and `why` if a rank could not go on or is missing (named), or the deadline has passed; then it is
  // false on every rank that is here. All ranks make the same calls. `grace_s`: how long a rank may not be listening
  // yet before it counts as missing; matters in the first call only.
  bool all_gather(bool good, const std::string& words, std::vector<std::string>* all, int* descriptor, double grace_s,
                  const Deadline& deadline, std::string* why);

 private:
  blink_bootstrap* const handle_;
  const int nranks_, rank_;
};

// A key for communicators made from another one: a hash of the parts.
std::string derived_key(const std::string& parent, const std::string& what);

// A key from the bytes of NCCL's unique ids.
std::string key_of(const void* bytes, std::size_t size);

}  // namespace blink::shim
