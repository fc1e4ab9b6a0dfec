// All ranks use the same chunk for the same call, however far apart they run; and what else the page tells.
//
// Ranks are threads that run apart at random while rank 0 decides again and again. What each rank was told for each
// call is compared with the list of decisions afterwards. The same test must notice planted faults: a rank 0 that does
// not look again before it commits, and a rank that does not wait for the verdict.
// Sanitizers: thread.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shared_page.h"
#include "check.h"

namespace {

using namespace blink_test;
using namespace blink::shim;

constexpr std::uint64_t kInitial = 7;
using Decisions = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // from which call on, which chunk

// What is in force for a rank of an agreement, or in a search of a page. False: nothing is.
template <class Asked>
bool look_up(Asked&& asked, int which, std::uint64_t call, std::uint64_t* chunk) {
  Agreement::Reading reading;
  if (!asked.value_for(which, call, kInitial, &reading)) return false;
  *chunk = reading.value;
  return true;
}

// What call `call` must use.
std::uint64_t expected_chunk(const Decisions& decisions, std::uint64_t call) {
  std::uint64_t chunk = kInitial;
  for (const auto& [from, bytes] : decisions) {
    if (from <= call) chunk = bytes;
  }
  return chunk;
}

void dawdle(std::mt19937* random) {
  const unsigned kind = (*random)() % 64;
  if (kind < 24) return;
  if (kind < 60) {
    for (unsigned i = (*random)() % 200; i > 0; --i) std::atomic_signal_fence(std::memory_order_seq_cst);
  } else if (kind < 63) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds((*random)() % 300));
  }
}

// The ranks' memory, all in one process, so that the thread sanitizer sees it.
struct Memory {
  explicit Memory(int nranks) : reached(new Agreement::Line[2 * static_cast<std::size_t>(nranks)]()), ranks(nranks) {
    shared.proposed.value = shared.decided.value = 0;
    for (auto& decision : shared.decisions) decision.from = decision.value = 0;
  }
  Agreement agreement() { return {&shared, reached.get(), ranks}; }
  Agreement::Shared shared;
  std::unique_ptr<Agreement::Line[]> reached;
  int ranks;
};

enum class Fault { kNone, kNoSecondLook, kNoWait };

struct Told {
  long wrong = 0, calls = 0;
  std::size_t decisions = 0;
  long withdrawn = 0;
};

// One run. `decide` makes a decision in its own way and returns its call; `ask` asks as a rank.
template <class Ask, class Decide>
Told run_apart(int nranks, std::uint64_t calls, unsigned seed, const Ask& ask, const Decide& decide) {
  std::vector<std::vector<std::uint64_t>> told(static_cast<std::size_t>(nranks), std::vector<std::uint64_t>(calls));
  std::atomic<int> running{nranks};
  std::atomic<long> refused{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < nranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 random(seed * 1000 + static_cast<unsigned>(rank));
      for (std::uint64_t call = 0; call < calls; ++call) {
        // Now and then a rank falls far behind.
        if (random() % 1024 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 4));
        dawdle(&random);
        if (!ask(rank, call, &told[static_cast<std::size_t>(rank)][call])) ++refused;
      }
      --running;
    });
  }
  Told result;
  Decisions decisions;
  std::mt19937 random(seed);
  for (std::uint64_t chunk = 100; running > 0; ++chunk) {
    dawdle(&random);
    const std::uint64_t from = decide(chunk, &random);
    if (from != 0) {
      decisions.emplace_back(from, chunk);
    } else {
      ++result.withdrawn;
      sched_yield();
    }
  }
  for (std::thread& thread : threads) thread.join();
  expect(refused == 0, "%ld calls were refused though rank 0 lives", refused.load());

  std::size_t next = 0;
  std::uint64_t wanted = kInitial;
  for (std::uint64_t call = 0; call < calls; ++call) {
    while (next < decisions.size() && decisions[next].first <= call) wanted = decisions[next++].second;
    for (int rank = 0; rank < nranks; ++rank) {
      ++result.calls;
      result.wrong += told[static_cast<std::size_t>(rank)][call] != wanted ? 1 : 0;
    }
  }
  for (std::size_t i = 1; i < decisions.size(); ++i) {
    expect(decisions[i - 1].first <= decisions[i].first, "decisions are in order");
  }
  result.decisions = next;  // those that some call was under
  return result;
}

