// The definition of the bootstrap: all ranks get the same result of a round. Ranks are threads, at announced names, at
// an address of this host and over TCP. One of them is missing, late or stalled, has other arguments, or is a process
// that dies. Strangers connect too. Ranks as processes, and duplicate ranks, are tested in
// tests/emulation/test_bootstrap.py.
// Sanitizers: address, thread.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "blink/bootstrap.h"
#include "channel.h"
#include "check.h"
#include "deadline.h"
#include "participant.h"

namespace {

using namespace blink_test;
using namespace blink;

constexpr double kLongS = 60, kShortS = 2.0;

enum class Way { kAnnounced, kAddress, kTcp };

std::string fresh_token() {
  static std::atomic<int> count{0};
  std::string token = std::to_string(getpid()) + "x" + std::to_string(++count) + "x";
  return token + std::string(BLINK_BOOTSTRAP_TOKEN - token.size(), '0');
}

// One rank's end, with C++ types.
class Rank {
 public:
  Rank(blink_bootstrap* handle, int size) : handle_(handle), size_(size) {}
  Rank(Rank&& other) noexcept : handle_(other.handle_), size_(other.size_) { other.handle_ = nullptr; }
  Rank& operator=(Rank&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Rank() { leave(); }
  void leave() {
    blink_bootstrap_leave(handle_);
    handle_ = nullptr;
  }
  blink_bootstrap* handle() const { return handle_; }

  bool gather(const std::string& mine, double grace_s = 5, double deadline_s = kLongS,
              const std::vector<int>& descriptors = {}) {
    const int count = static_cast<int>(descriptors.size());
    status = blink_bootstrap_all_gather(handle_, mine.data(), mine.size(), descriptors.data(), count, grace_s,
                                        deadline_s);
    while (status == BLINK_BOOTSTRAP_AGAIN) status = blink_bootstrap_step(handle_, 100);
    blink_bootstrap_cause(handle_, &cause);
    missing.resize(16);
    const int late = blink_bootstrap_missing(handle_, missing.data(), 16);
    missing.resize(static_cast<std::size_t>(std::min(late, 16)));
    all.clear();
    for (int rank = 0; status == BLINK_BOOTSTRAP_OK && rank < size_; ++rank) {
      const void* bytes = nullptr;
      const std::size_t size = blink_bootstrap_bytes(handle_, rank, &bytes);
      all.emplace_back(static_cast<const char*>(bytes), size);
    }
    return status == BLINK_BOOTSTRAP_OK;
  }
  void fail(int what, int whose, const std::string& text) {
    cause = {what, whose, 0, {}};
    std::snprintf(cause.text, sizeof cause.text, "%s", text.c_str());
    blink_bootstrap_fail(handle_, &cause);
    status = cause.status;
  }

  int status = -1;
  blink_bootstrap_reason cause{};
  std::vector<std::int32_t> missing;
  std::vector<std::string> all;

 private:
  blink_bootstrap* handle_;
  int size_;
};

Rank announced(const std::string& token, int rank, int size) {
  blink_bootstrap_reason reason{};
  blink_bootstrap* const handle = blink_bootstrap_announce(token.c_str(), rank, size, &reason);
  expect(handle != nullptr, "rank %d is announced: %s", rank, reason.text);
  return Rank(handle, size);
}

// The ends of all ranks except `but`, connected in the given way.
std::vector<Rank> ends_of(Way way, const std::string& token, int size, int but = -1) {
  std::vector<Rank> ends;
  blink_bootstrap_reason reason{};
  std::string address;
  for (int rank = 0; rank < size; ++rank) {
    blink_bootstrap* handle = nullptr;
    if (rank == but) {
    } else if (way == Way::kAnnounced) {
      handle = blink_bootstrap_announce(token.c_str(), rank, size, &reason);
    } else if (rank == 0) {
      handle = blink_bootstrap_listen(way == Way::kTcp ? "127.0.0.1:0" : nullptr, token.c_str(), size, &reason);
      address = blink_bootstrap_address(handle);
    } else {
      handle = blink_bootstrap_connect(address.c_str(), token.c_str(), rank, size, &reason);
    }
    expect(handle != nullptr || rank == but, "rank %d of %d: %s", rank, size, reason.text);
    ends.emplace_back(handle, size);
  }
  return ends;
}

// Runs each rank in its own thread.
void on_threads(int nranks, const std::function<void(int)>& rank) {
  std::vector<std::thread> threads;
  for (int r = 0; r < nranks; ++r) threads.emplace_back(rank, r);
  for (std::thread& thread : threads) thread.join();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Checks that all these ranks report the same status, rank and text.
void expect_cause(const char* test, std::vector<Rank>& ends, const std::vector<int>& ranks, int status, int whose,
                  const std::string& words) {
  for (const int rank : ranks) {
    const Rank& end = ends[static_cast<std::size_t>(rank)];
    expect(end.status == status && end.cause.status == status && end.cause.rank == whose &&
               contains(end.cause.text, words),
           "%s: rank %d says %d, rank %d, '%s'; expected %d, rank %d, '%s'", test, rank, end.status, end.cause.rank,
           end.cause.text, status, whose, words.c_str());
  }
}

std::vector<int> all_but(int nranks, int but) {
  std::vector<int> ranks;
  for (int rank = 0; rank < nranks; ++rank) {
    if (rank != but) ranks.push_back(rank);
  }
  return ranks;
}

std::string words_of(int rank, int round) {
  std::string words = "words of " + std::to_string(rank) + " in " + std::to_string(round) + ":";
  if (rank % 3 == 1) words += std::string(static_cast<std::size_t>((rank * 7919 + round * 104729) % 65000), 'x');
  if (rank % 3 == 2 && round % 2 == 0) words.clear();
  return words;
}

int memory_of(int rank) {
  const int file = memfd_create("test", MFD_CLOEXEC);
  const unsigned char number = static_cast<unsigned char>(rank);
  expect(file >= 0 && pwrite(file, &number, 1, 0) == 1, "a memory file");
  return file;
}

// Rounds of bytes; in the second every rank but 1 shares a descriptor, and rank 2 shares two.
void take_part(Rank* end, int nranks, int rank, int rounds, bool descriptors = true) {
  for (int round = 0; round < rounds; ++round) {
    std::vector<int> mine;
    if (round == 1 && descriptors && rank != 1) mine.assign(rank == 2 ? 2 : 1, memory_of(rank));
    const bool good = end->gather(words_of(rank, round), 5, kLongS, mine);
    if (!mine.empty()) close(mine[0]);
    if (!expect(good, "rank %d of %d, round %d: %s", rank, nranks, round, end->cause.text)) return;
    bool same = static_cast<int>(end->all.size()) == nranks;
    for (int r = 0; same && r < nranks; ++r) same = end->all[static_cast<std::size_t>(r)] == words_of(r, round);
    expect(same, "rank %d of %d has all words of round %d", rank, nranks, round);
    for (int r = 0; r < nranks; ++r) {
      int files[2] = {-1, -1};
      const int count = blink_bootstrap_descriptors(end->handle(), r, files, 2);
      const int expected = round == 1 && descriptors && r != 1 ? (r == 2 ? 2 : 1) : 0;
      expect(count == expected, "rank %d has %d files of rank %d, expected %d", rank, count, r, expected);
      for (int i = 0; i < count; ++i) {
        unsigned char byte = 255;
        expect(pread(files[i], &byte, 1, 0) == 1 && byte == r, "the file of rank %d", r);
        expect((fcntl(files[i], F_GETFD) & FD_CLOEXEC) != 0, "it is closed on exec");
        close(files[i]);
      }
      expect(blink_bootstrap_descriptors(end->handle(), r, files, 2) == 0, "and they are taken once");
    }
  }
}

void all_meet(Way way, int nranks) {
  auto ends = ends_of(way, fresh_token(), nranks);
  on_threads(nranks, [&](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    pause_ms(static_cast<int>(random() % 30));
    take_part(&ends[static_cast<std::size_t>(rank)], nranks, rank, 5, way != Way::kTcp);
  });
}

// Several groups of the same threads in parallel, in different orders; ranks that come within the grace are not
// missing.
void several_at_once() {
  constexpr int kRanks = 3, kGroups = 4;
  std::vector<std::string> tokens;
  for (int g = 0; g < kGroups; ++g) tokens.push_back(fresh_token());
  on_threads(kRanks * kGroups, [&](int i) {
    const int group = i % kGroups, rank = i / kGroups;
    if (group == rank) pause_ms(300);  // one group has no late rank
    Rank end = announced(tokens[static_cast<std::size_t>(group)], rank, kRanks);
    take_part(&end, kRanks, rank, 3);
  });
}

// All ranks but `missing` come, some of them late; every rank gets the missing one, also the late ranks.
void one_is_missing(int missing, double grace_s) {
  constexpr int kRanks = 4;
  auto ends = ends_of(Way::kAnnounced, fresh_token(), kRanks, missing);
  const std::vector<int> here = all_but(kRanks, missing);
  on_threads(kRanks, [&](int rank) {
    if (rank == missing) return;
    if (rank == 2) pause_ms(100);
    ends[static_cast<std::size_t>(rank)].gather("words", grace_s);
  });
  for (const int rank : here) {
    const Rank& end = ends[static_cast<std::size_t>(rank)];
    expect(end.status == BLINK_BOOTSTRAP_TIMEOUT && end.missing == std::vector<std::int32_t>{missing} &&
               contains(end.cause.text, "rank " + std::to_string(missing) + " does not answer on this host"),
           "missing: rank %d says %d '%s'", rank, end.status, end.cause.text);
  }
  // The error is permanent.
  for (const int rank : here) expect(!ends[static_cast<std::size_t>(rank)].gather("again"), "the error is permanent");
}

// A rank that connects but never sends: it is named at the deadline. A client with an earlier deadline ends it for all.
void one_is_stalled(Way way, int stalled, int hurried) {
  constexpr int kRanks = 4;
  auto ends = ends_of(way, fresh_token(), kRanks);
  on_threads(kRanks, [&](int rank) {
    if (rank != stalled) ends[static_cast<std::size_t>(rank)].gather("words", 5, rank == hurried ? 0.5 : kShortS);
  });
  for (const int rank : all_but(kRanks, stalled)) {
    const Rank& end = ends[static_cast<std::size_t>(rank)];
    expect(end.status == BLINK_BOOTSTRAP_TIMEOUT && end.missing == std::vector<std::int32_t>{stalled},
           "stalled %d: rank %d says %d '%s', missing %d", stalled, rank, end.status, end.cause.text,
           end.missing.empty() ? -1 : end.missing[0]);
  }
  expect(!ends[static_cast<std::size_t>(stalled)].gather("late", 0, kShortS), "the stalled rank gets the error too");
}

void ranks_disagree() {
  const std::string token = fresh_token();
  std::vector<Rank> ends;
  for (const int rank : {0, 1, 2}) ends.push_back(announced(token, rank, rank == 0 ? 3 : 5));
  on_threads(3, [&](int rank) { ends[static_cast<std::size_t>(rank)].gather("words"); });
  for (const Rank& end : ends) {
    expect(end.status == BLINK_BOOTSTRAP_MISMATCH && contains(end.cause.text, "disagree on world_size: rank 0") &&
               contains(end.cause.text, "has 3") && contains(end.cause.text, "has 5"),
           "disagree: %d '%s'", end.status, end.cause.text);
  }
}

// Too many bytes, invalid descriptors, too many of them, or descriptors for another host.
void one_gives_too_much() {
  const std::string longest(BLINK_BOOTSTRAP_BYTES, 'x');
  for (const int culprit : {0, 2}) {
    for (const int what : {0, 1, 2, 3}) {
      auto ends = ends_of(what == 3 ? Way::kTcp : Way::kAddress, fresh_token(), 3);
      on_threads(3, [&](int rank) {
        Rank& end = ends[static_cast<std::size_t>(rank)];
        expect(end.gather(longest), "the largest contribution is accepted: %s", end.cause.text);
        std::vector<int> files(what == 2 ? 150 : 0, 0);
        if (rank == culprit && (what == 1 || what == 3)) files = {what == 1 ? 1000000 : 0};
        end.gather(rank == culprit && what == 0 ? longest + "x" : longest, 5, kLongS, files);
      });
      const int whose = what == 2 ? 0 : what == 3 && culprit == 0 ? 0 : culprit;
      const char* const words[] = {"65537 bytes", "cannot share its descriptors", "share 450 descriptors",
                                   "cannot travel to ranks on other hosts"};
      expect_cause("too much", ends, {0, 1, 2}, BLINK_BOOTSTRAP_FAILED, whose, words[what]);
    }
  }
}

// A rank as a process that is killed between rounds, with the others as threads. All report it and its process, also if
// the `hasty` rank takes rank 2 for the lost one.
void one_dies(int dying, int rounds_before, int hasty = -1) {
  constexpr int kRanks = 4;
  const std::string token = fresh_token();
  int ready[2];
  expect(pipe2(ready, O_CLOEXEC) == 0, "a pipe");
  const pid_t pid = fork();  // before any thread starts
  if (pid == 0) {
    Rank end = announced(token, dying, kRanks);
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (int round = 0; round < rounds_before; ++round) end.gather("words");
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();  // until the kill
    _exit(0);
  }
  auto ends = ends_of(Way::kAnnounced, token, kRanks, dying);
  char byte;
  expect(read(ready[0], &byte, 1) == 1, "the rank has connected");
  on_threads(kRanks, [&](int rank) {
    if (rank == dying) {
      expect(read(ready[0], &byte, 1) == 1, "the rank that will die has met the others");
      pause_ms(100);
      kill(pid, SIGKILL);
      return;
    }
    Rank& end = ends[static_cast<std::size_t>(rank)];
    for (int round = 0; round < rounds_before; ++round) {
      expect(end.gather("words"), "round %d: %s", round, end.cause.text);
    }
    if (hasty >= 0) pause_ms(rank == hasty ? 200 : 300);
    if (rank == hasty) return end.fail(BLINK_BOOTSTRAP_LOST, 2, "it hung up");
    end.gather("words");
  });
  waitpid(pid, nullptr, 0);
  for (const int file : ready) close(file);
  const std::vector<int> others = all_but(kRanks, dying);
  if (rounds_before == 0) {  // it had sent nothing, so its process is unknown
    for (const int rank : others) {
      const Rank& end = ends[static_cast<std::size_t>(rank)];
      expect(end.status == BLINK_BOOTSTRAP_TIMEOUT || end.status == BLINK_BOOTSTRAP_LOST, "rank %d: %d %s", rank,
             end.status, end.cause.text);
    }
    return;
  }
  expect_cause("dies", ends, others, BLINK_BOOTSTRAP_LOST, dying, "its process ended");
  for (const int rank : others) {
    expect(ends[static_cast<std::size_t>(rank)].cause.pid == pid, "rank %d names process %d, expected %d", rank,
           ends[static_cast<std::size_t>(rank)].cause.pid, pid);
  }
}

// The failure that one rank reports between rounds reaches all ranks, and only the first cause does.
void one_gives_up() {
  for (const int culprit : {0, 1, 3}) {
    auto ends = ends_of(Way::kAddress, fresh_token(), 4);
    on_threads(4, [&](int rank) {
      Rank& end = ends[static_cast<std::size_t>(rank)];
      expect(end.gather("words"), "all meet: %s", end.cause.text);
      if (rank == culprit) {
        end.fail(BLINK_BOOTSTRAP_FAILED, culprit, "no memory");
      } else {
        end.gather("more words");
      }
    });
    expect_cause("gives up", ends, {0, 1, 2, 3}, BLINK_BOOTSTRAP_FAILED, culprit, "no memory");
  }
  // Rank 2 has failed, and ranks 1 and 0 detect its end before they get the reason.
  auto ends = ends_of(Way::kAddress, fresh_token(), 3);
  on_threads(3, [&](int rank) {
    Rank& end = ends[static_cast<std::size_t>(rank)];
    expect(end.gather("words"), "all meet: %s", end.cause.text);
    if (rank == 1) pause_ms(50);
    if (rank == 0) pause_ms(200);
    if (rank == 2) end.fail(BLINK_BOOTSTRAP_FAILED, 2, "a mistake of its own");
    if (rank != 2) end.fail(BLINK_BOOTSTRAP_LOST, 2, "it hung up");
  });
  expect_cause("first cause", ends, {0, 1, 2}, BLINK_BOOTSTRAP_FAILED, 2, "a mistake of its own");
  // A rank that left in order is not lost.
  auto left = ends_of(Way::kAddress, fresh_token(), 3);
  on_threads(3, [&](int rank) {
    Rank& end = left[static_cast<std::size_t>(rank)];
    expect(end.gather("words"), "all meet: %s", end.cause.text);
    if (rank == 1) return end.leave();
    pause_ms(50);
    end.fail(BLINK_BOOTSTRAP_FAILED, rank, "interrupted");
  });
  expect(contains(left[0].cause.text, "interrupted"), "rank 1 left in order: %s", left[0].cause.text);
}

// A rank of this test that follows the protocol up to a point.
class Puppet {
 public:
  Puppet(const std::string& address, const std::string& token, int rank, int size) {
    Socket socket = connect_to_name(address.substr(5));
    expect(socket.open(), "a puppet finds rank 0");
    channel_ = std::make_unique<Channel>(std::move(socket), 1 << 20);
    channel_->trust(1 << 20);
    channel_->send(Frame::kHello, 0, own_hello(token, rank, size).packed());
  }
  void words() { channel_->send(Frame::kWords, 1, packed({{"puppet", 0}})); }
  void ack() { channel_->send(Frame::kAck, 1, ""); }
  bool await(Frame::Type type) {
    Frame frame;
    const Deadline deadline(10);
    while (!deadline.passed()) {
      const Channel::Got got = channel_->take(&frame);
      if (got == Channel::Got::kFrame) return frame.type == type;
      if (got == Channel::Got::kGone) return false;
      std::vector<pollfd> set = {{channel_->get(), POLLIN, 0}};
      wait_for(&set, 100);
    }
    return false;
  }
  void leave() { channel_.reset(); }

 private:
  std::unique_ptr<Channel> channel_;
};

// The moment in a round at which the rank ends: no rank has used the data before the commit.
enum class Moment { kAfterHello, kAfterWords, kAgain, kAfterVerdict, kNever, kNoAck };

void one_leaves_at(Moment moment) {
  constexpr int kRanks = 4, kPuppet = 2;
  const std::string token = fresh_token();
  auto ends = ends_of(Way::kAddress, token, kRanks, kPuppet);
  const std::string address = blink_bootstrap_address(ends[0].handle());
  on_threads(kRanks, [&](int rank) {
    if (rank == kPuppet) {
      auto puppet = std::make_unique<Puppet>(address, token, rank, kRanks);
      if (moment == Moment::kAfterHello) return puppet->leave();
      puppet->words();
      if (moment == Moment::kAgain) {  // it dies, and is restarted within a second
        pause_ms(50);
        puppet->leave();
        pause_ms(50);
        puppet = std::make_unique<Puppet>(address, token, rank, kRanks);
        puppet->words();
      }
      if (moment == Moment::kAfterWords) return puppet->leave();
      expect(puppet->await(Frame::kVerdict), "the puppet gets a verdict");
      if (moment == Moment::kAfterVerdict) return puppet->leave();
      if (moment == Moment::kNoAck) {
        expect(puppet->await(Frame::kAbort), "the puppet gets the error");
        return;
      }
      puppet->ack();
      expect(puppet->await(Frame::kCommit), "the puppet gets the commit");
      return;
    }
    // Keeps the round open until then.
    if ((moment == Moment::kAfterWords || moment == Moment::kAgain) && rank == 3) pause_ms(200);
    ends[static_cast<std::size_t>(rank)].gather("words", 1, moment == Moment::kNoAck ? kShortS : kLongS);
  });
  if (moment == Moment::kNever || moment == Moment::kAgain) {
    for (const int rank : {0, 1, 3}) {
      const Rank& end = ends[static_cast<std::size_t>(rank)];
      expect(end.status == BLINK_BOOTSTRAP_OK && end.all[kPuppet] == "puppet", "rank %d: %s", rank, end.cause.text);
    }
  } else if (moment == Moment::kNoAck) {
    expect_cause("no ack", ends, {0, 1, 3}, BLINK_BOOTSTRAP_TIMEOUT, -1, "rank 2 has not confirmed");
  } else {
    expect_cause("leaves", ends, {0, 1, 3}, BLINK_BOOTSTRAP_LOST, kPuppet, "its process ended");
  }
}

// Strangers: silence, noise, half a frame, an endless frame, a hello with another token or an invalid rank,
// descriptors, a crowd; and, for root, another user. None of them harms the group, and none gets a reply.
void strangers_come(Way way) {
  constexpr int kRanks = 3;
  const std::string token = fresh_token(), noise = std::string(1000, '\xff');
  auto ends = ends_of(way, token, kRanks, 1);
  const std::string address = blink_bootstrap_address(ends[0].handle());
  const auto reach = [&] { return way == Way::kTcp ? connect_to_port(address.substr(4)) : connect_to_name(address.substr(5)); };
  const auto frame_of = [](Frame::Type type, std::uint32_t bytes, const std::string& body) {
    const std::uint32_t head[4] = {0x324b4c42, type, 1, bytes};
    return std::string(reinterpret_cast<const char*>(head), sizeof head) + body;
  };
  const auto hello_from = [&](int rank, int size, const std::string& whose) {
    const std::string body = own_hello(whose, rank, size).packed();
    return frame_of(Frame::kHello, static_cast<std::uint32_t>(body.size()), body);
  };
  const std::string other(BLINK_BOOTSTRAP_TOKEN, 'f');
  std::vector<Socket> strangers;
  const std::vector<std::string> sayings = {
      "", noise, "BL", frame_of(Frame::kHello, 0xffffffffu, "x"), frame_of(Frame::kAbort, 100, std::string(100, '0')),
      hello_from(1, kRanks, other), hello_from(1, 7, other), hello_from(kRanks, kRanks, token),
      frame_of(Frame::kAck, 0, ""), frame_of(Frame::kLeave, 0, "")};
  for (const std::string& what : sayings) {
    Socket socket = reach();
    if (!expect(socket.open(), "a stranger finds rank 0")) continue;
    std::vector<pollfd> set = {{socket.get(), POLLOUT, 0}};
    expect(wait_for(&set, 1000), "a stranger is connected");
    if (!what.empty()) expect(send(socket.get(), what.data(), what.size(), MSG_NOSIGNAL) > 0, "and speaks");
    strangers.push_back(std::move(socket));
  }
  {
    Channel generous(reach(), 100);
    if (way != Way::kTcp) generous.send(Frame::kHello, 0, own_hello(other, 1, kRanks).packed(), std::vector<int>(200, 0));
    for (int i = 0; i < 200; ++i) strangers.push_back(reach());
  }
  // A stranger that connects and disconnects all the time.
  std::atomic<bool> over{false};
  std::thread visitor([&] {
    while (!over) {
      Socket socket = reach();
      if (socket.open()) send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
      pause_ms(1);
    }
  });
  on_threads(kRanks, [&](int rank) {
    Rank& end = ends[static_cast<std::size_t>(rank)];
    if (rank == 1) {
      pause_ms(200);
      blink_bootstrap_reason reason{};
      Rank late(blink_bootstrap_connect(address.c_str(), token.c_str(), 1, kRanks, &reason), kRanks);
      return take_part(&late, kRanks, 1, 3, way != Way::kTcp);
    }
    take_part(&end, kRanks, rank, 3, way != Way::kTcp);
  });
  over = true;
  visitor.join();
  for (const Socket& stranger : strangers) {
    char byte;
    expect(recv(stranger.get(), &byte, 1, 0) <= 0, "a stranger gets no answer");
  }
}

// At a port, a rank that comes after a failure gets its cause, and a rank 0 that reaches itself disturbs nobody.
void late_and_again_at_a_port() {
  const std::string token = fresh_token();
  auto ends = ends_of(Way::kTcp, token, 4, 3);
  const std::string address = blink_bootstrap_address(ends[0].handle());
  blink_bootstrap_reason reason{};
  Rank itself(blink_bootstrap_connect(address.c_str(), token.c_str(), 0, 4, &reason), 4);
  ends[3] = Rank(blink_bootstrap_connect(address.c_str(), token.c_str(), 2, 4, &reason), 4);
  Rank late(nullptr, 4);
  on_threads(6, [&](int rank) {
    if (rank == 4) {
      pause_ms(400);
      late = Rank(blink_bootstrap_connect(address.c_str(), token.c_str(), 3, 4, &reason), 4);
      late.gather("late");
      return;
    }
    if (rank == 3) pause_ms(100);
    (rank == 5 ? itself : ends[static_cast<std::size_t>(rank)]).gather("words", 5, rank == 5 ? 0.5 : kLongS);
  });
  expect_cause("twice", ends, {0, 1, 2, 3}, BLINK_BOOTSTRAP_MISMATCH, 2, "rank 2 is claimed by process");
  expect(late.status == BLINK_BOOTSTRAP_MISMATCH && contains(late.cause.text, "rank 2 is claimed by process"),
         "late: %d '%s'", late.status, late.cause.text);
  expect(itself.status == BLINK_BOOTSTRAP_LOST, "itself: %d '%s'", itself.status, itself.cause.text);
}

// Another program's server at the port is named at once.
void a_foreign_server_is_named() {
  int port = 0;
  const Socket server = listen_at_port("127.0.0.1:0", &port);
  const std::string address = "tcp:127.0.0.1:" + std::to_string(port), answer = "HTTP/1.1 400 Bad Request\r\n";
  blink_bootstrap_reason reason{};
  Rank rank(blink_bootstrap_connect(address.c_str(), fresh_token().c_str(), 1, 2, &reason), 2);
  std::thread answering([&] {
    Others others;
    Socket caller;
    while (!caller.open()) caller = accept_from(server, &others);
    send(caller.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    pause_ms(300);
  });
  expect(!rank.gather("words") && rank.status == BLINK_BOOTSTRAP_FAILED && contains(rank.cause.text, "is not rank 0"),
         "%d '%s'", rank.status, rank.cause.text);
  answering.join();
}

// Forks before any thread. Another user is disconnected at once, and rank 0 reports that after its timeout.
void another_user_comes() {
  if (geteuid() != 0) return;
  const std::string token = fresh_token();
  auto ends = ends_of(Way::kAddress, token, 2, 1);
  const std::string address = blink_bootstrap_address(ends[0].handle());
  const pid_t pid = fork();
  if (pid == 0) {
    if (setuid(54321) != 0) _exit(1);
    blink_bootstrap_reason reason{};
    blink_bootstrap* const refused = blink_bootstrap_connect(address.c_str(), token.c_str(), 1, 2, &reason);
    if (refused != nullptr || !contains(reason.text, "another user listens there")) _exit(2);
    // A client that ignores the identity of the listener.
    const int rude = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_storage place{};
    place.ss_family = AF_UNIX;
    const std::string name = address.substr(5);
    std::memcpy(reinterpret_cast<char*>(&place) + 3, name.data(), name.size());
    if (connect(rude, reinterpret_cast<sockaddr*>(&place), static_cast<socklen_t>(3 + name.size())) != 0) _exit(3);
    char byte;
    _exit(recv(rude, &byte, 1, 0) == 0 ? 0 : 4);
  }
  expect(!ends[0].gather("words", 5, 0.5), "rank 1 has not come");
  int status = -1;
  waitpid(pid, &status, 0);
  expect(status == 0, "another user's process ended with %d", status);
  expect(contains(ends[0].cause.text, "of user 54321, expected user 0"), "%s", ends[0].cause.text);
}

// A forked child that closes its copies disturbs no rank.
void a_child_lets_go() {
  auto ends = ends_of(Way::kAddress, fresh_token(), 2);
  const pid_t pid = fork();
  if (pid == 0) {
    for (Rank& end : ends) end.leave();
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
  on_threads(2, [&](int rank) { take_part(&ends[static_cast<std::size_t>(rank)], 2, rank, 3); });
}

int open_descriptors() {
  int count = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) count += fcntl(descriptor, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

void names_and_limits() {
  blink_bootstrap_reason reason{};
  const std::string token = fresh_token();
  {
    const Rank first = announced(token, 0, 2);
    expect(blink_bootstrap_announce(token.c_str(), 0, 2, &reason) == nullptr && contains(reason.text, "another process on this host is rank 0"),
           "one rank 0 only: %s", reason.text);
  }
  for (const auto& [rank, size] : std::vector<std::pair<int, int>>{{-1, 2}, {2, 2}, {0, 0}, {0, 5000}}) {
    expect(blink_bootstrap_announce(token.c_str(), rank, size, &reason) == nullptr, "no rank %d of %d", rank, size);
  }
  expect(blink_bootstrap_listen(nullptr, "short", 2, &reason) == nullptr && contains(reason.text, "64"), "no token");
  for (const char* const address : {"unix:blink-nobody", "tcp:nowhere", "tcp:127.0.0.1", "http:x", ""}) {
    expect(blink_bootstrap_connect(address, token.c_str(), 1, 2, &reason) == nullptr && reason.text[0] != '\0',
           "no rank listens at '%s'", address);
  }
  expect(blink_bootstrap_listen("127.0.0.1:99999", token.c_str(), 2, &reason) == nullptr, "no such port");
  // The first round detects a port without a server.
  Rank nobody(blink_bootstrap_connect("tcp:127.0.0.1:1", token.c_str(), 1, 2, &reason), 2);
  if (nobody.handle() != nullptr) {
    expect(!nobody.gather("words", 0, 5) && nobody.status == BLINK_BOOTSTRAP_LOST, "%d", nobody.status);
  }
}

}  // namespace

int main() {
  const int before = open_descriptors();
  // Tests that fork come first.
  another_user_comes();
  a_child_lets_go();
  for (const int rank : {0, 1, 3}) {
    one_dies(rank, 0);
    one_dies(rank, 1);
  }
  one_dies(0, 1, 1);
  one_dies(3, 1, 1);
  names_and_limits();
  for (const Way way : {Way::kAnnounced, Way::kAddress, Way::kTcp}) {
    for (const int nranks : {1, 2, 3, 8, 16}) all_meet(way, nranks);
  }
  several_at_once();
  for (const int rank : {0, 1, 3}) {
    one_is_missing(rank, 0);
    one_is_missing(rank, 0.2);
  }
  one_is_stalled(Way::kAnnounced, 0, -1);
  one_is_stalled(Way::kAddress, 1, -1);
  one_is_stalled(Way::kAddress, 3, 2);
  one_is_stalled(Way::kTcp, 3, -1);
  ranks_disagree();
  one_gives_too_much();
  one_gives_up();
  for (const Moment moment : {Moment::kAfterHello, Moment::kAfterWords, Moment::kAgain, Moment::kAfterVerdict,
                              Moment::kNever, Moment::kNoAck}) {
    one_leaves_at(moment);
  }
  strangers_come(Way::kAddress);
  strangers_come(Way::kTcp);
  late_and_again_at_a_port();
  a_foreign_server_is_named();
  expect(open_descriptors() == before, "%d descriptors are left open", open_descriptors() - before);
  return verdict();
}
