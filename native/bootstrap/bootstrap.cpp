#include "participant.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <random>

#include "client.h"
#include "coordinator.h"

namespace blink {

int Participant::all_gather(const void* bytes, std::size_t size, const int* descriptors, int count, double grace_s,
                          double deadline_s) {
  ++round_;
  words_.clear();
  all_files_.clear();
  files_.clear();
  deadline_ = Deadline(deadline_s);
  grace_ = Deadline(grace_s);
  mine_.clear();
  if (cause_.any()) return cause_.status;
  if (in_round_) {
    fail_here(own("it begins a round before the last one has ended"));
  } else if (size > BLINK_BOOTSTRAP_BYTES || count < 0 || count > BLINK_BOOTSTRAP_DESCRIPTORS) {
    fail_here(own("it gives " + std::to_string(size) + " bytes and " + std::to_string(count) +
                  " descriptors; expected at most " + std::to_string(BLINK_BOOTSTRAP_BYTES) + " and " +
                  std::to_string(BLINK_BOOTSTRAP_DESCRIPTORS)));
  } else if (!files_.add_copies(descriptors, static_cast<std::size_t>(count))) {
    fail_here(own(std::string("it cannot share its descriptors: ") + std::strerror(errno) +
                  "; is the limit on open files (ulimit -n) too low?"));
  } else {
    mine_.assign(static_cast<const char*>(bytes), size);
  }
  in_round_ = true;
  begin();
  return step(0);
}

int Participant::step(int timeout_ms) {
  if (in_round_ && !cause_.any()) go_on(timeout_ms);
  if (cause_.any()) {
    if (!told_) {
      told_ = true;
      tell();
    }
    in_round_ = false;
    return cause_.status;
  }
  return in_round_ ? BLINK_BOOTSTRAP_AGAIN : BLINK_BOOTSTRAP_OK;
}

void Participant::fail(const Cause& cause) {
  if (!cause_.any()) look();
  fail_here(cause);
  in_round_ = true;
  step(0);
}

std::vector<int> Participant::take_descriptors(int rank) {
  const auto at = static_cast<std::size_t>(rank);
  return at < all_files_.size() ? all_files_[at].take() : std::vector<int>();
}

void Participant::done(std::vector<Words> words, std::vector<int> files) {
  words_ = std::move(words);
  auto next = files.begin();
  for (const Words& each : words_) {
    all_files_.emplace_back();
    for (std::size_t i = 0; i < each.descriptors && next != files.end(); ++i) all_files_.back().add(*next++);
  }
  in_round_ = false;
}

Cause Participant::own(const std::string& text) const {
  Cause cause;
  cause.status = BLINK_BOOTSTRAP_FAILED;
  cause.rank = rank();
  cause.pid = static_cast<int>(hello_.pid);
  cause.text = text;
  return cause;
}

std::string announced_name(const std::string& token, int rank) {
  constexpr std::size_t kDigits = 40;
  return "blink-" + token.substr(0, kDigits) + "-" + std::to_string(rank);
}

}  // namespace blink

using blink::Participant;
using blink::Cause;
using blink::Socket;

struct blink_bootstrap {
  std::unique_ptr<Participant> rank;
  std::string address;
};

namespace {

void tell(const Cause& cause, blink_bootstrap_reason* reason) {
  if (reason == nullptr) return;
  *reason = {cause.status, cause.rank, cause.pid, {}};
  std::snprintf(reason->text, sizeof reason->text, "%s", cause.text.c_str());
}

std::nullptr_t refuse(const std::string& text, blink_bootstrap_reason* reason) {
  Cause cause;
  cause.status = BLINK_BOOTSTRAP_FAILED;
  cause.text = text;
  tell(cause, reason);
  return nullptr;
}

// Checks the token and the rank's number.
bool sensible(const char* token, int rank, int size, blink_bootstrap_reason* reason) {
  if (token == nullptr || std::strlen(token) != BLINK_BOOTSTRAP_TOKEN) {
    refuse("expected a token of " + std::to_string(BLINK_BOOTSTRAP_TOKEN) + " characters", reason);
    return false;
  }
  if (size >= 1 && size <= BLINK_BOOTSTRAP_RANKS && rank >= 0 && rank < size) return true;
  refuse("rank " + std::to_string(rank) + " of " + std::to_string(size) + " ranks; expected at most " +
             std::to_string(BLINK_BOOTSTRAP_RANKS) + " ranks, and a rank below their number",
         reason);
  return false;
}

// A fresh name that cannot be guessed.
std::string fresh_name() {
  std::random_device random;
  std::string name = "blink-";
  for (int i = 0; i < 32; ++i) name += "0123456789abcdef"[random() % 16];
  return name;
}

template <class Body>
auto guarded(blink_bootstrap_reason* reason, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& error) {
    return refuse(error.what(), reason);
  }
}

}  // namespace

