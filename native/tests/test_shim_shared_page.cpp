// All ranks use the same chunk for the same call, however far apart they run. Also tests the other data of the page.
//
// Ranks are threads at random speeds, while rank 0 keeps deciding. The chunks of each rank and call are compared with
// the list of decisions afterwards. tests/models searches every execution of a short run, and with each step left out.
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
using Decisions = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // first call, and chunk from there

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

// The ranks' memory, all in one process for the thread sanitizer.
struct Memory {
  explicit Memory(int nranks) : measured(static_cast<std::size_t>(nranks)), ranks(nranks) {
    for (auto& decision : decisions) decision.word = decision.value = 0;
    for (auto& one : measured) one = 0;
  }
  Agreement agreement() { return {decisions, measured.data(), ranks}; }
  Agreement::Decision decisions[Agreement::kDecisions];
  std::vector<std::atomic<std::uint64_t>> measured;
  int ranks;
};

// The number of decisions that applied to a call, and of calls in which ranks used different chunks.
struct Told {
  std::size_t decisions = 0;
  long wrong = 0;
};

Told run_apart(unsigned seed) {
  constexpr int kRanks = 4;
  constexpr std::uint64_t kCalls = 3000;
  Memory memory(kRanks);
  std::vector<std::vector<std::uint64_t>> told(kRanks, std::vector<std::uint64_t>(kCalls));
  std::atomic<int> running{kRanks};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 random(seed * 1000 + static_cast<unsigned>(rank));
      for (std::uint64_t call = 0; call < kCalls; ++call) {
        // Sometimes a rank falls far behind.
        if (random() % 1024 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 4));
        dawdle(&random);
        told[static_cast<std::size_t>(rank)][call] = memory.agreement().value_for(call, kInitial).value;
      }
      --running;
    });
  }
  Decisions decisions;
  std::mt19937 random(seed);
  for (std::uint64_t chunk = 100; running > 0 && decisions.size() < Agreement::kDecisions; ++chunk) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
    const std::int64_t from = memory.agreement().decide(chunk);
    if (expect(from >= 0, "decision %zu is made", decisions.size())) decisions.emplace_back(from, chunk);
  }
  for (std::thread& thread : threads) thread.join();
  Told result;
  std::uint64_t wanted = kInitial;
  for (std::uint64_t call = 0; call < kCalls; ++call) {
    while (result.decisions < decisions.size() && decisions[result.decisions].first <= call) {
      wanted = decisions[result.decisions++].second;
    }
    for (const auto& rank : told) result.wrong += rank[call] != wanted ? 1 : 0;
  }
  for (std::size_t i = 1; i < decisions.size(); ++i) {
    expect(decisions[i - 1].first <= decisions[i].first, "decisions are in order");
  }
  return result;
}

void ranks_agree() {
  std::size_t decisions = 0;
  for (unsigned seed = 1; seed <= 4 * kEffort; ++seed) {
    const Told told = run_apart(seed);
    expect(told.wrong == 0, "seed %u: %ld calls had another chunk than decided", seed, told.wrong);
    decisions += told.decisions;
  }
  expect(decisions > 20, "only %zu decisions counted", decisions);
}

void one_after_the_other() {
  Memory memory(2);
  Agreement agreement = memory.agreement();
  expect(agreement.value_for(0, kInitial).value == kInitial && agreement.value_for(4, kInitial).number == 0, "none yet");
  expect(agreement.decide(100) == 5 && agreement.decide(101) == 5, "from the first call that no rank has made");
  expect(agreement.value_for(1, kInitial).value == kInitial && agreement.value_for(4, kInitial).value == kInitial,
         "a laggard goes on as all others did");
  const Agreement::Reading last = agreement.value_for(5, kInitial);
  expect(last.value == 101 && last.number == 2, "the last one counts");
  for (std::uint64_t number = 3; number <= Agreement::kDecisions; ++number) {
    expect(agreement.decide(number) == 6, "decision %d", static_cast<int>(number));
  }
  expect(agreement.decide(999) == -1 && agreement.value_for(6, kInitial).value == Agreement::kDecisions, "no more");
  expect(agreement.value_for(5, kInitial).value == 101 && agreement.value_for(0, kInitial).value == kInitial, "as before");
}

