#include "spoke.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace blink::shim {
namespace {

constexpr int kRetryMs = 10;
constexpr int kMostCallers = 256;  // at our own door; all but rank 0 are strangers there
// Rank 0 decides by its deadline, which began at another moment than ours; its word is worth this wait, as without it
// others may go on and we not.
constexpr double kSlackS = 0.5;
constexpr std::size_t kMostVerdictBytes = std::size_t{kMostRanks} * (kMostCardBytes + 4);

}  // namespace

bool Spoke::round(int nranks, Purpose purpose, const std::string& mine, double grace_s, const Deadline& deadline,
                  std::string* verdict, int* descriptor, std::string* why) {
  *descriptor = -1;
  ++round_;
  if (!why_.empty()) {
    *why = why_;
    return false;
  }
  const Deadline patience = deadline.moved_to(deadline.left() + kSlackS);
  Introduction introduction{rank_, static_cast<std::uint32_t>(nranks), purpose, {}};
  std::memcpy(introduction.hash, hash_.data(), kHashDigits);
  bool good = hub_ != nullptr || find_hub(grace_s, deadline, &why_);
  if (good) {
    Frame frame;
    if (mine.size() > kMostCardBytes) {
      why_ = "its card has " + std::to_string(mine.size()) + " bytes";
      good = false;
    } else {
      hub_->send(Frame::kCard, round_, introduced(introduction, mine));  // if rank 0 is gone, reading says so
      good = await(Frame::kVerdict, patience, &frame, &why_);
    }
    if (good) {
      *verdict = std::move(frame.body);
      *descriptor = hub_->take_descriptor();
      if (purpose == Purpose::kDescriptor && *descriptor < 0) {
        why_ = "the descriptor has not come through";  // too many open files
        good = false;
      }
    }
    if (good) {
      hub_->send(Frame::kAck, round_, "");
      good = await(Frame::kCommit, patience, &frame, &why_);
    }
    if (!good) hub_->send(Frame::kGiveUp, round_, introduced(introduction, why_));
  }
  listener_.close();
  if (!good) {
    hub_.reset();
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
    *why = why_;
  }
  return good;
}

bool Spoke::find_hub(double grace_s, const Deadline& deadline, std::string* why) {
  const Deadline grace(grace_s);
  for (;;) {
    Socket connection = connect_to(hash_, 0);
    if (connection.open()) {
      hub_ = std::make_unique<Channel>(std::move(connection), kMostVerdictBytes, true);
      return true;
    }
    const int error = errno;
    if (has_farewell(why)) return false;
    if (error == EACCES || error == EPERM || (error == ECONNREFUSED && grace.passed())) {
      *why = "rank 0 is not here: it runs without Blink, on another host, or had to give up";
      return false;
    }
    if (deadline.passed()) {
      *why = std::string("rank 0 cannot be reached by the deadline: ") + std::strerror(error);
      return false;
    }
    pause_ms(kRetryMs);
  }
}

bool Spoke::await(Frame::Type wanted, const Deadline& deadline, Frame* frame, std::string* why) {
  for (;;) {
    bool gone = !hub_->flush();
    const Channel::Got got = hub_->take(frame);
    if (got == Channel::Got::kFrame) {
      if (frame->type == wanted && frame->round == round_) return true;
      if (!is_refusal(*frame, why)) *why = "rank 0 speaks out of turn in the meeting of ranks";
      return false;
    }
    gone = gone || got == Channel::Got::kGone;
    if (gone) {
      if (!has_farewell(why)) *why = "rank 0 has left in the middle of the meeting of ranks";
      return false;
    }
    if (deadline.passed()) {
      *why = "rank 0 has said nothing by the deadline of the meeting of ranks";
      return false;
    }
    const short events = hub_->flushed() ? POLLIN : POLLIN | POLLOUT;
    std::vector<pollfd> set = {{hub_->get(), events, 0}};
    wait_for(&set, deadline.left_ms());
  }
}

// Whether rank 0 has left word at our door.
bool Spoke::has_farewell(std::string* why) {
  for (int i = 0; i < kMostCallers; ++i) {
    Socket caller = accept_from(listener_);
    if (!caller.open()) return false;
    Channel channel(std::move(caller), kHashDigits + kMostWhyBytes, false);
    Frame frame;
    if (channel.take(&frame) == Channel::Got::kFrame && is_refusal(frame, why)) return true;
    // A caller without a word was rank 0 looking whether we are here, or nobody.
  }
  return false;
}

bool Spoke::is_refusal(const Frame& frame, std::string* why) const {
  if (frame.type != Frame::kRefused || frame.body.compare(0, kHashDigits, hash_) != 0) return false;
  *why = frame.body.size() > kHashDigits ? frame.body.substr(kHashDigits) : "no reason given";
  return true;
}

}  // namespace blink::shim