void pause_at_random() {
  static thread_local std::mt19937 random(1);
  if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
}

// With time between the steps of a decision, and a fault or none.
Told run_slowly(unsigned seed, Fault fault, std::uint64_t calls) {
  constexpr int kRanks = 4;
  Memory memory(kRanks);
  Agreement agreement = memory.agreement();
  const auto ask = [&](int rank, std::uint64_t call, std::uint64_t* chunk) {
    Agreement mine = memory.agreement();
    if (fault == Fault::kNoWait && rank == 1) {
      memory.reached[rank].value = call + 1;
      // It takes what is decided as it finds it.
      Memory copy(kRanks);
      copy.shared.decided.value = memory.shared.decided.value.load();
      for (std::size_t i = 0; i < kHistory; ++i) {
        copy.shared.decisions[i].from = memory.shared.decisions[i].from.load();
        copy.shared.decisions[i].value = memory.shared.decisions[i].value.load();
      }
      return look_up(copy.agreement(), rank, call, chunk);
    }
    return look_up(mine, rank, call, chunk);
  };
  const auto decide = [&](std::uint64_t chunk, std::mt19937*) -> std::uint64_t {
    if (fault != Fault::kNoSecondLook) return agreement.decide(chunk, pause_at_random);
    const std::uint64_t from = agreement.pick();
    if (from == 0) return 0;
    pause_at_random();
    agreement.propose(from);
    pause_at_random();
    agreement.commit(from, chunk);
    return from;
  };
  return run_apart(kRanks, calls, seed, ask, decide);
}

void ranks_agree() {
  long withdrawn = 0;
  std::size_t decisions = 0;
  for (unsigned seed = 1; seed <= kEffort; ++seed) {
    const Told told = run_slowly(seed, Fault::kNone, 6000);
    expect(told.wrong == 0, "seed %u: %ld of %ld calls had another chunk than decided", seed, told.wrong, told.calls);
    withdrawn += told.withdrawn;
    decisions += told.decisions;
  }
  expect(decisions > 20, "only %zu decisions counted", decisions);
  expect(withdrawn > 20, "only %ld proposals were withdrawn", withdrawn);
}

// Whether two ranks meet in the fault's window is luck: it takes as many tries as it takes, mostly a few.
void faults_are_noticed() {
  for (const Fault fault : {Fault::kNoSecondLook, Fault::kNoWait}) {
    long wrong = 0;
    for (unsigned seed = 1; seed <= 500 && wrong == 0; ++seed) wrong += run_slowly(seed, fault, 6000).wrong;
    expect(wrong > 0, "fault %d goes unnoticed", static_cast<int>(fault));
  }
}