// The slowest rank's time counts, for the decision under which it was measured.
void measurements_are_gathered() {
  constexpr int kRanks = 3;
  Memory memory(kRanks);
  Agreement agreement = memory.agreement();
  expect(agreement.least_said(0) == 0, "no measurement");
  agreement.say(0, 0, 5.0f);
  agreement.say(2, 0, 7.0f);
  expect(agreement.least_said(0) == 0, "rank 1 has not reported");
  agreement.say(1, 0, 2.5f);
  expect(agreement.least_said(0) == 2.5f && agreement.least_said(1) == 0, "the least, of this decision");
  for (std::uint64_t number = 1; number <= 5; ++number) {
    const auto from = static_cast<std::uint64_t>(agreement.decide(100 + number));
    for (int rank = 0; rank < kRanks; ++rank) {
      const Agreement::Reading reading = agreement.value_for(from, kInitial);
      expect(reading.value == 100 + number && reading.number == number, "decision %d has its number",
             static_cast<int>(number));
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
  expect(ftruncate(descriptor, 0) != 0, "its memory cannot be truncated");
  const auto first = SharedPage::map(dup(descriptor), kRanks, 0, &why);
  const auto second = SharedPage::map(dup(descriptor), kRanks, 1, &why);
  if (!expect(first != nullptr && second != nullptr, "mapped: %s", why.c_str())) return;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(first->memory());
  const auto word = reinterpret_cast<std::uintptr_t>(first->abort_word());
  expect(at % page == 0 && first->bytes() % page == 0 && first->bytes() > 0, "whole pages");
  expect(word >= at && word + sizeof(std::uint32_t) <= at + first->bytes(), "the abort word lies in them");
  expect(*first->abort_word() == 0, "no rank has given up");
  auto* const one = static_cast<char*>(first->staging());
  auto* const two = static_cast<char*>(second->staging());
  const std::size_t bytes = first->staging_bytes();
  expect(bytes >= 100000 && bytes == second->staging_bytes() && reinterpret_cast<std::uintptr_t>(one) % page == 0,
         "memory behind it, whole pages");
  one[bytes - 1] = 7;
  expect(two[0] == 0 && two[bytes - 1] == 7, "all see it, and it is zero at first");
  *second->abort_word() = 1;
  expect(*first->abort_word() == 1, "all ranks see the rank that gave up");

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

  // Searches are independent of each other.
  first->agreement(kSearches - 1).say(0, 0, 4.0f);
  second->agreement(kSearches - 1).say(1, 0, 3.0f);
  expect(first->agreement(kSearches - 1).least_said(0) == 0, "the third has not reported");
  second->agreement(kSearches - 1).say(2, 0, 3.5f);
  expect(first->agreement(kSearches - 1).least_said(0) == 3.0f && first->agreement(0).least_said(0) == 0, "all have");
  const auto from = static_cast<std::uint64_t>(first->agreement(200).decide(9));
  expect(second->agreement(200).value_for(from, kInitial).value == 9, "rank 0's chunk, seen by rank 1");
  expect(second->agreement(201).value_for(from, kInitial).value == kInitial, "another search");
  expect(*first->abort_word() == 1 && first->all_done() && two[bytes - 1] == 7, "and nothing else");
  close(descriptor);
}

void bad_descriptors() {
  std::string why;
  const auto refused = [&](int descriptor, int nranks, int rank, const char* part) {
    why.clear();
    const bool is_null = SharedPage::map(descriptor, nranks, rank, &why) == nullptr;
    expect(is_null && why.find(part) != std::string::npos, "expected '%s', got '%s'", part, why.c_str());
    expect(descriptor < 0 || fcntl(descriptor, F_GETFD) < 0, "the descriptor is closed nevertheless");
  };
  expect(SharedPage::create(0, 0, &why) < 0 && SharedPage::create(5000, 0, &why) < 0, "from 1 to 4096 ranks");
  const int page = SharedPage::create(4, 1 << 20, &why);  // large enough for the page of five
  refused(dup(page), 400, 0, "expected");
  refused(dup(page), 4, 4, "rank 4");
  refused(-1, 4, 0, "fstat");
  refused(memfd_create("other", MFD_CLOEXEC), 4, 0, "expected");
  const off_t bytes = lseek(page, 0, SEEK_END);
  const int loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  expect(ftruncate(loose, bytes) == 0, "as large as a page");
  refused(dup(loose), 4, 0, "sealed against shrinking");
  expect(fcntl(loose, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "sealed");
  expect(SharedPage::map(loose, 4, 0, &why) != nullptr, "as good as a page");
  close(page);
}

}  // namespace

int main() {
  pages_tell();  // forks, so it runs before the threads
  bad_descriptors();
  one_after_the_other();
  measurements_are_gathered();
  ranks_agree();
  return verdict();
}
