#include "hub.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace blink::shim {
namespace {

constexpr std::size_t kMostStrangers = 256 + kMostRanks, kMostAtOnce = 64;
constexpr int kProbeMs = 20;          // between two looks for a rank that nobody listens for
constexpr double kFarewellS = 0.25;   // for telling everybody that nothing comes of it

// The hub decides a little before its deadline, so that its word reaches the ranks before theirs.
Deadline decision(const Deadline& deadline) {
  const double left = deadline.left();
  return deadline.moved_to(left - std::min(0.25, left / 10));
}

}  // namespace

std::string ranks_named(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

std::string packed(const std::vector<std::string>& cards) {
  std::string body;
  for (const std::string& card : cards) {
    const auto size = static_cast<std::uint32_t>(card.size());
    body.append(reinterpret_cast<const char*>(&size), sizeof size);
    body += card;
  }
  return body;
}

bool unpacked(const std::string& body, int nranks, std::vector<std::string>* cards) {
  cards->clear();
  std::size_t at = 0;
  for (int rank = 0; rank < nranks; ++rank) {
    std::uint32_t size;
    if (body.size() - at < sizeof size) return false;
    std::memcpy(&size, body.data() + at, sizeof size);
    at += sizeof size;
    if (size > kMostCardBytes || body.size() - at < size) return false;
    cards->push_back(body.substr(at, size));
    at += size;
  }
  return at == body.size();
}

bool Hub::round(int nranks, Purpose purpose, const std::string& mine, int descriptor, double grace_s,
                const Deadline& deadline, std::vector<std::string>* all, std::string* why) {
  const Deadline decide(decision(deadline));
  begin(nranks, purpose, mine, descriptor);
  if (!broken() && gather(grace_s, decide)) {
    std::vector<std::string> cards;
    for (Seat& each : seats_) cards.push_back(std::move(each.card));
    const auto verdict = std::make_shared<const std::string>(purpose == Purpose::kCards ? packed(cards) : "");
    phase_ = Phase::kAck;
    for (int rank = 1; rank < nranks_; ++rank) seat(rank).channel->send(Frame::kVerdict, round_, verdict, descriptor);
    if (collect_acks(decide) && commit()) {
      *all = std::move(cards);
      return true;
    }
  }
  if (!told_) tell_everybody();
  *why = why_;
  return false;
}

void Hub::begin(int nranks, Purpose purpose, const std::string& mine, int descriptor) {
  ++round_;
  purpose_ = purpose;
  if (nranks_ == 0) {
    nranks_ = most_nranks_ = nranks;
    seats_.resize(static_cast<std::size_t>(nranks));
  }
  for (Seat& each : seats_) each.carded = each.acked = false;
  if (nranks != nranks_) fail("rank 0 says " + std::to_string(nranks) + " ranks after " + std::to_string(nranks_));
  if (mine.size() > kMostCardBytes) fail("rank 0 has a card of " + std::to_string(mine.size()) + " bytes");
  if (purpose == Purpose::kDescriptor && descriptor < 0) fail("rank 0 has no descriptor to share");
  if (!broken()) seat(0).card = mine;
}

bool Hub::gather(double grace_s, const Deadline& deadline) {
  phase_ = Phase::kGather;
  const Deadline grace(grace_s);
  while (!broken() && waiting_for() >= 0) {
    probe(grace.passed());
    if (broken()) break;
    if (deadline.passed()) {
      const std::vector<int> still = absent(0);
      fail(still.empty() ? "the deadline has passed"
                         : ranks_named(still) + (still.size() == 1 ? " has" : " have") +
                               " not come to the meeting of ranks by its deadline");
      break;
    }
    const auto unseen = [](const Seat& each) { return each.channel == nullptr && !each.probe.open(); };
    const bool looking = std::any_of(seats_.begin() + 1, seats_.end(), unseen);
    turn(looking ? std::min(kProbeMs, deadline.left_ms()) : deadline.left_ms());
  }
  if (broken()) return false;
  // All are here: nobody needs to find us any more.
  listener_.close();
  strangers_.clear();
  return true;
}

bool Hub::collect_acks(const Deadline& deadline) {
  for (int rank; !broken() && (rank = waiting_for()) >= 0;) {
    if (deadline.passed()) {
      fail("rank " + std::to_string(rank) + " has not confirmed by the deadline of the meeting of ranks");
    } else {
      turn(deadline.left_ms());
    }
  }
  // Whoever has given up since its ack is heard now: after the first commit it is too late.
  if (!broken()) turn(0);
  return !broken();
}

bool Hub::commit() {
  for (int rank = 1; rank < nranks_; ++rank) {
    // Once the first has it, the round counts. A rank that has died since its ack is found in the next round.
    if (!seat(rank).channel->send(Frame::kCommit, round_, "") && rank == 1) {
      fail("rank 1 has left in the middle of the meeting of ranks");
      return false;
    }
  }
  return true;
}

// Waits for one thing to happen, and hears everybody who has something to say.
void Hub::turn(int timeout_ms) {
  std::vector<pollfd> set;
  std::vector<int> seated, probed;
  if (listener_.open()) set.push_back({listener_.get(), POLLIN, 0});
  for (const auto& stranger : strangers_) set.push_back({stranger->get(), POLLIN, 0});
  for (int rank = 1; rank < nranks_; ++rank) {
    const Seat& each = seat(rank);
    if (each.channel != nullptr) {
      const short events = each.channel->flushed() ? POLLIN : POLLIN | POLLOUT;
      set.push_back({each.channel->get(), events, 0});
      seated.push_back(rank);
    }
  }
  const std::size_t first_probe = set.size();
  for (int rank = 1; rank < nranks_; ++rank) {
    if (!seat(rank).probe.open()) continue;
    set.push_back({seat(rank).probe.get(), POLLRDHUP, 0});
    probed.push_back(rank);
  }
  if (!wait_for(&set, timeout_ms)) return;

  for (const int rank : seated) {
    if (broken()) return;
    listen_to(&seat(rank), rank);
  }
  for (std::size_t i = 0; i < probed.size(); ++i) {
    if (set[first_probe + i].revents == 0) continue;
    // The rank has closed its name, unanswered: it will not come. But its card may be on its way: asked again below.
    seat(probed[i]).probe.close();
    seat(probed[i]).left = true;
  }
  welcome();
}

// Accepts who waits outside, and gives the seats to those who say who they are.
void Hub::welcome() {
  for (std::size_t i = 0; i < kMostAtOnce; ++i) {
    Socket connection = accept_from(listener_);
    if (!connection.open()) {
      // Without descriptors strangers must make room; they are who had the time to say something and did not.
      if (errno == EMFILE || errno == ENFILE) {
        strangers_.clear();
        pause_ms(kProbeMs);
      }
      break;
    }
    if (strangers_.size() >= kMostStrangers) strangers_.erase(strangers_.begin());
    strangers_.push_back(
        std::make_unique<Channel>(std::move(connection), kMostCardBytes + sizeof(Introduction), false));
  }
  for (auto& stranger : strangers_) {
    Frame frame;
    const Channel::Got got = stranger->take(&frame);
    if (got == Channel::Got::kNothing) continue;
    const bool ours = got == Channel::Got::kFrame && seat_stranger(&stranger, frame);
    if (broken()) break;  // whoever broke it is told, too
    if (!ours) stranger.reset();
  }
  strangers_.erase(std::remove(strangers_.begin(), strangers_.end(), nullptr), strangers_.end());
}

// False if it is none of our ranks.
bool Hub::seat_stranger(std::unique_ptr<Channel>* stranger, const Frame& frame) {
  Introduction introduction;
  std::string text;
  if ((frame.type != Frame::kCard && frame.type != Frame::kGiveUp) ||
      !split_introduction(frame.body, &introduction, &text) ||
      std::memcmp(introduction.hash, hash_.data(), kHashDigits) != 0) {
    return false;
  }
  if (introduction.nranks != static_cast<std::uint32_t>(nranks_)) {
    check_card(introduction);
    return false;
  }
  if (introduction.rank < 1 || introduction.rank >= introduction.nranks) return false;
  const int rank = static_cast<int>(introduction.rank);
  if (seat(rank).channel != nullptr) return false;
  seat(rank).channel = std::move(*stranger);
  seat(rank).probe.close();
  hear(rank, frame);
  return true;
}

void Hub::listen_to(Seat* each, int rank) {
  const std::string who = "rank " + std::to_string(rank);
  if (!each->channel->flush()) {
    // It may have said why before it went.
    Frame frame;
    if (each->channel->take(&frame) == Channel::Got::kFrame && frame.type == Frame::kGiveUp) return hear(rank, frame);
    return fail(who + " has left in the middle of the meeting of ranks");
  }
  Frame frame;
  while (!broken()) {
    const Channel::Got got = each->channel->take(&frame);
    if (got == Channel::Got::kNothing) return;
    if (got == Channel::Got::kGone) return fail(who + " has left in the middle of the meeting of ranks");
    hear(rank, frame);
  }
}

void Hub::hear(int rank, const Frame& frame) {
  Seat& each = seat(rank);
  const std::string who = "rank " + std::to_string(rank);
  Introduction introduction{};
  std::string text;
  const bool introduces = split_introduction(frame.body, &introduction, &text);
  if (frame.type == Frame::kGiveUp && introduces) {
    const std::vector<int> others = absent(rank);
    const bool some = phase_ == Phase::kGather && !others.empty();
    return fail(who + " gives up: " + text + (some ? "; not come either: " + ranks_named(others) : ""));
  }
  if (frame.round != round_) return fail(who + " is in another round of the meeting of ranks");
  if (frame.type == Frame::kCard && introduces && phase_ == Phase::kGather && !each.carded) {
    each.carded = true;
    each.card = std::move(text);
    return check_card(introduction);
  }
  if (frame.type == Frame::kAck && phase_ == Phase::kAck && !each.acked) {
    each.acked = true;
    return;
  }
  fail(who + " speaks out of turn in the meeting of ranks");
}

void Hub::check_card(const Introduction& introduction) {
  const std::string who = "rank " + std::to_string(introduction.rank);
  if (introduction.nranks != static_cast<std::uint32_t>(nranks_)) {
    if (introduction.nranks <= kMostRanks) most_nranks_ = std::max(most_nranks_, static_cast<int>(introduction.nranks));
    fail("rank 0 says " + std::to_string(nranks_) + " ranks, " + who + " says " + std::to_string(introduction.nranks));
  } else if (introduction.purpose != purpose_) {
    fail("rank 0 and " + who + " make different calls in the meeting of ranks");
  }
}

// Who has not come yet, but listens? Who does not, and had the time, is missing.
void Hub::probe(bool grace_is_over) {
  std::vector<int> missing;
  for (int rank = 1; rank < nranks_; ++rank) {
    Seat& each = seat(rank);
    if (each.channel != nullptr || each.probe.open()) continue;
    each.probe = connect_to(hash_, rank);
    // EAGAIN: somebody listens, but too many knock. Resources may come back; only that nobody is there, or nobody we
    // may talk to, is an answer.
    const bool nobody = !each.probe.open() && (errno == ECONNREFUSED || errno == EACCES || errno == EPERM);
    if (nobody && (grace_is_over || each.left)) missing.push_back(rank);
  }
  if (missing.empty()) return;
  // A rank that has left may have said why before.
  welcome();
  const auto seated = [this](int rank) { return seat(rank).channel != nullptr; };
  missing.erase(std::remove_if(missing.begin(), missing.end(), seated), missing.end());
  if (broken() || missing.empty()) return;
  const bool one = missing.size() == 1;
  fail(ranks_named(missing) + (one ? " is not here: it runs" : " are not here: they run") +
       " without Blink, on another host, or had to give up");
}

// Whose card is not here yet, `but` one.
std::vector<int> Hub::absent(int but) const {
  std::vector<int> ranks;
  for (int rank = 1; rank < nranks_; ++rank) {
    if (rank != but && !seats_[static_cast<std::size_t>(rank)].carded) ranks.push_back(rank);
  }
  return ranks;
}

// The first rank whose card or ack is not here yet; −1: none.
int Hub::waiting_for() const {
  for (int rank = 1; rank < nranks_; ++rank) {
    const Seat& each = seats_[static_cast<std::size_t>(rank)];
    if (!(phase_ == Phase::kGather ? each.carded : each.acked)) return rank;
  }
  return -1;
}

void Hub::tell_everybody() {
  told_ = true;
  const auto body = std::make_shared<const std::string>(hash_ + why_);
  std::vector<std::unique_ptr<Channel>> told;
  const auto tell = [&told](Socket socket) {
    if (socket.open()) told.push_back(std::make_unique<Channel>(std::move(socket), 0, false));
  };
  // First at the doors of those who have not come, where they look when they find nobody here; only then nobody is.
  for (int rank = 1; rank < most_nranks_; ++rank) {
    const bool seated = rank < nranks_ && seat(rank).channel != nullptr;
    if (!seated) tell(connect_to(hash_, rank));
  }
  for (const auto& door : told) door->send(Frame::kRefused, round_, body);
  const std::size_t doors = told.size();
  for (std::size_t i = 0; i < kMostStrangers && listener_.open(); ++i) {
    Socket waiting = accept_from(listener_);
    if (!waiting.open()) break;
    tell(std::move(waiting));
  }
  listener_.close();
  for (Seat& each : seats_) told.push_back(std::move(each.channel));
  for (auto& stranger : strangers_) told.push_back(std::move(stranger));
  told.erase(std::remove(told.begin(), told.end(), nullptr), told.end());

  std::vector<pollfd> set;
  std::vector<Channel*> slow;
  for (std::size_t i = 0; i < told.size(); ++i) {
    Channel* const channel = told[i].get();
    const bool alive = i < doors ? channel->flush() : channel->send(Frame::kRefused, round_, body);
    if (alive && !channel->flushed()) slow.push_back(channel);
  }
  const Deadline farewell(kFarewellS);
  while (!slow.empty() && !farewell.passed()) {
    set.clear();
    for (const Channel* channel : slow) set.push_back({channel->get(), POLLOUT, 0});
    wait_for(&set, farewell.left_ms());
    const auto over = [](Channel* channel) { return !channel->flush() || channel->flushed(); };
    slow.erase(std::remove_if(slow.begin(), slow.end(), over), slow.end());
  }
  strangers_.clear();
  seats_.clear();
}

}  // namespace blink::shim
