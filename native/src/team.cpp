#include "team.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "clock.h"
#include "comm.h"

namespace blink {
namespace {

constexpr std::int64_t kPollUs = 20;  // a helper's polling after a pass
constexpr int kPollsPerLook = 64;     // polls between two readings of the clock
constexpr int kMostNodes = 1024;

std::uint64_t pass_of(std::uint64_t state) { return state >> 32; }
int parts_of(std::uint64_t state) { return static_cast<int>(state >> 16 & 0xffff); }
int next_of(std::uint64_t state) { return static_cast<int>(state & 0xffff); }

// Adds the cores of a list such as "0-3,8" to `cores`. Returns whether `core` is one of them.
bool read_cores(std::FILE* list, int core, cpu_set_t& cores) {
  bool has = false;
  int first = 0;
  while (std::fscanf(list, "%d", &first) == 1) {
    int last = first;
    if (std::fscanf(list, "-%d", &last) != 1) last = first;
    for (int each = first; each <= last && each < CPU_SETSIZE; ++each) {
      CPU_SET(each, &cores);
      has = has || each == core;
    }
    if (std::fgetc(list) != ',') break;
  }
  return has;
}

}  // namespace

cpu_set_t cores_beside(const char* folder, int core, const cpu_set_t& allowed) {
  for (int node = 0; node < kMostNodes; ++node) {
    std::FILE* list = std::fopen((std::string(folder) + "/node" + std::to_string(node) + "/cpulist").c_str(), "r");
    if (list == nullptr) continue;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    const bool here = read_cores(list, core, cores);
    std::fclose(list);
    if (!here) continue;
    CPU_AND(&cores, &cores, &allowed);
    return cores;
  }
  return allowed;
}

void Team::make_helpers() {
  process_ = getpid();
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
  const cpu_set_t near = cores_beside("/sys/devices/system/node", sched_getcpu(), allowed);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  try {
    for (int thread = 1; thread < threads_; ++thread) {
      helpers_.emplace_back([this, thread] { help(thread); });
      if (CPU_COUNT(&near) > 0) pthread_setaffinity_np(helpers_.back().native_handle(), sizeof near, &near);
    }
  } catch (const std::system_error&) {
    // The system denies more threads: those that it gave share the work.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Team::~Team() {
  const bool forked = !helpers_.empty() && getpid() != process_;  // a child has none of its parent's threads
  if (!forked) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_.store(true);
    begun_.notify_all();
  }
  for (std::thread& helper : helpers_) forked ? helper.detach() : helper.join();
}

void Team::start(Call call, void* context, int parts) {
  if (!std::exchange(began_, true)) make_helpers();
  call_ = call;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  const std::uint64_t pass = pass_of(state_.load(std::memory_order_relaxed)) + 1;
  const std::uint64_t state = pass << 32 | static_cast<std::uint64_t>(parts) << 16;
  // Store first, then look for sleepers: a helper does it in the opposite order.
  state_.store(state, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    begun_.notify_all();
  }
  claim(pass_of(state), 0);
  for (int polls = 1; done_.load(std::memory_order_acquire) < parts; ++polls) {
    relax();
    if (polls % kPollsPerLook == 0) sched_yield();
  }
}

// Does parts of this pass until none is left. A claim succeeds only during its pass, whose end waits for the part.
void Team::claim(std::uint64_t pass, int thread) {
  std::uint64_t state = state_.load(std::memory_order_acquire);
  while (pass_of(state) == pass && next_of(state) < parts_of(state)) {
    if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
    call_(context_, thread, next_of(state));
    done_.fetch_add(1, std::memory_order_release);
    state = state_.load(std::memory_order_acquire);
  }
}

// Waits for a pass other than `last`, and returns its number.
std::uint64_t Team::await_pass(std::uint64_t last) {
  const auto now = [&] { return pass_of(state_.load(std::memory_order_seq_cst)); };
  const auto is_over = [&] { return now() != last || ended_.load(std::memory_order_relaxed); };
  const std::int64_t until = now_us() + kPollUs;
  do {
    for (int polls = 0; polls < kPollsPerLook; ++polls) {
      if (is_over()) return now();
      relax();
    }
  } while (now_us() < until);
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  begun_.wait(lock, is_over);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return now();
}

void Team::help(int thread) {
  for (std::uint64_t pass = 0; !ended_.load(std::memory_order_relaxed);) {
    pass = await_pass(pass);
    claim(pass, thread);
  }
}

}  // namespace blink
