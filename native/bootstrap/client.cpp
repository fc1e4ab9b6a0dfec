#include "client.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace blink {
namespace {

constexpr int kRetryMs = 10;
constexpr int kMostCallers = 256;  // at this rank's listener, where all callers but rank 0 are strangers
// The coordinator decides by its own timeout, which began at another moment. Without this wait other ranks could
// succeed while this one gives up.
constexpr double kSlackS = 0.5;
constexpr std::size_t kMostVerdictBytes = std::size_t{BLINK_BOOTSTRAP_RANKS} * (BLINK_BOOTSTRAP_BYTES + 8);

}  // namespace

Client::Client(const std::string& token, int rank, int size, Socket connection, bool tcp)
    : Participant(token, rank, size), tcp_(tcp) {
  join(std::move(connection));
}

void Client::join(Socket connection) {
  coordinator_ = std::make_unique<Channel>(std::move(connection), kMostVerdictBytes);
  coordinator_->trust(kMostVerdictBytes);
  coordinator_->send(Frame::kHello, 0, hello_.packed());  // if rank 0 has ended, the next read reports it
}

void Client::begin() {
  acked_ = false;
  all_.clear();
  all_files_.clear();
  if (tcp_ && files_.size() > 0) fail_here(own("descriptors cannot travel to ranks on other hosts"));
  if (!cause_.any() && coordinator_ != nullptr) {
    coordinator_->send(Frame::kWords, round_, packed({{mine_, files_.size()}}), files_.get());
  }
}

void Client::go_on(int timeout_ms) {
  const Deadline slice(timeout_ms / 1e3);
  for (bool first = true;; first = false) {
    if (coordinator_ == nullptr && find_coordinator()) begin();
    Frame frame;
    while (coordinator_ != nullptr && !cause_.any()) {
      const bool writes = coordinator_->flush();
      const Channel::Got got = coordinator_->take(&frame);
      if (got == Channel::Got::kNothing && writes) break;
      if (got != Channel::Got::kFrame) return lose();
      hear(frame);
      if (acked_ && frame.type == Frame::kCommit && !cause_.any()) {
        listener_.close();
        return done(std::move(all_), all_files_.take());
      }
    }
    if (cause_.any()) return;
    if (deadline_.passed()) {
      Cause late = own("rank " + std::to_string(rank()) + " waited for rank 0 past the timeout of the bootstrap");
      late.status = BLINK_BOOTSTRAP_TIMEOUT;
      late.missing = {0};
      return fail_here(late);
    }
    if (!first && slice.passed()) return;
    const int left_ms = std::min(slice.left_ms(), deadline_.left_ms());
    if (coordinator_ == nullptr) {
      pause_ms(std::min(kRetryMs, left_ms));
    } else {
      std::vector<pollfd> set = {{coordinator_->get(), coordinator_->events(), 0}};
      wait_for(&set, coordinator_->crowded() ? std::min(kRetryMs, left_ms) : left_ms);
    }
  }
}

// For an announced group: connects to the coordinator. False if it is not there yet, or, with a cause, never will be.
bool Client::find_coordinator() {
  Socket connection = connect_to_name(announced_name(std::string(hello_.token, sizeof hello_.token), 0));
  if (connection.open()) {
    join(std::move(connection));
    return true;
  }
  const int error = errno;
  if (read_farewell()) return false;
  if (error == EACCES || error == EPERM || (error == ECONNREFUSED && grace_.passed())) {
    Cause cause = own("rank 0 does not answer on this host: it runs without Blink, runs on another host, or has given up");
    cause.status = BLINK_BOOTSTRAP_TIMEOUT;
    cause.missing = {0};
    fail_here(cause);
  }
  return false;
}

