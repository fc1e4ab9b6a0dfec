// Do all ranks leave a meeting with the same answer? Ranks as threads and as processes, with one that is missing,
// stalled, of another opinion, or dies, and with strangers at the door.
// Sanitizers: address, thread.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "frames.h"
#include "meeting.h"
#include "sha256.h"

namespace {

using namespace blink_test;
using namespace blink::shim;

constexpr double kLongS = 60, kShortS = 2.0;

std::string fresh_key() {
  static std::atomic<int> count{0};
  const std::string text = std::to_string(getpid()) + "-" + std::to_string(++count);
  return key_of(text.data(), text.size());
}

std::unique_ptr<Meeting> announced(const std::string& key, int rank) {
  std::string why;
  auto meeting = Meeting::announce(key, rank, &why);
  expect(meeting != nullptr, "rank %d is announced: %s", rank, why.c_str());
  return meeting;
}

// As NCCL makes sure of: all are announced before the first meets the others. Without `but`.
std::vector<std::unique_ptr<Meeting>> all_announced(const std::string& key, int nranks, int but = -1) {
  std::vector<std::unique_ptr<Meeting>> meetings;
  for (int rank = 0; rank < nranks; ++rank) meetings.push_back(rank == but ? nullptr : announced(key, rank));
  return meetings;
}

// Each rank in a thread of its own.
void on_threads(int nranks, const std::function<void(int)>& rank) {
  std::vector<std::thread> threads;
  for (int r = 0; r < nranks; ++r) threads.emplace_back(rank, r);
  for (std::thread& thread : threads) thread.join();
}

struct Answer {
  bool good = false;
  std::string why;
  std::vector<std::string> all;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// False on all of `ranks`, and everybody's reason names `culprit`.
void expect_refused(const char* test, const std::vector<Answer>& answers, const std::vector<int>& ranks,
                    const std::string& culprit) {
  for (const int rank : ranks) {
    const Answer& answer = answers[static_cast<std::size_t>(rank)];
    expect(!answer.good && contains(answer.why, culprit), "%s: rank %d says %s '%s'; expected no and '%s'", test, rank,
           answer.good ? "yes" : "no", answer.why.c_str(), culprit.c_str());
  }
}

std::string card_of(int rank, int round) {
  std::string card = "card of " + std::to_string(rank) + " in " + std::to_string(round) + ":";
  if (rank % 3 == 1) card += std::string(static_cast<std::size_t>((rank * 7919 + round * 104729) % 65000), 'x');
  if (rank % 3 == 2 && round % 2 == 0) card.clear();
  return card;
}

// Rounds of cards with a descriptor in between, on one rank.
void take_part(Meeting* meeting, int nranks, int rank, int rounds) {
  std::string why;
  std::vector<std::string> all;
  for (int round = 0; round < rounds; ++round) {
    const bool good = meeting->exchange(nranks, card_of(rank, round), &all, 5, Deadline(kLongS), &why);
    if (!expect(good, "rank %d of %d, round %d: %s", rank, nranks, round, why.c_str())) return;
    bool same = static_cast<int>(all.size()) == nranks;
    for (int r = 0; same && r < nranks; ++r) same = all[static_cast<std::size_t>(r)] == card_of(r, round);
    expect(same, "rank %d of %d has all cards of round %d", rank, nranks, round);
    if (round != 1) continue;

    // A pipe of rank 0: every rank writes its number into it.
    int ends[2] = {-1, -1};
    if (rank == 0) expect(pipe2(ends, O_CLOEXEC) == 0, "a pipe");
    const int shared = meeting->share_descriptor(ends[1], Deadline(kLongS), &why);
    expect(shared >= 0 && shared != ends[1], "rank %d of %d has a descriptor: %s", rank, nranks, why.c_str());
    expect((fcntl(shared, F_GETFD) & FD_CLOEXEC) != 0, "it is closed on exec");
    const unsigned char number = static_cast<unsigned char>(rank);
    expect(write(shared, &number, 1) == 1, "rank %d writes", rank);
    close(shared);
    if (rank == 0) {
      close(ends[1]);
      std::set<int> seen;
      unsigned char byte;
      while (read(ends[0], &byte, 1) == 1) seen.insert(byte);
      expect(static_cast<int>(seen.size()) == nranks, "%zu of %d ranks wrote into the pipe", seen.size(), nranks);
      close(ends[0]);
    }
  }
}

void all_meet_on_threads(int nranks) {
  const std::string key = fresh_key();
  on_threads(nranks, [&](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    pause_ms(static_cast<int>(random() % 30));
    take_part(announced(key, rank).get(), nranks, rank, 5);
  });
}

// Several communicators of the same threads at once, in different orders.
void several_at_once() {
  constexpr int kRanks = 3, kComms = 4;
  std::vector<std::string> keys;
  for (int c = 0; c < kComms; ++c) keys.push_back(fresh_key());
  on_threads(kRanks * kComms, [&](int i) {
    const int comm = i % kComms, rank = i / kComms;
    take_part(announced(keys[static_cast<std::size_t>(comm)], rank).get(), kRanks, rank, 3);
  });
}

// Ranks as processes; the exit codes say what they saw.
void all_meet_as_processes() {
  constexpr int kRanks = 4;
  const std::string key = fresh_key();
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      failures = 0;
      take_part(announced(key, rank).get(), kRanks, rank, 4);
      _exit(failures == 0 ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    waitpid(pid, &status, 0);
    expect(status == 0, "a rank as a process ended with %d", status);
  }
}

std::vector<int> all_but(int nranks, int but) {
  std::vector<int> ranks;
  for (int rank = 0; rank < nranks; ++rank) {
    if (rank != but) ranks.push_back(rank);
  }
  return ranks;
}

// All but `missing` come, some of them late; everybody hears who is missing, the late ones too.
void one_is_missing(int missing, double grace_s) {
  constexpr int kRanks = 4;
  const std::string key = fresh_key();
  std::vector<Answer> answers(kRanks);
  const auto meetings = all_announced(key, kRanks, missing);
  const std::vector<int> here = all_but(kRanks, missing);
  on_threads(kRanks, [&](int rank) {
    if (rank == missing) return;
    if (rank == 2) pause_ms(100);
    const auto i = static_cast<std::size_t>(rank);
    Answer& answer = answers[i];
    answer.good = meetings[i]->exchange(kRanks, "card", &answer.all, grace_s, Deadline(kLongS), &answer.why);
  });
  expect_refused("missing", answers, here, "rank " + std::to_string(missing) + " is not here");
  // And so it stays.
  for (const int rank : here) {
    std::string why;
    const auto& meeting = meetings[static_cast<std::size_t>(rank)];
    const bool good = meeting->exchange(kRanks, "card", &answers[0].all, 0, Deadline(kLongS), &why);
    expect(!good && !why.empty(), "still false");
    expect(meeting->share_descriptor(0, Deadline(kLongS), &why) == -1, "no descriptor either");
  }
}

// A rank that comes within the grace is not missing.
void one_is_late(int late) {
  constexpr int kRanks = 3;
  const std::string key = fresh_key();
  on_threads(kRanks, [&](int rank) {
    if (rank == late) pause_ms(300);
    take_part(announced(key, rank).get(), kRanks, rank, 1);
  });
}

// Announced, but it never comes to the exchange.
void one_is_stalled(int stalled) {
  constexpr int kRanks = 4;
  const std::string key = fresh_key();
  std::vector<Answer> answers(kRanks);
  const auto meetings = all_announced(key, kRanks);
  on_threads(kRanks, [&](int rank) {
    if (rank == stalled) return;
    const auto i = static_cast<std::size_t>(rank);
    const Deadline deadline(kShortS);
    answers[i].good = meetings[i]->exchange(kRanks, "card", &answers[i].all, 5, deadline, &answers[i].why);
  });
  expect_refused("stalled", answers, all_but(kRanks, stalled), "rank " + std::to_string(stalled));
  std::vector<std::string> all;
  std::string why;
  const auto& late = meetings[static_cast<std::size_t>(stalled)];
  const bool good = late->exchange(kRanks, "card", &all, 0, Deadline(kShortS), &why);
  expect(!good && !why.empty(), "the stalled rank, too, in the end");
}

void ranks_disagree() {
  const std::string key = fresh_key();
  std::vector<Answer> answers(3);
  const auto meetings = all_announced(key, 3);
  on_threads(3, [&](int rank) {
    Answer& answer = answers[static_cast<std::size_t>(rank)];
    const auto& meeting = meetings[static_cast<std::size_t>(rank)];
    answer.good = meeting->exchange(rank == 0 ? 3 : 5, "card", &answer.all, 5, Deadline(kLongS), &answer.why);
  });
  expect_refused("disagree", answers, {0, 1, 2}, "3 ranks");
  expect_refused("disagree", answers, {0, 1, 2}, "5");
}

void different_calls() {
  const std::string key = fresh_key();
  std::vector<Answer> answers(3);
  on_threads(3, [&](int rank) {
    const auto meeting = announced(key, rank);
    Answer& answer = answers[static_cast<std::size_t>(rank)];
    expect(meeting->exchange(3, "card", &answer.all, 5, Deadline(kLongS), &answer.why), "the first round");
    if (rank == 2) {
      answer.good = meeting->share_descriptor(-1, Deadline(kLongS), &answer.why) >= 0;
    } else {
      answer.good = meeting->exchange(3, "card", &answer.all, 5, Deadline(kLongS), &answer.why);
    }
  });
  expect_refused("different calls", answers, {0, 1, 2}, "different calls");
}

// A card that is too large, or a descriptor that is none, ends it for all.
void one_refuses(int culprit, bool with_descriptor) {
  const std::string key = fresh_key();
  std::vector<Answer> answers(3);
  on_threads(3, [&](int rank) {
    const auto meeting = announced(key, rank);
    Answer& answer = answers[static_cast<std::size_t>(rank)];
    expect(meeting->exchange(3, "card", &answer.all, 5, Deadline(kLongS), &answer.why), "the first round");
    const std::string card(rank == culprit ? kMostCardBytes + 1 : kMostCardBytes, 'x');
    answer.good = with_descriptor ? meeting->share_descriptor(-1, Deadline(kLongS), &answer.why) >= 0
                                  : meeting->exchange(3, card, &answer.all, 5, Deadline(kLongS), &answer.why);
  });
  expect_refused("refuses", answers, {0, 1, 2}, with_descriptor ? "no descriptor" : std::to_string(kMostCardBytes + 1));
}

// A rank as a process that is killed between rounds, or leaves without a word; the others are threads here.
void one_dies(int dying, int rounds_before) {
  constexpr int kRanks = 4;
  const std::string key = fresh_key();
  int ready[2];
  expect(pipe2(ready, O_CLOEXEC) == 0, "a pipe");
  const pid_t pid = fork();  // before there are threads
  if (pid == 0) {
    std::string why;
    std::vector<std::string> all;
    const auto meeting = Meeting::announce(key, dying, &why);
    bool good = meeting != nullptr;
    for (int round = 0; good && round < rounds_before; ++round) {
      good = meeting->exchange(kRanks, "card", &all, 5, Deadline(kLongS), &why);
    }
    if (write(ready[1], &good, 1) != 1) _exit(1);
    pause();  // until it is killed
    _exit(0);
  }
  std::vector<Answer> answers(kRanks);
  const auto meetings = all_announced(key, kRanks, dying);
  on_threads(kRanks, [&](int rank) {
    if (rank == dying) {
      bool good = false;
      expect(read(ready[0], &good, 1) == 1 && good, "the rank that will die has met the others");
      pause_ms(100);
      kill(pid, SIGKILL);
      return;
    }
    const auto& meeting = meetings[static_cast<std::size_t>(rank)];
    Answer& answer = answers[static_cast<std::size_t>(rank)];
    for (int round = 0; round < rounds_before; ++round) {
      expect(meeting->exchange(kRanks, "card", &answer.all, 5, Deadline(kLongS), &answer.why), "round %d", round);
    }
    answer.good = meeting->exchange(kRanks, "card", &answer.all, 5, Deadline(kLongS), &answer.why);
  });
  waitpid(pid, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  expect_refused("dies", answers, all_but(kRanks, dying), "rank " + std::to_string(dying));
}

// A rank of our own making that speaks the protocol up to a point.
class Puppet {
 public:
  Puppet(const std::string& key, int rank, int nranks) : hash_(hash_of(key)) {
    listener_ = listen_as(hash_, rank);
    Introduction introduction{};
    introduction.rank = static_cast<std::uint32_t>(rank);
    introduction.nranks = static_cast<std::uint32_t>(nranks);
    introduction.purpose = Purpose::kCards;
    std::memcpy(introduction.hash, hash_.data(), kHashDigits);
    card_ = introduced(introduction, "puppet");
    for (int i = 0; i < 500 && channel_ == nullptr; ++i) {
      Socket socket = connect_to(hash_, 0);
      if (socket.open()) channel_ = std::make_unique<Channel>(std::move(socket), 1 << 20, true);
      if (channel_ == nullptr) pause_ms(10);
    }
    expect(channel_ != nullptr, "a puppet finds rank 0");
  }
  static std::string hash_of(const std::string& key) {
    const std::string text = "7:meeting" + std::to_string(key.size()) + ":" + key;
    return sha256(text.data(), text.size());
  }
  void card() { channel_->send(Frame::kCard, 1, card_); }
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
  void leave() {
    channel_.reset();
    listener_.close();
  }

 private:
  std::string hash_, card_;
  Socket listener_;
  std::unique_ptr<Channel> channel_;
};

// Where in a round the rank goes: nobody has acted upon anything before the commit.
enum class Moment { kBeforeCard, kAfterCard, kAfterVerdict, kNever, kNoAck };

void one_leaves_at(Moment moment) {
  constexpr int kRanks = 4, kPuppet = 2;
  const std::string key = fresh_key();
  std::vector<Answer> answers(kRanks);
  const auto meetings = all_announced(key, kRanks, kPuppet);
  on_threads(kRanks, [&](int rank) {
    if (rank == kPuppet) {
      Puppet puppet(key, rank, kRanks);
      if (moment == Moment::kBeforeCard) return puppet.leave();
      puppet.card();
      if (moment == Moment::kAfterCard) return puppet.leave();
      expect(puppet.await(Frame::kVerdict), "the puppet gets a verdict");
      if (moment == Moment::kAfterVerdict) return puppet.leave();
      if (moment == Moment::kNoAck) {
        expect(puppet.await(Frame::kRefused), "the puppet hears that it is off");
        return;
      }
      puppet.ack();
      expect(puppet.await(Frame::kCommit), "the puppet hears that it counts");
      return;
    }
    if (moment == Moment::kAfterCard && rank == 3) pause_ms(200);  // so that the round cannot be over before
    Answer& answer = answers[static_cast<std::size_t>(rank)];
    const Deadline deadline(moment == Moment::kNoAck ? kShortS : kLongS);
    const auto& meeting = meetings[static_cast<std::size_t>(rank)];
    answer.good = meeting->exchange(kRanks, "card", &answer.all, 1, deadline, &answer.why);
  });
  if (moment == Moment::kNever) {
    for (const int rank : {0, 1, 3}) {
      const Answer& answer = answers[static_cast<std::size_t>(rank)];
      expect(answer.good && answer.all[kPuppet] == "puppet", "rank %d: %s", rank, answer.why.c_str());
    }
  } else {
    expect_refused("leaves", answers, {0, 1, 3}, "rank 2");
  }
}

// Strangers: silence, noise, half a frame, a frame of endless length, a card with another key, a rank too large, a
// second rank 1. None of them hurts.
void strangers_come() {
  constexpr int kRanks = 3;
  const std::string key = fresh_key(), hash = Puppet::hash_of(key);
  const auto meetings = all_announced(key, kRanks);

  std::vector<Socket> strangers;
  const auto stranger_says = [&](int to, const std::string& what) {
    Socket socket = connect_to(hash, to);
    if (!expect(socket.open(), "a stranger finds rank %d", to)) return;
    if (!what.empty()) expect(send(socket.get(), what.data(), what.size(), MSG_NOSIGNAL) > 0, "and speaks");
    strangers.push_back(std::move(socket));
  };
  const auto frame_of = [](Frame::Type type, std::uint32_t bytes, const std::string& body) {
    const std::uint32_t head[4] = {0x314b4c42, type, 1, bytes};
    return std::string(reinterpret_cast<const char*>(head), sizeof head) + body;
  };
  const auto card_from = [&](std::uint32_t rank, std::uint32_t nranks, const std::string& whose) {
    Introduction introduction{rank, nranks, Purpose::kCards, {}};
    std::memcpy(introduction.hash, whose.data(), kHashDigits);
    const std::string body = introduced(introduction, "stranger");
    return frame_of(Frame::kCard, static_cast<std::uint32_t>(body.size()), body);
  };
  const std::string noise = std::string(1000, '\xff');
  for (int to = 0; to < kRanks; ++to) {
    stranger_says(to, "");
    stranger_says(to, noise);
    stranger_says(to, "BL");
    stranger_says(to, frame_of(Frame::kCard, 0xffffffffu, "x"));
    stranger_says(to, frame_of(Frame::kRefused, 100, std::string(100, '0')));  // not our key
    stranger_says(to, card_from(1, kRanks, std::string(kHashDigits, '0')));
    stranger_says(to, card_from(1, 7, std::string(kHashDigits, '0')));
    stranger_says(to, card_from(kRanks, kRanks, hash));
    stranger_says(to, card_from(0, kRanks, hash));
    stranger_says(to, frame_of(Frame::kAck, 0, ""));
  }
  // One that comes and goes all the time.
  std::atomic<bool> over{false};
  std::thread visitor([&] {
    while (!over) {
      Socket socket = connect_to(hash, 0);
      if (socket.open()) send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
      pause_ms(1);
    }
  });
  on_threads(kRanks, [&](int rank) {
    if (rank == 1) pause_ms(100);
    take_part(meetings[static_cast<std::size_t>(rank)].get(), kRanks, rank, 3);
  });
  over = true;
  visitor.join();
}

// Nothing is left open, in whichever way a meeting has ended.
int open_descriptors() {
  int count = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) count += fcntl(descriptor, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

void names_and_limits() {
  std::string why;
  const std::string key = fresh_key();
  const auto first = announced(key, 0);
  expect(Meeting::announce(key, 0, &why) == nullptr && contains(why, "already"), "one rank 0 only: %s", why.c_str());
  expect(Meeting::announce(key, -1, &why) == nullptr && contains(why, "-1"), "no rank -1: %s", why.c_str());
  expect(Meeting::announce(key, kMostRanks, &why) == nullptr, "no rank 4096");
  expect(first->share_descriptor(0, Deadline(1), &why) == -1 && contains(why, "met"), "not before: %s", why.c_str());
  std::vector<std::string> all;
  expect(first->exchange(1, "alone", &all, 0, Deadline(1), &why) && all == std::vector<std::string>{"alone"}, "alone");
  const int mine = first->share_descriptor(0, Deadline(1), &why);
  expect(mine > 0, "a descriptor alone");
  close(mine);
  const auto second = announced(key, 1);
  expect(!second->exchange(1, "", &all, 0, Deadline(1), &why) && contains(why, "rank 1 of 1"), "%s", why.c_str());

  expect(derived_key("a", "bc") != derived_key("ab", "c"), "keys know where their parts end");
  expect(derived_key("a", "b") == derived_key("a", "b") && key_of("a", 1) != key_of("b", 1), "keys are a function");
  expect(sha256("abc", 3) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "the hash is SHA-256");
  const std::string two(64, 'a');
  expect(sha256(two.data(), 64) == "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb", "of a block");
}

}  // namespace

int main() {
  const int before = open_descriptors();
  // Those that fork first.
  all_meet_as_processes();
  for (const int rank : {0, 1, 3}) {
    one_dies(rank, 0);
    one_dies(rank, 1);
  }
  names_and_limits();
  for (const int nranks : {1, 2, 3, 8, 16}) all_meet_on_threads(nranks);
  several_at_once();
  for (const int rank : {0, 1, 3}) {
    one_is_missing(rank, 0);
    one_is_missing(rank, 0.2);
    one_is_late(rank % 3);
    one_is_stalled(rank);
  }
  ranks_disagree();
  different_calls();
  one_refuses(0, false);
  one_refuses(2, false);
  one_refuses(0, true);
  for (const Moment moment :
       {Moment::kBeforeCard, Moment::kAfterCard, Moment::kAfterVerdict, Moment::kNever, Moment::kNoAck}) {
    one_leaves_at(moment);
  }
  strangers_come();
  expect(open_descriptors() == before, "%d descriptors are left open", open_descriptors() - before);
  return verdict();
}
