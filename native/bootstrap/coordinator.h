// Rank 0's end: it brings all ranks to the same result, in rounds of two phases. It gathers the words, sends all of
// them to every rank, waits for every rank's ack, and only then commits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "participant.h"

namespace blink {

class Coordinator final : public Participant {
 public:
  // `announced`: all ranks listen at names derived from the token, so that a missing rank is detected at once.
  Coordinator(const std::string& token, int size, Socket listener, bool announced);
  void leave() override;

 protected:
  void begin() override;
  void go_on(int timeout_ms) override;
  void tell() override;
  void look() override { look_beside(0); }  // between rounds

 private:
  enum class Phase { kGather, kAck };
  struct Seat {
    std::unique_ptr<Channel> channel;  // from its hello until it closes
    Hello hello;
    int pid = 0;           // in this PID namespace
    bool came = false;     // at any time
    bool tcp = false;
    Deadline again{0};     // it closed before all had arrived, and may be restarted until then
    Socket probe;          // announced: a connection to the rank's own listener until its hello; it ends with the rank
    bool closed = false;   // announced: it has closed its listener
    bool spoken = false, acked = false;  // in this round
    Words words;
    Descriptors files;
  };

  bool all_have() const;
  void give_verdict();
  void commit();
  void turn(int timeout_ms);
  void accept_strangers();
  void welcome();
  bool introduces(const Frame& frame, Hello* hello) const;
  bool seat_stranger(std::unique_ptr<Channel>* stranger, const Frame& frame);
  void listen_to(int rank);
  void hear(int rank, const Frame& frame);
  void take_words(int rank, const Frame& frame);
  void look_beside(int reporter);
  void hung_up(int rank);
  void look_for_absent();
  void probe_absent();
  void time_out();
  void tell_late(const std::shared_ptr<const std::string>& body);
  void add_silent();
  std::vector<std::int32_t> absent() const;
  Cause blame(int status, int rank, const std::string& text) const;
  void fail_claimed(const Hello& first, const Hello& second);
  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }
  const Seat& seat(int rank) const { return seats_[static_cast<std::size_t>(rank)]; }

  const bool announced_;
  Socket listener_;  // closed once all ranks have come
  std::vector<std::unique_ptr<Channel>> strangers_;  // connected, but not introduced yet
  std::vector<Seat> seats_;                          // by rank; rank 0 has no channel
  Others others_;                                    // refused processes of other users
  Phase phase_ = Phase::kGather;
  Deadline decide_{0}, silent_{0};
  int most_size_;  // the largest number of ranks that any hello had
};

}  // namespace blink
