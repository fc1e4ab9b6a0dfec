#include "meeting.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "hub.h"
#include "sha256.h"
#include "spoke.h"

namespace blink::shim {
namespace {

// What can still differ between ranks, whatever protocol they follow: rank 0 dies after its first commit and before its
// last, so that some have it and some not; or a rank dies, or hears nothing of rank 0 for longer than its deadline and
// the slack, between its ack and the commit, while the others go on. Whoever goes on finds that out in the next round.
class SocketMeeting : public Meeting {
 public:
  SocketMeeting(const std::string& hash, int rank, Socket listener) : rank_(rank) {
    if (rank == 0) {
      hub_ = std::make_unique<Hub>(hash, std::move(listener));
    } else {
      spoke_ = std::make_unique<Spoke>(hash, rank, std::move(listener));
    }
  }

  bool exchange(int nranks, const std::string& mine, std::vector<std::string>* all, double grace_s,
                const Deadline& deadline, std::string* why) override {
    if (nranks < 1 || nranks > kMostRanks || rank_ >= nranks) {
      *why = "rank " + std::to_string(rank_) + " of " + std::to_string(nranks) + " ranks; expected at most " +
             std::to_string(kMostRanks) + " ranks, and a rank below their number";
      hub_.reset();  // nobody shall wait for us
      spoke_.reset();
      return false;
    }
    if (hub_ == nullptr && spoke_ == nullptr) {
      *why = "the meeting of ranks is over";
      return false;
    }
    all->clear();
    nranks_ = nranks;
    if (hub_ != nullptr) return hub_->round(nranks, Purpose::kCards, mine, -1, grace_s, deadline, all, why);
    std::string verdict;
    int descriptor;
    if (!spoke_->round(nranks, Purpose::kCards, mine, grace_s, deadline, &verdict, &descriptor, why)) return false;
    if (descriptor >= 0) close(descriptor);
    // Rank 0 packs what it has checked; if this fails, it is not the Blink that we are.
    if (unpacked(verdict, nranks, all)) return true;
    spoke_.reset();
    *why = "rank 0 has sent something other than the cards of " + std::to_string(nranks) + " ranks";
    return false;
  }

  int share_descriptor(int descriptor, const Deadline& deadline, std::string* why) override {
    if (nranks_ == 0 || (hub_ == nullptr && spoke_ == nullptr)) {
      *why = nranks_ == 0 ? "no ranks have met yet" : "the meeting of ranks is over";
      return -1;
    }
    if (hub_ != nullptr) {
      const int mine = descriptor < 0 ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
      std::vector<std::string> all;
      if (hub_->round(nranks_, Purpose::kDescriptor, "", mine, 0, deadline, &all, why)) return mine;
      if (mine >= 0) close(mine);
      return -1;
    }
    std::string verdict;
    int shared;
    return spoke_->round(nranks_, Purpose::kDescriptor, "", 0, deadline, &verdict, &shared, why) ? shared : -1;
  }

 private:
  const int rank_;
  int nranks_ = 0;  // since the first exchange
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<Spoke> spoke_;
};

// A hash of parts that no other parts have: each with its length.
std::string key_of_parts(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += std::to_string(part.size()) + ":" + part;
  return sha256(text.data(), text.size());
}

}  // namespace

std::unique_ptr<Meeting> Meeting::announce(const std::string& key, int rank, std::string* why) {
  if (rank < 0 || rank >= kMostRanks) {
    *why = "rank " + std::to_string(rank) + "; expected 0 to " + std::to_string(kMostRanks - 1);
    return nullptr;
  }
  const std::string hash = key_of_parts({"meeting", key});
  Socket listener = listen_as(hash, rank);
  if (!listener.open()) {
    const bool taken = errno == EADDRINUSE;
    *why = taken ? "there is a rank " + std::to_string(rank) + " of this communicator on this host already"
                 : std::string("no socket to meet the other ranks: ") + std::strerror(errno);
    return nullptr;
  }
  return std::make_unique<SocketMeeting>(hash, rank, std::move(listener));
}

std::string derived_key(const std::string& parent, const std::string& what) {
  return key_of_parts({"derived", parent, what});
}

std::string key_of(const void* bytes, std::size_t size) {
  return key_of_parts({"unique id", std::string(static_cast<const char*>(bytes), size)});
}

}  // namespace blink::shim