extern "C" {

blink_bootstrap* blink_bootstrap_listen(const char* tcp, const char* token, int size, blink_bootstrap_reason* reason) {
  return guarded(reason, [&]() -> blink_bootstrap* {
    if (!sensible(token, 0, size, reason)) return nullptr;
    const std::string place = tcp != nullptr ? tcp : fresh_name();
    int port = 0;
    Socket listener = tcp != nullptr ? blink::listen_at_port(place, &port) : blink::listen_at_name(place);
    if (!listener.open()) return refuse("it cannot listen at " + place + ": " + std::strerror(errno), reason);
    const std::string address =
        tcp == nullptr ? "unix:" + place : "tcp:" + place.substr(0, place.rfind(':')) + ":" + std::to_string(port);
    auto rank = std::make_unique<blink::Coordinator>(token, size, std::move(listener), false);
    return new blink_bootstrap{std::move(rank), address};
  });
}

const char* blink_bootstrap_address(const blink_bootstrap* bootstrap) { return bootstrap->address.c_str(); }

blink_bootstrap* blink_bootstrap_connect(const char* address, const char* token, int rank, int size,
                                         blink_bootstrap_reason* reason) {
  return guarded(reason, [&]() -> blink_bootstrap* {
    if (!sensible(token, rank, size, reason)) return nullptr;
    const std::string place = address;
    const bool tcp = place.compare(0, 4, "tcp:") == 0;
    if (!tcp && place.compare(0, 5, "unix:") != 0) return refuse("expected unix: or tcp:, got " + place, reason);
    Socket connection = tcp ? blink::connect_to_port(place.substr(4)) : blink::connect_to_name(place.substr(5));
    if (!connection.open()) {
      const char* why = errno == EACCES ? "another user listens there" : std::strerror(errno);
      return refuse("cannot connect to rank 0 at " + place + ": " + why, reason);
    }
    return new blink_bootstrap{std::make_unique<blink::Client>(token, rank, size, std::move(connection), tcp), place};
  });
}

blink_bootstrap* blink_bootstrap_announce(const char* token, int rank, int size, blink_bootstrap_reason* reason) {
  return guarded(reason, [&]() -> blink_bootstrap* {
    if (!sensible(token, rank, size, reason)) return nullptr;
    Socket listener = blink::listen_at_name(blink::announced_name(token, rank));
    if (!listener.open()) {
      const bool taken = errno == EADDRINUSE;
      return refuse(taken ? "another process on this host is rank " + std::to_string(rank) + " of this group"
                          : std::string("no socket to meet the other ranks: ") + std::strerror(errno),
                    reason);
    }
    std::unique_ptr<Participant> end;
    if (rank == 0) {
      end = std::make_unique<blink::Coordinator>(token, size, std::move(listener), true);
    } else {
      end = std::make_unique<blink::Client>(token, rank, size, std::move(listener));
    }
    return new blink_bootstrap{std::move(end), ""};
  });
}

int blink_bootstrap_all_gather(blink_bootstrap* bootstrap, const void* bytes, size_t size, const int* descriptors,
                               int count, double grace_s, double deadline_s) {
  return bootstrap->rank->all_gather(bytes, size, descriptors, count, grace_s, deadline_s);
}

int blink_bootstrap_step(blink_bootstrap* bootstrap, int timeout_ms) { return bootstrap->rank->step(timeout_ms); }

size_t blink_bootstrap_bytes(const blink_bootstrap* bootstrap, int rank, const void** bytes) {
  const auto& words = bootstrap->rank->words();
  const auto at = static_cast<std::size_t>(rank);
  if (at >= words.size()) return 0;
  *bytes = words[at].bytes.data();
  return words[at].bytes.size();
}

int blink_bootstrap_descriptors(blink_bootstrap* bootstrap, int rank, int* descriptors, int capacity) {
  const std::vector<int> files = bootstrap->rank->take_descriptors(rank);
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (static_cast<int>(i) < capacity) {
      descriptors[i] = files[i];
    } else {
      close(files[i]);
    }
  }
  return std::min(static_cast<int>(files.size()), capacity);
}

void blink_bootstrap_fail(blink_bootstrap* bootstrap, blink_bootstrap_reason* reason) {
  Cause cause;
  cause.status = std::max<int>(reason->status, BLINK_BOOTSTRAP_TIMEOUT);
  cause.rank = reason->rank;
  cause.pid = reason->pid;
  cause.text.assign(reason->text, strnlen(reason->text, sizeof reason->text));
  bootstrap->rank->fail(cause);
  tell(bootstrap->rank->cause(), reason);
}

void blink_bootstrap_cause(const blink_bootstrap* bootstrap, blink_bootstrap_reason* reason) {
  tell(bootstrap->rank->cause(), reason);
}

int blink_bootstrap_missing(const blink_bootstrap* bootstrap, int32_t* ranks, int capacity) {
  const std::vector<std::int32_t>& missing = bootstrap->rank->cause().missing;
  const auto count = std::min(missing.size(), static_cast<std::size_t>(std::max(capacity, 0)));
  std::copy_n(missing.begin(), count, ranks);
  return static_cast<int>(missing.size());
}

void blink_bootstrap_leave(blink_bootstrap* bootstrap) {
  if (bootstrap != nullptr) bootstrap->rank->leave();
  delete bootstrap;
}

}  // extern "C"
