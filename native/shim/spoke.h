// How does a rank other than 0 take part in the meeting? It goes to rank 0, puts its card down and waits for its word.
#pragma once

#include <memory>
#include <string>

#include "deadline.h"
#include "frames.h"

namespace blink::shim {

class Spoke {
 public:
  // The listener is where others see that this rank is here, and where rank 0 leaves word if it has ended the meeting
  // before this rank came.
  Spoke(std::string hash, int rank, Socket listener)
      : hash_(std::move(hash)), rank_(static_cast<std::uint32_t>(rank)), listener_(std::move(listener)) {}

  // One round: the body of rank 0's verdict, and the descriptor that came along or −1. False and `why` as
  // Meeting::exchange; then later rounds are false too.
  bool round(int nranks, Purpose purpose, const std::string& mine, double grace_s, const Deadline& deadline,
             std::string* verdict, int* descriptor, std::string* why);

 private:
  bool find_hub(double grace_s, const Deadline& deadline, std::string* why);
  bool await(Frame::Type wanted, const Deadline& deadline, Frame* frame, std::string* why);
  bool has_farewell(std::string* why);
  bool is_refusal(const Frame& frame, std::string* why) const;

  std::string hash_;
  std::string why_;  // empty while all is well
  std::uint32_t rank_, round_ = 0;
  Socket listener_;
  std::unique_ptr<Channel> hub_;
};

}  // namespace blink::shim
