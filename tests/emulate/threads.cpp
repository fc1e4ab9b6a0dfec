// The machine of real threads: one thread of this CPU for each emulated one. It is compiled with the thread sanitizer,
// which sees the order of accesses. Barriers and converge() order memory; votes do not, and neither do the instructions
// by which an octet stores a line: their synchronization is hidden from the sanitizer.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "emulate/launch.h"
#include "emulate/machine.h"

#define BLINK_HIDDEN __attribute__((no_sanitize("thread"), noinline))

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* at);
extern "C" void __tsan_release(void* at);
#else
static void __tsan_acquire(void*) {}
static void __tsan_release(void*) {}
#endif

namespace blink {
namespace emulate {
namespace {

constexpr std::size_t kSharedBytes = 32 << 10;

BLINK_HIDDEN void wait_while(const uint32_t* word, uint32_t value) {
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
}

BLINK_HIDDEN void wake_all(const uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

class Lock {
 public:
  BLINK_HIDDEN void take() {
    while (__atomic_exchange_n(&taken_, true, __ATOMIC_ACQUIRE)) sched_yield();
  }
  BLINK_HIDDEN void give() { __atomic_store_n(&taken_, false, __ATOMIC_RELEASE); }

 private:
  bool taken_ = false;
};

// A meeting point where `all` threads meet and vote.
class Place {
 public:
  // Returns three bits: at least one said yes, all did, the meetings differ.
  BLINK_HIDDEN uint32_t meet(uint32_t all, Meeting meeting, bool yes, bool waits = true) {
    lock_.take();
    any_ = any_ || yes;
    every_ = every_ && yes;
    different_ = different_ || (arrived_ > 0 && meeting != meeting_);
    meeting_ = meeting;
    const uint32_t turn = turn_;
    if (++arrived_ < all) {
      lock_.give();
      if (!waits) return 0;
      wait_while(&turn_, turn);
    } else {
      answers_[turn % 2] = (any_ ? 1 : 0) | (every_ ? 2 : 0) | (different_ ? 4 : 0);
      arrived_ = 0;
      any_ = different_ = false;
      every_ = true;
      __atomic_store_n(&turn_, turn + 1, __ATOMIC_RELEASE);
      lock_.give();
      wake_all(&turn_);
    }
    return answers_[turn % 2];  // valid until all threads meet here again
  }

 private:
  Lock lock_;
  Meeting meeting_ = Meeting::kNone;
  uint32_t arrived_ = 0, turn_ = 0;
  bool any_ = false, every_ = true, different_ = false;
  uint32_t answers_[2] = {0, 0};
};

// As in fibers.cpp.
class Octet {
 public:
  BLINK_HIDDEN void gather() { together_ = true; }
  BLINK_HIDDEN void part() {
    lock_.take();
    together_ = false;
    const bool waiting = arrived_ != 0;
    end(false);
    lock_.give();
    if (waiting) wake_all(&turn_);
  }
  BLINK_HIDDEN bool store_of_line(char* at, uint32_t lane, const Word (&halves)[2]);

 private:
  BLINK_HIDDEN void end(bool whole) {
    for (uint32_t i = 0; i < kOctet; ++i) {
      if ((arrived_ >> i & 1) != 0) whole_[i] = whole;
    }
    arrived_ = 0;
    __atomic_store_n(&turn_, turn_ + 1, __ATOMIC_RELEASE);
  }

  Lock lock_;
  bool together_ = false;
  bool whole_[kOctet] = {};
  uint32_t arrived_ = 0, turn_ = 0;
  char* line_ = nullptr;
  Word data_[2 * kOctet] = {};
};

BLINK_HIDDEN bool Octet::store_of_line(char* at, uint32_t lane, const Word (&halves)[2]) {
  char* const line = at - 16 * lane;
  lock_.take();
  if (!together_) {
    lock_.give();
    return false;
  }
  if (reinterpret_cast<Word>(line) % 128 != 0 || (arrived_ != 0 && line_ != line)) {
    lock_.give();
    part();
    return false;
  }
  line_ = line;
  arrived_ |= 1u << lane;
  data_[2 * lane] = halves[0];
  data_[2 * lane + 1] = halves[1];
  const uint32_t turn = turn_;
  if (arrived_ != 0xff) {
    lock_.give();
    wait_while(&turn_, turn);
    return whole_[lane];
  }
  Word* const words = reinterpret_cast<Word*>(line);
  constexpr uint32_t kLast = 2 * kOctet - 1;
  for (uint32_t i = 0; i < kLast; ++i) __atomic_store_n(words + i, data_[i], __ATOMIC_RELAXED);
  __atomic_store_n(words + kLast, data_[kLast], __ATOMIC_RELEASE);  // after the others
  end(true);
  lock_.give();
  wake_all(&turn_);
  return true;
}

struct Block {
  uint32_t rank, number, threads;
  std::vector<Place> places;  // of the warps
  std::vector<Place> barriers;
  std::vector<Octet> octets;
  std::vector<Word> memory;
};

struct Thread {
  Block* block;
  uint32_t index;
  const std::function<void(uint32_t, uint32_t)>* body;

  Octet& octet() const { return block->octets[index / kOctet]; }
};

thread_local const Thread* current = nullptr;

// Copies whole words, because the sanitizer does not see the code that compilers make of memcpy.
template <class T>
void copy_as(void* to, const void* from, uint32_t number) {
  typedef T __attribute__((may_alias)) Any;
  static_cast<Any*>(to)[number] = static_cast<const Any*>(from)[number];
}

void copy(void* to, const void* from, uint32_t bytes) {
  if (bytes == 1) return copy_as<uint8_t>(to, from, 0);
  if (bytes == 2) return copy_as<uint16_t>(to, from, 0);
  if (bytes == 4) return copy_as<uint32_t>(to, from, 0);
  for (uint32_t i = 0; i < bytes / 8; ++i) copy_as<uint64_t>(to, from, i);
}

void* thread_body(void* argument) {
  current = static_cast<const Thread*>(argument);
  (*current->body)(current->block->rank, current->block->number);
  current->octet().part();
  return nullptr;
}

}  // namespace

uint32_t thread_index() { return current->index; }
uint32_t threads() { return current->block->threads; }

void* shared_memory(std::size_t bytes) {
  if (bytes > kSharedBytes) std::abort();
  return current->block->memory.data();
}

static void expect_same(uint32_t answer, const Block& block) {
  if ((answer & 4) == 0) return;
  std::fprintf(stderr, "threads meet at different places: rank %u, block %u\n", block.rank, block.number);
  std::abort();
}

bool meet(Meeting meeting, bool yes) {
  Block& block = *current->block;
  current->octet().part();
  const bool orders = meeting == Meeting::kConverge;
  Place& place = block.places[current->index / kWarp];
  if (orders) __tsan_release(&place);
  // All lanes of the octets have parted before the last one arrives here, so the next part() follows this meeting.
  if (meeting == Meeting::kConverge) place.meet(kWarp, meeting, yes);
  if (meeting == Meeting::kConverge) current->octet().gather();
  const uint32_t answer = place.meet(kWarp, meeting, yes);
  if (orders) __tsan_acquire(&place);
  expect_same(answer, block);
  return meeting == Meeting::kAllOfWarp ? (answer & 2) != 0 : (answer & 1) != 0;
}

bool meet_at(uint32_t barrier, uint32_t count, Meeting meeting, bool yes) {
  Block& block = *current->block;
  current->octet().part();
  const bool waits = meeting != Meeting::kArrive;
  Place& place = block.barriers[barrier];
  __tsan_release(&place);
  const uint32_t answer = place.meet(count, waits ? meeting : Meeting::kBarrier, yes, waits);
  if (waits) __tsan_acquire(&place);
  expect_same(answer, block);
  return (answer & 1) != 0;
}

Word load_relaxed(const void* at) { return __atomic_load_n(static_cast<const Word*>(at), __ATOMIC_RELAXED); }
Word load_acquire(const void* at) { return __atomic_load_n(static_cast<const Word*>(at), __ATOMIC_ACQUIRE); }
void store_release(void* at, Word value) { __atomic_store_n(static_cast<Word*>(at), value, __ATOMIC_RELEASE); }
void store_relaxed(void* at, Word value) { __atomic_store_n(static_cast<Word*>(at), value, __ATOMIC_RELAXED); }
bool claim(void* at, Word value) {
  Word nothing = 0;
  return __atomic_compare_exchange_n(static_cast<Word*>(at), &nothing, value, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}

void load_halves(const char* at, Word (&to)[2]) {
  to[0] = load_relaxed(at);
  to[1] = load_relaxed(at + 8);
}

void store_halves(char* at, const Word (&from)[2]) {
  if (current->octet().store_of_line(at, current->index % kOctet, from)) return;
  store_relaxed(at, from[0]);
  store_relaxed(at + 8, from[1]);
}

void load_plain(const char* at, void* to, uint32_t bytes) { copy(to, at, bytes); }
void store_plain(char* at, const void* from, uint32_t bytes) { copy(at, from, bytes); }

uint32_t load_shared(const uint32_t& shared) { return __atomic_load_n(&shared, __ATOMIC_RELAXED); }
void store_shared(uint32_t& shared, uint32_t value) { __atomic_store_n(&shared, value, __ATOMIC_RELAXED); }

Word now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<Word>(now.tv_sec) * 1000000000u + static_cast<Word>(now.tv_nsec);
}
void pause() { sched_yield(); }

std::string run(const Grid& grid, const std::function<void(uint32_t, uint32_t)>& body, const Options&) {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Thread> all;
  for (uint32_t i = 0; i < grid.ranks * grid.blocks; ++i) {
    blocks.push_back(std::make_unique<Block>());
    Block& block = *blocks.back();
    block.rank = i / grid.blocks;
    block.number = i % grid.blocks;
    block.threads = grid.threads;
    block.places = std::vector<Place>(grid.threads / kWarp);
    block.barriers = std::vector<Place>(kBarriers);
    block.octets = std::vector<Octet>(grid.threads / kOctet);
    block.memory.assign(kSharedBytes / sizeof(Word), 0xa5a5a5a5a5a5a5a5u);
    for (uint32_t t = 0; t < grid.threads; ++t) all.push_back({&block, t, &body});
  }
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  std::vector<pthread_t> started(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (pthread_create(&started[i], &attributes, thread_body, &all[i]) != 0) std::abort();
  }
  for (const pthread_t thread : started) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  return {};
}

}  // namespace emulate
}  // namespace blink
