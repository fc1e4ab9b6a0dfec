// How do the ranks of one communicator on this host find each other and agree, without NCCL and without Python?
//
// Each rank listens on an abstract Unix socket whose name is a hash of the communicator's key and its rank: no file,
// and nothing is left of it when the process ends. Rank 0 is the hub. A rank that nobody listens for is not there: it
// runs without Blink, on another host or in another network namespace; then everybody is told so and all fall back.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "deadline.h"

namespace blink::shim {

class Meeting {
 public:
  virtual ~Meeting() = default;

  // From now on others find this rank. To be called before anything that makes sure that all ranks have got here
  // (NCCL's own initialisation): then `grace_s` of exchange may be 0. nullptr and `why` if there can be no socket.
  static std::unique_ptr<Meeting> announce(const std::string& key, int rank, std::string* why);

  // Every rank gives a card and gets all, by rank. False and `why` if somebody is missing (named) or the deadline has
  // passed; then it is false on every rank that is here. May be called again and again; all ranks make the same calls.
  // `grace_s`: how long a rank may not be listening yet before it counts as missing; matters in the first call only.
  virtual bool exchange(int nranks, const std::string& mine, std::vector<std::string>* all, double grace_s,
                        const Deadline& deadline, std::string* why) = 0;

  // All ranks get a descriptor of rank 0's open file `descriptor` (ignored on others); rank 0 gets its own duplicate.
  // −1 and `why` as above. After the first exchange only.
  virtual int share_descriptor(int descriptor, const Deadline& deadline, std::string* why) = 0;
};

// A key for communicators made from another one: a hash of the parts.
std::string derived_key(const std::string& parent, const std::string& what);

// A key from the bytes of NCCL's unique ids.
std::string key_of(const void* bytes, std::size_t size);

}  // namespace blink::shim
