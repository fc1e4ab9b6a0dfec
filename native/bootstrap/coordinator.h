// Rank 0's end: it brings all ranks to the same answer, in rounds of two phases. It gathers the words, sends everybody
// all of them, waits until every rank has said that it has them, and only then says that they count.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "participant.h"

namespace blink {

class Coordinator final : public Participant {
 public:
  // `announced`: all ranks listen at names that follow from the token, so that one sees who is not there.
  Coordinator(const std::string& token, int size, std::vector<Socket> listeners, bool announced);
  void leave() override;

 protected:
  void begin() override;
  void go_on(int timeout_ms) override;
  void tell() override;
  void look() override;

 private:
  enum class Phase { kGather, kAck };
  struct Seat {
    std::unique_ptr<Channel> channel;  // since its hello, until it hangs up
    Hello hello;
    int pid = 0;           // as this process sees it
    bool came = false;     // ever
    bool tcp = false;
    Deadline again{0};     // it has hung up before all had come, and may be started again until then
    Socket probe;          // announced: to the rank's own listener, until its hello; it ends when the rank does
    bool closed = false;   // announced: it has closed its name
    bool spoken = false, acked = false;  // in this round
    Words words;
    Descriptors files;
  };

  bool all_have() const;
  void give_verdict();
  void commit();
  void turn(int timeout_ms);
  void welcome();
  bool seat_stranger(std::unique_ptr<Channel>* stranger, const Frame& frame);
  void listen_to(int rank);
  void hear(int rank, const Frame& frame);
  void take_words(int rank, const Frame& frame);
  void hung_up(int rank);
  void look_for_absent();
  void probe_absent();
  void time_out();
  std::vector<std::int32_t> absent() const;
  Cause blame(int status, int rank, const std::string& text) const;
  void fail_claimed(const Hello& first, const Hello& second);
  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }
  const Seat& seat(int rank) const { return seats_[static_cast<std::size_t>(rank)]; }

  const bool announced_;
  std::vector<Socket> listeners_;
  std::vector<std::unique_ptr<Channel>> strangers_;  // connected, but who they are is not known yet
  std::vector<Seat> seats_;                          // by rank; ours has no channel
  Others others_;                                    // processes of other users that were sent away
  Phase phase_ = Phase::kGather;
  Deadline decide_{0};
  int most_size_;  // the largest number of ranks that anybody named
};

}  // namespace blink