// A rank that has made one call only still gets the right chunk for every later one, since nothing that it needs is
// overwritten.
void laggards_are_waited_for() {
  Memory memory(2);
  Agreement agreement = memory.agreement();
  std::uint64_t chunk = 0;
  expect(look_up(agreement, 1, 0, &chunk) && chunk == kInitial, "before any decision");
  Decisions decisions;
  std::uint64_t call = 0;
  const auto rank0_calls = [&](std::uint64_t upto) {
    for (; call <= upto; ++call) {
      const bool good = look_up(agreement, 0, call, &chunk);
      expect(good && chunk == expected_chunk(decisions, call), "rank 0 goes on");
    }
  };
  for (;;) {
    const std::uint64_t bytes = 100 + decisions.size();
    const std::uint64_t from = agreement.decide(bytes);
    if (from == 0) break;
    decisions.emplace_back(from, bytes);
    if (!expect(decisions.size() <= kHistory, "more decisions than there is room for")) return;
    rank0_calls(from + 1);
  }
  expect(decisions.size() == kHistory, "%zu decisions are kept", decisions.size());
  // Rank 1 comes to the call for which the second decision is used: then the first may go.
  const std::uint64_t last = call;
  for (std::uint64_t k = 1; k < last; ++k) {
    expect(look_up(agreement, 1, k, &chunk) && chunk == expected_chunk(decisions, k),
           "call %lu has chunk %lu, expected %lu", static_cast<unsigned long>(k), static_cast<unsigned long>(chunk),
           static_cast<unsigned long>(expected_chunk(decisions, k)));
    if (k > decisions[1].first || decisions.size() > kHistory) continue;
    const std::uint64_t from = agreement.decide(999);
    expect((from != 0) == (k >= decisions[1].first), "the oldest goes when the laggard is past it, at call %lu",
           static_cast<unsigned long>(k));
    if (from != 0) decisions.emplace_back(from, 999);
  }
  expect(decisions.size() == kHistory + 1, "one more decision in the end");
  rank0_calls(decisions.back().first);
}

// Rank 0 dies between its proposal and the verdict.
void nobody_waits_for_the_dead() {
  Memory memory(2);
  Agreement agreement = memory.agreement();
  std::uint64_t chunk = 0;
  expect(look_up(agreement, 1, 0, &chunk), "a call");
  const std::uint64_t from = agreement.pick();
  agreement.propose(from);
  for (std::uint64_t call = 1; call < from; ++call) {
    expect(look_up(agreement, 1, call, &chunk) && chunk == kInitial, "calls before it go on");
  }
  chunk = 0;
  expect(!look_up(agreement, 1, from, &chunk) && chunk == 0, "the call itself is given up");
}

// The slowest rank's word counts, and it counts for the decision that it was given under.
void measurements_are_gathered() {
  constexpr int kRanks = 3;
  Memory memory(kRanks);
  Agreement agreement = memory.agreement();
  expect(agreement.least_said(0) == 0, "nobody has measured anything");
  agreement.say(0, 0, 5.0f);
  agreement.say(2, 0, 7.0f);
  expect(agreement.least_said(0) == 0, "rank 1 has not said it yet");
  agreement.say(1, 0, 2.5f);
  expect(agreement.least_said(0) == 2.5f && agreement.least_said(1) == 0, "the least, of this decision");
  Agreement::Reading reading;
  for (std::uint64_t number = 1; number <= kHistory + 3; ++number) {
    const std::uint64_t from = agreement.decide(100 + number);
    for (int rank = 0; rank < kRanks; ++rank) {
      const bool good = agreement.value_for(rank, from, kInitial, &reading);
      expect(good && reading.value == 100 + number && reading.number == number, "decision %lu has its number",
             static_cast<unsigned long>(number));
      expect(agreement.least_said(number) == 0, "not all have measured it");
      agreement.say(rank, number, static_cast<float>(3 - rank));
    }
    expect(agreement.least_said(number) == 1.0f && agreement.least_said(number - 1) == 0, "the last one counts");
  }
}

