// How does rank 0 bring all ranks of a communicator to the same answer? In rounds of two phases: it gathers the cards,
// sends all of them the verdict, waits until every rank has said that it has it, and only then says that it counts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "deadline.h"
#include "frames.h"

namespace blink::shim {

class Hub {
 public:
  Hub(std::string hash, Socket listener) : hash_(std::move(hash)), listener_(std::move(listener)) {}

  // One round; where its purpose is a descriptor, that is sent along with the verdict. False and `why` as
  // Meeting::exchange; then every rank that can be reached has been told so, and later rounds are false too.
  bool round(int nranks, Purpose purpose, const std::string& mine, int descriptor, double grace_s,
             const Deadline& deadline, std::vector<std::string>* all, std::string* why);

 private:
  enum class Phase { kGather, kAck };
  struct Seat {
    std::unique_ptr<Channel> channel;  // since its first card
    Socket probe;                      // to the rank's own listener, until then: it ends when the rank does
    bool left = false;                 // it has closed its name
    bool carded = false, acked = false;
    std::string card;
  };

  void begin(int nranks, Purpose purpose, const std::string& mine, int descriptor);
  bool gather(double grace_s, const Deadline& deadline);
  bool collect_acks(const Deadline& deadline);
  bool commit();
  void turn(int timeout_ms);
  void welcome();
  void listen_to(Seat* seat, int rank);
  void hear(int rank, const Frame& frame);
  bool seat_stranger(std::unique_ptr<Channel>* stranger, const Frame& frame);
  void check_card(const Introduction& introduction);
  void probe(bool grace_is_over);
  std::vector<int> absent(int but) const;
  int waiting_for() const;
  void fail(const std::string& why) {
    if (why_.empty()) why_ = why.substr(0, kMostWhyBytes);
  }
  bool broken() const { return !why_.empty(); }
  void tell_everybody();
  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }

  std::string hash_;
  std::string why_;  // empty while all is well
  bool told_ = false;
  Socket listener_;
  std::vector<std::unique_ptr<Channel>> strangers_;  // connected, but who they are is not known yet
  std::vector<Seat> seats_;                          // by rank; ours is empty
  Phase phase_ = Phase::kGather;
  Purpose purpose_ = Purpose::kCards;
  std::uint32_t round_ = 0;
  int nranks_ = 0, most_nranks_ = 0;  // ours; the largest that anybody named
};

// "rank 3" or "ranks 3, 5".
std::string ranks_named(const std::vector<int>& ranks);

// All cards as the body of a verdict, and back; false if it is none for so many ranks.
std::string packed(const std::vector<std::string>& cards);
bool unpacked(const std::string& body, int nranks, std::vector<std::string>* cards);

}  // namespace blink::shim