void Client::hear(const Frame& frame) {
  if (frame.type == Frame::kAbort) {
    Cause cause;
    heard_ = true;
    return Cause::unpack(frame.body, &cause) ? fail_here(cause) : lose();
  }
  if (frame.type == Frame::kLeave) return lose();
  const bool in_turn = frame.round == round_ && frame.type == (acked_ ? Frame::kCommit : Frame::kVerdict);
  if (!in_turn) return fail_here(own("rank 0 sent a message out of order"));
  if (!acked_) take_verdict(frame);
}

void Client::take_verdict(const Frame& frame) {
  all_files_ = coordinator_->take_descriptors();
  if (!unpack(frame.body, size_, &all_)) {
    return fail_here(own("rank 0 sent a malformed message instead of the data of " + std::to_string(size_) + " ranks"));
  }
  std::size_t expected = 0;
  for (const Words& each : all_) expected += each.descriptors;
  if (all_files_.size() != expected) {
    return fail_here(own("it could not receive its descriptors: expected " + std::to_string(expected) + ", got " +
                         std::to_string(all_files_.size()) + "; is the limit on open files (ulimit -n) too low?"));
  }
  acked_ = true;
  coordinator_->send(Frame::kAck, round_, "");
}

// The coordinator has closed the connection.
void Client::lose() {
  if (read_farewell()) return;
  heard_ = true;  // there is no coordinator to notify
  if (coordinator_->foreign()) {
    return fail_here(own("what listens there is not rank 0 of a job of this version of Blink; use a port of this job's own"));
  }
  fail_here(coordinator_lost());
}

Cause Client::coordinator_lost() const {
  Cause cause;
  cause.status = BLINK_BOOTSTRAP_LOST;
  cause.rank = 0;
  cause.pid = peer_pid(coordinator_->get());
  cause.text = "its process ended or hung up during the bootstrap";
  return cause;
}

// Reads an error message that the coordinator left at this rank's listener; true if there is one.
bool Client::read_farewell() {
  Others others;
  for (int i = 0; i < kMostCallers; ++i) {
    Socket caller = accept_from(listener_, &others);
    if (!caller.open()) return false;
    Channel channel(std::move(caller), BLINK_BOOTSTRAP_BYTES);
    Frame frame;
    Hello hello;
    Cause cause;
    if (channel.take(&frame) == Channel::Got::kFrame && frame.type == Frame::kHello &&
        Hello::unpack(frame.body, &hello) && std::memcmp(hello.token, hello_.token, sizeof hello.token) == 0 &&
        channel.take(&frame) == Channel::Got::kFrame && frame.type == Frame::kAbort &&
        Cause::unpack(frame.body, &cause)) {
      heard_ = true;
      fail_here(cause);
      return true;
    }
    // A caller without a message was a probe of rank 0, or a stranger.
  }
  return false;
}

void Client::tell() {
  listener_.close();
  all_files_.clear();
  if (heard_ || coordinator_ == nullptr) return coordinator_.reset();
  coordinator_->send(Frame::kAbort, round_, cause_.packed());
  const Deadline slack(kSlackS);
  bool has_left = false;
  for (Frame frame; !slack.passed();) {
    const bool writes = coordinator_->flush();
    const Channel::Got got = coordinator_->take(&frame);
    Cause first;
    if (got == Channel::Got::kFrame && frame.type == Frame::kAbort && Cause::unpack(frame.body, &first)) {
      cause_ = first;
      break;
    }
    if (got == Channel::Got::kFrame) {
      has_left = has_left || frame.type == Frame::kLeave;
      continue;
    }
    if (got == Channel::Got::kGone || !writes) {
      // A coordinator that fails or leaves sends a message. One that died is a better cause than what this rank noticed of it.
      if (!has_left) cause_ = coordinator_lost();
      break;
    }
    std::vector<pollfd> set = {{coordinator_->get(), coordinator_->events(), 0}};
    wait_for(&set, slack.left_ms());
  }
  coordinator_.reset();
}

void Client::leave() {
  if (coordinator_ != nullptr && coordinator_->ours()) coordinator_->send(Frame::kLeave, round_, "");
}

}  // namespace blink
