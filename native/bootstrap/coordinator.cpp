#include "coordinator.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

namespace blink {
namespace {

constexpr std::size_t kMostStrangers = 256 + BLINK_BOOTSTRAP_RANKS, kMostAtOnce = 64;
constexpr std::size_t kMostWordsBytes = BLINK_BOOTSTRAP_BYTES + 64;
constexpr int kLookMs = 20;           // between two probes for ranks, whose arrival raises no event
constexpr int kCrowdedMs = 2;         // before another attempt to send descriptors
constexpr double kFarewellS = 0.25;   // for notifying all ranks of a failure
constexpr double kLateS = 1;          // for those that come to a port after a failure
constexpr double kAgainS = 1;         // for restarting a rank that ended before all had arrived
constexpr double kSilentS = 1;        // from the beginning of a round until an error names the ranks without an answer

// The coordinator's timeout is slightly shorter, so that its decision reaches the ranks before theirs.
Deadline decision(const Deadline& deadline) {
  const double left = deadline.left();
  return deadline.moved_to(left - std::min(0.25, left / 10));
}

bool is_secret(const Hello& hello, const Hello& ours) {
  unsigned different = 0;  // constant time, wherever the tokens differ
  for (std::size_t i = 0; i < sizeof hello.token; ++i) {
    different |= static_cast<unsigned char>(hello.token[i] ^ ours.token[i]);
  }
  return different == 0;
}

}  // namespace

Coordinator::Coordinator(const std::string& token, int size, Socket listener, bool announced)
    : Participant(token, 0, size), announced_(announced), listener_(std::move(listener)), most_size_(size) {
  seats_.resize(static_cast<std::size_t>(size));
  seats_[0].hello = hello_;
}

void Coordinator::begin() {
  decide_ = decision(deadline_);
  silent_ = Deadline(kSilentS);
  phase_ = Phase::kGather;
  for (Seat& each : seats_) {
    each.spoken = each.acked = false;
    each.words = {};
    each.files.clear();
  }
  seat(0).spoken = seat(0).acked = true;
  seat(0).words = {mine_, files_.size()};
  seat(0).files = std::move(files_);
}

void Coordinator::go_on(int timeout_ms) {
  const Deadline slice(timeout_ms / 1e3);
  for (bool first = true;; first = false) {
    if (phase_ == Phase::kGather) look_for_absent();
    if (cause_.any()) return;
    if (all_have()) {
      if (phase_ == Phase::kAck) {
        turn(0);  // an abort sent since the ack must be read first: after the first commit it is too late
        if (!cause_.any()) commit();
        return;
      }
      give_verdict();
    } else if (decide_.passed()) {
      return time_out();
    } else if (!first && slice.passed()) {
      return;
    } else {
      turn(std::min(slice.left_ms(), decide_.left_ms()));
    }
    if (cause_.any()) return;
  }
}

bool Coordinator::all_have() const {
  return std::all_of(seats_.begin(), seats_.end(),
                     [this](const Seat& each) { return phase_ == Phase::kGather ? each.spoken : each.acked; });
}

void Coordinator::give_verdict() {
  // All ranks are present, so the listener is no longer needed.
  listener_.close();
  strangers_.clear();
  phase_ = Phase::kAck;
  std::vector<Words> words;
  std::vector<int> files;
  const bool tcp = std::any_of(seats_.begin(), seats_.end(), [](const Seat& each) { return each.tcp; });
  for (const Seat& each : seats_) {
    words.push_back(each.words);
    files.insert(files.end(), each.files.get().begin(), each.files.get().end());
  }
  if (files.size() > BLINK_BOOTSTRAP_DESCRIPTORS) {
    return fail_here(own("all ranks together share " + std::to_string(files.size()) + " descriptors, expected at most " +
                         std::to_string(BLINK_BOOTSTRAP_DESCRIPTORS)));
  }
  if (tcp && !files.empty()) return fail_here(own("descriptors cannot travel to ranks on other hosts"));
  const auto verdict = std::make_shared<const std::string>(packed(words));
  for (int rank = 1; rank < size_; ++rank) seat(rank).channel->send(Frame::kVerdict, round_, verdict, files);
}

void Coordinator::commit() {
  std::vector<Words> words;
  std::vector<int> files;
  for (int rank = 1; rank < size_; ++rank) {
    // Once the first rank has the commit, the round counts. A rank that has died since its ack is detected in the next.
    if (!seat(rank).channel->send(Frame::kCommit, round_, "") && rank == 1) return hung_up(rank);
  }
  for (Seat& each : seats_) {
    words.push_back(std::move(each.words));
    const std::vector<int> own = each.files.take();
    files.insert(files.end(), own.begin(), own.end());
  }
  done(std::move(words), std::move(files));
}

// Waits for an event, and reads all messages.
void Coordinator::turn(int timeout_ms) {
  std::vector<pollfd> set;
  std::vector<int> seated, probed;
  bool crowded = false, looking = false;
  if (listener_.open()) set.push_back({listener_.get(), POLLIN, 0});
  for (const auto& stranger : strangers_) set.push_back({stranger->get(), POLLIN, 0});
  for (int rank = 1; rank < size_; ++rank) {
    const Seat& each = seat(rank);
    looking = looking || (each.channel == nullptr && (each.came || (announced_ && !each.probe.open())));
    if (each.channel == nullptr) continue;
    set.push_back({each.channel->get(), each.channel->events(), 0});
    seated.push_back(rank);
    crowded = crowded || each.channel->crowded();
  }
  const std::size_t first_probe = set.size();
  for (int rank = 1; rank < size_; ++rank) {
    if (!seat(rank).probe.open()) continue;
    set.push_back({seat(rank).probe.get(), POLLRDHUP, 0});
    probed.push_back(rank);
  }
  if (looking) timeout_ms = std::min(timeout_ms, kLookMs);
  if (crowded) timeout_ms = std::min(timeout_ms, kCrowdedMs);
  if (!wait_for(&set, timeout_ms) && !crowded) return;

  for (const int rank : seated) {
    if (cause_.any()) return;
    listen_to(rank);
  }
  for (std::size_t i = 0; i < probed.size(); ++i) {
    if (set[first_probe + i].revents == 0) continue;
    // The rank has closed its listener, so it will not come. But its hello may be on its way: it is probed again below.
    seat(probed[i]).probe.close();
    seat(probed[i]).closed = true;
  }
  welcome();
}

void Coordinator::accept_strangers() {
  for (std::size_t i = 0; i < kMostAtOnce; ++i) {
    Socket connection = accept_from(listener_, &others_);
    if (!connection.open()) {
      // Without descriptors, strangers are dropped, since they had time to introduce themselves.
      if (errno == EMFILE || errno == ENFILE) {
        strangers_.clear();
        pause_ms(kLookMs);
      }
      break;
    }
    if (strangers_.size() >= kMostStrangers) strangers_.erase(strangers_.begin());
    strangers_.push_back(std::make_unique<Channel>(std::move(connection), kMostHelloBytes));
  }
}

// Accepts waiting connections, and seats those that introduce themselves.
void Coordinator::welcome() {
  accept_strangers();
  for (auto& stranger : strangers_) {
    Frame frame;
    const Channel::Got got = stranger->take(&frame);
    if (got == Channel::Got::kNothing) continue;
    const bool ours = got == Channel::Got::kFrame && seat_stranger(&stranger, frame);
    if (cause_.any()) break;  // the rank at fault gets the error, too
    if (!ours) stranger.reset();
  }
  strangers_.erase(std::remove(strangers_.begin(), strangers_.end(), nullptr), strangers_.end());
}

bool Coordinator::introduces(const Frame& frame, Hello* hello) const {
  return frame.type == Frame::kHello && Hello::unpack(frame.body, hello) && is_secret(*hello, hello_);
}

// False for a connection that is not one of this group's ranks.
bool Coordinator::seat_stranger(std::unique_ptr<Channel>* stranger, const Frame& frame) {
  Hello hello;
  if (!introduces(frame, &hello)) return false;
  const std::string who = "rank " + std::to_string(hello.rank) + " (" + hello.who() + ")";
  (*stranger)->trust(kMostWordsBytes);
  const bool same_protocol = hello.protocol == hello_.protocol;
  if (!same_protocol || hello.size != hello_.size) {
    if (hello.size <= BLINK_BOOTSTRAP_RANKS) most_size_ = std::max(most_size_, static_cast<int>(hello.size));
    const auto value = [same_protocol](const Hello& one) {
      return std::to_string(same_protocol ? one.size : one.protocol);
    };
    fail_here(blame(BLINK_BOOTSTRAP_MISMATCH, static_cast<int>(hello.rank),
                    std::string("ranks disagree on ") + (same_protocol ? "world_size" : "the bootstrap's protocol") +
                        ": rank 0 (" + hello_.who() + ") has " + value(hello_) + ", " + who + " has " + value(hello) +
                        (same_protocol ? "; start all ranks of a job with the same world_size, and give "
                                         "concurrent jobs separate stores or ports"
                                       : "; install the same version on all hosts")));
    return false;
  }
  if (hello.rank >= hello.size) return false;
  const int rank = static_cast<int>(hello.rank);
  Seat& each = seat(rank);
  // A rank 0 knocks where the others look for it, which may lead to itself.
  if (rank == 0 && hello.who() == hello_.who()) return false;
  if (rank == 0 || each.channel != nullptr) {
    fail_claimed(each.hello, hello);
    return false;
  }
  each.tcp = is_tcp((*stranger)->get());
  each.pid = static_cast<int>(hello.pid);
  each.channel = std::move(*stranger);
  each.hello = hello;
  each.came = true;
  each.probe.close();
  listen_to(rank);
  return true;
}

void Coordinator::fail_claimed(const Hello& first, const Hello& second) {
  fail_here(blame(BLINK_BOOTSTRAP_MISMATCH, static_cast<int>(second.rank),
                  "rank " + std::to_string(second.rank) + " is claimed by " + first.who() + " and by " + second.who() +
                      "; expected one process per rank: check BLINK_RANK or the launcher's variables, and start "
                      "concurrent jobs with separate stores or ports"));
}

void Coordinator::listen_to(int rank) {
  Seat& each = seat(rank);
  const bool writes = each.channel->flush();
  Frame frame;
  while (!cause_.any() && each.channel != nullptr) {
    const Channel::Got got = each.channel->take(&frame);
    if (got == Channel::Got::kFrame) {
      hear(rank, frame);
    } else if (got == Channel::Got::kGone || !writes) {
      hung_up(rank);
    } else {
      return;
    }
  }
}

void Coordinator::hear(int rank, const Frame& frame) {
  Seat& each = seat(rank);
  if (frame.type == Frame::kAbort) {
    Cause cause;
    if (!Cause::unpack(frame.body, &cause)) return hung_up(rank);
    if (cause.status == BLINK_BOOTSTRAP_TIMEOUT) {
      // That rank's timeout has passed, and it does not know which others are missing.
      cause.missing = absent();
      cause.missing.erase(std::remove(cause.missing.begin(), cause.missing.end(), rank), cause.missing.end());
      if (!cause.missing.empty()) cause.text += "; also missing: " + ranks_named(cause.missing);
    }
    if (cause.status == BLINK_BOOTSTRAP_LOST) look_beside(rank);
    return fail_here(cause);
  }
  if (frame.type == Frame::kLeave) return fail_here(blame(BLINK_BOOTSTRAP_LOST, rank, "it left the bootstrap"));
  const bool in_turn = frame.round == round_ && (phase_ == Phase::kGather ? frame.type == Frame::kWords && !each.spoken
                                                                          : frame.type == Frame::kAck && !each.acked);
  if (!in_turn) return fail_here(blame(BLINK_BOOTSTRAP_FAILED, rank, "it sent a message out of order"));
  if (phase_ == Phase::kAck) {
    each.acked = true;
  } else {
    take_words(rank, frame);
  }
}

// The body's head holds the number of descriptors that accompany it.
void Coordinator::take_words(int rank, const Frame& frame) {
  Seat& each = seat(rank);
  std::vector<Words> one;
  each.files = each.channel->take_descriptors();
  if (!unpack(frame.body, 1, &one)) return hung_up(rank);
  each.words = std::move(one[0]);
  each.spoken = true;
  if (each.files.size() == each.words.descriptors) return;
  fail_here(blame(BLINK_BOOTSTRAP_FAILED, rank,
                  "expected " + std::to_string(each.words.descriptors) + " descriptors from it, got " +
                      std::to_string(each.files.size()) + "; is the limit on open files (ulimit -n) too low on rank 0?"));
}

void Coordinator::hung_up(int rank) {
  Seat& each = seat(rank);
  if (!announced_ && round_ <= 1 && phase_ == Phase::kGather) {
    each.channel.reset();
    each.spoken = false;
    each.files.clear();
    each.again = Deadline(kAgainS);
    return;
  }
  fail_here(blame(BLINK_BOOTSTRAP_LOST, rank, "its process ended or hung up during the bootstrap"));
}

// Fails for ranks that are absent and will not come.
void Coordinator::look_for_absent() {
  for (int rank = 1; rank < size_; ++rank) {
    const Seat& each = seat(rank);
    if (each.came && each.channel == nullptr && each.again.passed()) {
      return fail_here(blame(BLINK_BOOTSTRAP_LOST, rank, "its process ended before all ranks had arrived"));
    }
  }
  if (announced_) probe_absent();
}

// Probes the listeners of absent ranks. A rank without one is missing once the grace period has passed.
void Coordinator::probe_absent() {
  std::vector<std::int32_t> missing;
  for (int rank = 1; rank < size_; ++rank) {
    Seat& each = seat(rank);
    if (each.channel != nullptr || each.probe.open()) continue;
    each.probe = connect_to_name(announced_name(std::string(hello_.token, sizeof hello_.token), rank));
    // EAGAIN: there is a listener with a full backlog. Other errors may pass; only a missing listener, or another
    // user's, is an answer.
    const bool nobody = !each.probe.open() && (errno == ECONNREFUSED || errno == EACCES || errno == EPERM);
    if (nobody && (grace_.passed() || each.closed)) missing.push_back(rank);
  }
  if (missing.empty()) return;
  // A rank that has left may have sent its reason before.
  welcome();
  const auto seated = [this](int rank) { return seat(rank).channel != nullptr; };
  missing.erase(std::remove_if(missing.begin(), missing.end(), seated), missing.end());
  if (cause_.any() || missing.empty()) return;
  const bool one = missing.size() == 1;
  Cause cause = blame(BLINK_BOOTSTRAP_TIMEOUT, -1,
                      ranks_named(missing) + (one ? " does not answer on this host: it runs without Blink, runs"
                                                  : " do not answer on this host: they run without Blink, run") +
                          " on another host, or " + (one ? "has" : "have") + " given up");
  cause.missing = std::move(missing);
  fail_here(cause);
}

void Coordinator::time_out() {
  const std::vector<std::int32_t> late = absent();
  const std::string who = late.empty() ? "no rank" : ranks_named(late);
  Cause cause = blame(BLINK_BOOTSTRAP_TIMEOUT, -1,
                      who + (late.size() == 1 ? " has" : " have") +
                          (phase_ == Phase::kGather ? " not joined the bootstrap before the timeout of rank 0"
                                                    : " not confirmed before the timeout of the bootstrap"));
  if (others_.count > 0) {
    cause.text += "; refused " + std::to_string(others_.count) + " connections of user " +
                  std::to_string(others_.user) + ", expected user " + std::to_string(geteuid());
  }
  cause.missing = late;
  fail_here(cause);
}

// The ranks whose words, or acks, are missing.
std::vector<std::int32_t> Coordinator::absent() const {
  std::vector<std::int32_t> ranks;
  for (int rank = 1; rank < size_; ++rank) {
    if (phase_ == Phase::kGather ? !seat(rank).spoken : !seat(rank).acked) ranks.push_back(rank);
  }
  return ranks;
}

Cause Coordinator::blame(int status, int rank, const std::string& text) const {
  Cause cause;
  cause.status = status;
  cause.rank = rank;
  cause.pid = rank >= 0 && rank < size_ ? seat(rank).pid : 0;
  cause.text = text;
  return cause;
}

// A rank that has died is a better cause than other ranks' reports of it; `reporter` has already been read.
void Coordinator::look_beside(int reporter) {
  std::vector<Cause> said;
  for (int rank = 1; rank < size_; ++rank) {
    if (rank == reporter) continue;
    Channel* const channel = seat(rank).channel.get();
    Frame frame;
    Cause cause;
    Channel::Got got = Channel::Got::kNothing;
    bool silent = true;
    while (channel != nullptr && (got = channel->take(&frame)) == Channel::Got::kFrame) {
      seat(rank).spoken = seat(rank).spoken || frame.type == Frame::kWords;
      silent = silent && frame.type != Frame::kLeave && frame.type != Frame::kAbort;
      if (frame.type == Frame::kAbort && Cause::unpack(frame.body, &cause)) said.push_back(cause);
    }
    if (got == Channel::Got::kGone && silent) {
      fail_here(blame(BLINK_BOOTSTRAP_LOST, rank, "its process ended or hung up while the group was created"));
    }
  }
  const auto failed = [](const Cause& cause) { return cause.status == BLINK_BOOTSTRAP_FAILED; };
  const auto first = std::find_if(said.begin(), said.end(), failed);
  if (!said.empty()) fail_here(first == said.end() ? said[0] : *first);
}

// The host of a silent rank may be gone, which the rank that reports a failure cannot know.
void Coordinator::add_silent() {
  if (cause_.status != BLINK_BOOTSTRAP_FAILED || round_ <= 1 || !silent_.passed()) return;
  look();
  const std::vector<std::int32_t> silent = absent();
  if (!silent.empty()) cause_.text += "; rank 0 gets no answer from " + ranks_named(silent);
}

void Coordinator::tell() {
  add_silent();
  const auto body = std::make_shared<const std::string>(cause_.packed());
  std::vector<std::unique_ptr<Channel>> told;
  // First at the listeners of absent ranks, which read them when they find no coordinator; its own close afterwards.
  for (int rank = 1; announced_ && rank < most_size_; ++rank) {
    if (rank < size_ && seat(rank).channel != nullptr) continue;
    Socket socket = connect_to_name(announced_name(std::string(hello_.token, sizeof hello_.token), rank));
    if (!socket.open()) continue;
    told.push_back(std::make_unique<Channel>(std::move(socket), 0));
    told.back()->send(Frame::kHello, round_, hello_.packed());
  }
  const bool at_port = is_tcp(listener_.get());
  for (std::size_t i = 0; i < kMostStrangers && !at_port; ++i) {
    Socket waiting = accept_from(listener_, &others_);
    if (!waiting.open()) break;
    told.push_back(std::make_unique<Channel>(std::move(waiting), 0));
  }
  if (!at_port) listener_.close();
  for (Seat& each : seats_) told.push_back(std::move(each.channel));
  for (auto& stranger : strangers_) told.push_back(std::move(stranger));
  strangers_.clear();
  // Over TCP only connections that have sent the token.
  const auto unknown = [](const std::unique_ptr<Channel>& channel) {
    return channel == nullptr || (!channel->trusted() && is_tcp(channel->get()));
  };
  told.erase(std::remove_if(told.begin(), told.end(), unknown), told.end());

  std::vector<pollfd> set;
  std::vector<Channel*> slow;
  for (const auto& channel : told) {
    if (channel->send(Frame::kAbort, round_, body) && !channel->flushed()) slow.push_back(channel.get());
  }
  const Deadline farewell(kFarewellS);
  while (!slow.empty() && !farewell.passed()) {
    set.clear();
    for (const Channel* channel : slow) set.push_back({channel->get(), POLLOUT, 0});
    wait_for(&set, farewell.left_ms());
    const auto over = [](Channel* channel) { return !channel->flush() || channel->flushed(); };
    slow.erase(std::remove_if(slow.begin(), slow.end(), over), slow.end());
  }
  if (at_port && cause_.status != BLINK_BOOTSTRAP_TIMEOUT) tell_late(body);
  listener_.close();
}

// At a port, also ranks that come soon after a failure get its cause; they would wait for another rank 0.
void Coordinator::tell_late(const std::shared_ptr<const std::string>& body) {
  const auto came = [](const Seat& each) { return each.came; };
  auto expected = std::count_if(seats_.begin() + 1, seats_.end(), std::not_fn(came));
  std::vector<std::unique_ptr<Channel>> told;
  for (const Deadline late(kLateS); expected > 0 && !late.passed();) {
    std::vector<pollfd> set = {{listener_.get(), POLLIN, 0}};
    for (const auto& stranger : strangers_) set.push_back({stranger->get(), POLLIN, 0});
    wait_for(&set, late.left_ms());
    accept_strangers();
    for (auto& stranger : strangers_) {
      Frame frame;
      Hello hello;
      const Channel::Got got = stranger->take(&frame);
      if (got == Channel::Got::kNothing) continue;
      if (got == Channel::Got::kFrame && introduces(frame, &hello)) {
        stranger->send(Frame::kAbort, round_, body);
        told.push_back(std::move(stranger));
        --expected;
      }
      stranger.reset();
    }
    strangers_.erase(std::remove(strangers_.begin(), strangers_.end(), nullptr), strangers_.end());
  }
  strangers_.clear();
}

void Coordinator::leave() {
  for (Seat& each : seats_) {
    if (each.channel != nullptr && each.channel->ours()) each.channel->send(Frame::kLeave, round_, "");
  }
}

}  // namespace blink
