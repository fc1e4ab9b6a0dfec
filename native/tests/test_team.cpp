// Threads of one rank that share passes: every part once, by all threads, and the cores of a node.
// Sanitizers: address, thread.
#include "team.h"

#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "directory.h"

namespace {

using namespace blink_test;

constexpr std::chrono::seconds kPatience{30};

// The parts change plain memory, so that the thread sanitizer sees a pass that ends early.
void every_part_is_done_once() {
  std::mt19937 random(3);
  for (const int threads : {1, 2, 3, 5}) {
    blink::Team team(threads);
    expect(team.threads() == threads, "%d threads, not %d", team.threads(), threads);
    std::vector<int> times(64);
    long wrong = 0;
    for (int pass = 0; pass < 300 * kEffort; ++pass) {
      const int parts = static_cast<int>(random() % times.size()) + 1;
      times.assign(times.size(), 0);
      team.run(parts, [&](int thread, int part) {
        times[static_cast<std::size_t>(part)] += thread >= 0 && thread < threads ? 1 : 1000;
      });
      for (int part = 0; part < 64; ++part) wrong += times[static_cast<std::size_t>(part)] != (part < parts ? 1 : 0);
      if (pass % 100 == 0) usleep(200);  // longer than helpers poll: they sleep
    }
    expect(wrong == 0, "%d threads: %ld parts not done once", threads, wrong);
  }
}

// Each thread waits in its part until all of them are in one.
void all_threads_help() {
  constexpr int kThreads = 4;
  blink::Team team(kThreads);
  for (int pass = 0; pass < 20; ++pass) {
    std::atomic<int> inside{0};
    team.run(kThreads, [&](int, int) {
      ++inside;
      const auto until = std::chrono::steady_clock::now() + kPatience;
      while (inside.load() < kThreads && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    });
    expect(inside.load() == kThreads, "only %d of %d threads helped", inside.load(), kThreads);
    if (pass % 2 == 0) usleep(1000);
  }
}

void ends_at_any_time() {
  for (int trial = 0; trial < 50 * kEffort; ++trial) {
    blink::Team team(3);
    std::atomic<int> parts{0};
    if (trial % 3 != 0) team.run(2, [&](int, int) { ++parts; });
    if (trial % 3 == 2) usleep(50);
    expect(parts.load() == (trial % 3 == 0 ? 0 : 2), "%d parts done", parts.load());
  }
}

void finds_the_cores_of_a_node() {
  Directory nodes;
  for (const int node : {0, 1, 3}) {
    if (mkdir(nodes.at("node" + std::to_string(node)).c_str(), 0700) != 0) std::abort();
  }
  nodes.write("node0/cpulist", "0-3,16-19\n");
  nodes.write("node1/cpulist", "4-7,20,22-23\n");
  nodes.write("node3/cpulist", "\n");  // memory without cores
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  for (int core = 2; core < 22; ++core) CPU_SET(core, &allowed);
  const auto expect_cores = [&](int core, const std::vector<int>& cores) {
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    for (const int each : cores) CPU_SET(each, &wanted);
    const cpu_set_t beside = blink::cores_beside(nodes.path().c_str(), core, allowed);
    expect(CPU_EQUAL(&beside, &wanted), "other cores beside core %d, %d of them", core, CPU_COUNT(&beside));
  };
  expect_cores(17, {2, 3, 16, 17, 18, 19});
  expect_cores(5, {4, 5, 6, 7, 20});
  const cpu_set_t unknown = blink::cores_beside(nodes.path().c_str(), 30, allowed);
  expect(CPU_EQUAL(&unknown, &allowed), "a core without a node has cores beside it");
  const cpu_set_t without = blink::cores_beside(nodes.at("nothing").c_str(), 3, allowed);
  expect(CPU_EQUAL(&without, &allowed), "cores of a system that names no nodes");
}

}  // namespace

int main() {
  every_part_is_done_once();
  all_threads_help();
  ends_at_any_time();
  finds_the_cores_of_a_node();
  return verdict();
}