void pages_tell() {
  constexpr int kRanks = 3;
  std::string why;
  const int descriptor = SharedPage::create(kRanks, 100000, &why);
  expect(descriptor >= 0 && (fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0, "a page: %s", why.c_str());
  expect(ftruncate(descriptor, 0) != 0, "its memory cannot be taken away");
  const auto first = SharedPage::map(dup(descriptor), kRanks, 0, &why);
  const auto second = SharedPage::map(dup(descriptor), kRanks, 1, &why);
  if (!expect(first != nullptr && second != nullptr, "mapped: %s", why.c_str())) return;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(first->memory());
  const auto word = reinterpret_cast<std::uintptr_t>(first->abort_word());
  expect(at % page == 0 && first->bytes() % page == 0 && first->bytes() > 0, "whole pages");
  expect(word >= at && word + sizeof(std::uint32_t) <= at + first->bytes(), "the abort word lies in them");
  expect(*first->abort_word() == 0, "nobody has given up");
  auto* const one = static_cast<char*>(first->staging());
  auto* const two = static_cast<char*>(second->staging());
  const std::size_t bytes = first->staging_bytes();
  expect(bytes >= 100000 && bytes == second->staging_bytes() && reinterpret_cast<std::uintptr_t>(one) % page == 0,
         "memory behind it, whole pages");
  one[bytes - 1] = 7;
  expect(two[0] == 0 && two[bytes - 1] == 7, "all see it, and it is zero at first");
  *second->abort_word() = 1;
  expect(*first->abort_word() == 1, "everybody sees who has");

  // The third rank is another process.
  const pid_t pid = fork();
  if (pid == 0) {
    const auto third = SharedPage::map(dup(descriptor), kRanks, 2, &why);
    if (third == nullptr || *third->abort_word() != 1 || third->all_done()) _exit(1);
    third->done();
    _exit(0);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  expect(status == 0, "a page in another process");
  first->done();
  expect(!first->all_done() && !second->all_done(), "one is not done");
  second->done();
  second->done();
  expect(first->all_done() && second->all_done(), "all are done");

  // Searches do not touch each other, and only rank 0 decides.
  first->say(200, 0, 4.0f);
  second->say(200, 0, 3.0f);
  expect(first->least_said(200, 0) == 0 && first->least_said(kSearches, 0) == 0, "the third has said nothing");
  std::uint64_t chunk = 0;
  expect(look_up(*second, 200, 0, &chunk) && chunk == kInitial, "before any decision");
  expect(second->decide(200, 9) == 0 && first->decide(kSearches, 9) == 0, "another rank, and no such search");
  const std::uint64_t from = first->decide(200, 9);
  expect(from > 0 && look_up(*second, 200, from, &chunk) && chunk == 9, "rank 0's chunk, seen by rank 1");
  expect(look_up(*second, 201, from, &chunk) && chunk == kInitial, "another search");
  expect(!look_up(*first, -1, 0, &chunk) && !look_up(*first, kSearches, 0, &chunk), "no such search");
  close(descriptor);
}

void bad_descriptors() {
  std::string why;
  const auto refused = [&](int descriptor, int nranks, int rank, const char* part) {
    why.clear();
    const bool is_null = SharedPage::map(descriptor, nranks, rank, &why) == nullptr;
    expect(is_null && why.find(part) != std::string::npos, "expected '%s', got '%s'", part, why.c_str());
    expect(descriptor < 0 || fcntl(descriptor, F_GETFD) < 0, "the descriptor is taken all the same");
  };
  expect(SharedPage::create(0, 0, &why) < 0 && SharedPage::create(5000, 0, &why) < 0, "from 1 to 4096 ranks");
  const int page = SharedPage::create(4, 1 << 20, &why);  // with room for the page of five
  refused(dup(page), 400, 0, "expected");
  refused(dup(page), 4, 4, "rank 4");
  refused(dup(page), 5, 0, "5 ranks");
  refused(-1, 4, 0, "fstat");
  refused(memfd_create("other", MFD_CLOEXEC), 4, 0, "expected");
  const off_t bytes = lseek(page, 0, SEEK_END);
  const int loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  expect(ftruncate(loose, bytes) == 0, "as large as a page");
  refused(dup(loose), 4, 0, "taken away");
  expect(fcntl(loose, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "sealed");
  refused(loose, 4, 0, "not one for 4 ranks");
  close(page);
}

}  // namespace

int main() {
  pages_tell();  // forks, so it comes before the threads
  bad_descriptors();
  laggards_are_waited_for();
  nobody_waits_for_the_dead();
  measurements_are_gathered();
  ranks_agree();
  faults_are_noticed();
  return verdict();
}
