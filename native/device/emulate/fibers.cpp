// The machine that runs everything in one thread of this CPU: a fiber per thread, and a schedule that is drawn from a
// seed. It goes from thread to thread at meetings, at waits and, as often as the seed wants it, at accesses of memory.
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <new>

#include "emulate/fiber.h"
#include "emulate/launch.h"
#include "emulate/machine.h"
#include "emulate/memory.h"
#include "emulate/shared_state.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace blink {
namespace emulate {
namespace {

constexpr std::size_t kStackBytes = 64 << 10;
constexpr Word kStackEnd = 0x57ac4e4d57ac4e4d;  // nobody may go so far
constexpr uint32_t kNowhere = 0xffffffff;
// So often does virtual time double before nobody is believed to get anywhere.
constexpr uint32_t kMostLeaps = 40;

const char* const kMeetings[] = {"", "barrier", "any_of_block", "all_of_warp", "any_of_warp", "converge"};

bool is_of_block(Meeting meeting) { return meeting == Meeting::kBarrier || meeting == Meeting::kAnyOfBlock; }

struct Block;

struct Thread {
  Fiber fiber;
  Block* block = nullptr;
  uint32_t index = 0;  // in the block
  Stamp stamp;
  Word acquired = 0;
  Meeting at = Meeting::kNone;
  bool yes = false, answer = false;
  bool ended = false;
  bool paused = false;
  bool alone = false;  // its line was not gone through together
  bool starved = false;
  uint32_t place = kNowhere;  // among those that can run
};

// Threads that a converge() has brought together go through lines by one instruction each, until one does anything else.
struct Octet {
  bool together = false;
  bool writes = false;
  uint32_t arrived = 0;  // a bit each
  char* line = nullptr;
  Memory::Line data;
};

struct Block {
  uint32_t rank, number;
  Thread* threads;
  std::vector<Octet> octets;
  std::vector<uint32_t> arrived;  // at a meeting of the warp; the last one: of the block
  std::vector<uint32_t> gone;     // threads of the warp, of the block, that have ended
  std::vector<uint32_t> at_block;  // threads of the warp at a meeting of the block
  std::vector<Word> memory;
  std::size_t memory_bytes = 0;
  std::unique_ptr<SharedState> state;
};

// What the seed wants, in 1/256.
struct Temper {
  uint32_t switches;   // at an access of memory
  uint32_t plain;      // at an access of the block's own state
  uint32_t impatient;  // a thread that waits looks again, although others can go on
  uint32_t starves;    // 0 nobody, 1 a thread, 2 a warp, 3 every other thread, 4 a block
  Weakness weakness;
};

Temper temper_of(Random& random) {
  constexpr uint32_t kSwitches[] = {2, 16, 64, 160, 256};
  constexpr uint32_t kHeld[] = {0, 64, 200, 256};
  constexpr uint32_t kLetGo[] = {1, 16, 128};
  constexpr uint32_t kPast[] = {0, 128, 256};
  Temper temper = {};
  temper.switches = kSwitches[random.below(5)];
  temper.plain = random.below(2) * temper.switches / 8;
  temper.impatient = 4u << random.below(5);
  temper.starves = random.below(2) * random.below(5);
  temper.weakness = {kHeld[random.below(4)], kLetGo[random.below(3)], kPast[random.below(3)]};
  return temper;
}

// Stacks for all fibers, kept for the next run.
class Stacks {
 public:
  char* of(std::size_t thread, std::size_t threads) {
    if (threads > count_) {
      if (memory_ != nullptr) munmap(memory_, count_ * kStackBytes);
      void* const got = mmap(nullptr, threads * kStackBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (got == MAP_FAILED) throw std::bad_alloc();
      memory_ = static_cast<char*>(got);
      count_ = threads;
    }
    char* const stack = memory_ + thread * kStackBytes;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, kStackBytes);
#endif
    std::memcpy(stack, &kStackEnd, sizeof kStackEnd);
    return stack;
  }

  bool held(std::size_t thread) const {
    return std::memcmp(memory_ + thread * kStackBytes, &kStackEnd, sizeof kStackEnd) == 0;
  }

 private:
  char* memory_ = nullptr;
  std::size_t count_ = 0;
};

Stacks stacks;

class Machine {
 public:
  Machine(const Grid& grid, const std::function<void(uint32_t, uint32_t)>& body, const Options& options)
      : grid_(grid), body_(body), options_(options), random_(options.seed), temper_(temper_of(random_)),
        order_{grid.threads}, memory_(order_, grid.ranks * grid.blocks, temper_.weakness, random_) {}

  std::string run();

  // Of the thread that runs.
  Thread& current() { return *current_; }
  void body() {
    body_(current_->block->rank, current_->block->number);
    end();
  }
  bool meet(Meeting meeting, bool yes);
  bool through_line(char* at, Word (&halves)[2], bool writes);
  void halves_alone(char* at, Word (&halves)[2], bool writes);
  void pause();
  // Before each access of memory that others see.
  void access() {
    part();
    step();
  }
  void acquire() { current_->acquired = memory_.now(); }
  void* shared_memory(std::size_t bytes);
  void touch(const void* at, std::size_t bytes, bool write);
  Word now_ns() const { return time_ns_; }
  Memory& memory() { return memory_; }
  uint32_t threads() const { return grid_.threads; }
  __attribute__((format(printf, 2, 3))) void find(const char* what, ...);

 private:
  void begin();
  void end();
  void step() {
    time_ns_ += 10;
    memory_.let_some_go();
    if (random_.chance(temper_.switches)) reschedule();
  }
  void reschedule();
  Thread* pick();
  Thread* pick_of(std::vector<Thread*>& list);
  bool go_on_waiting();
  void choose_starved();
  void add(Thread& thread, bool paused);
  void remove(Thread& thread);
  void part();
  void gather(Thread* first, uint32_t count, Meeting meeting, uint32_t& arrived);
  void look_for_absent(Thread& thread);
  std::string standings(const Thread* first, uint32_t count) const;
  Octet& octet() { return current_->block->octets[current_->index / kOctet]; }

  const Grid grid_;
  const std::function<void(uint32_t, uint32_t)>& body_;
  const Options& options_;
  Random random_;
  const Temper temper_;
  const Order order_;
  Memory memory_;
  std::deque<Block> blocks_;
  std::vector<Thread> threads_;
  std::vector<Thread*> ready_, paused_;
  Fiber main_;
  Thread* current_ = nullptr;
  std::size_t left_ = 0;
  Word time_ns_ = 0;
  Word quiet_ = 0;      // looks of waiting threads since something happened
  Word changed_at_ = 0;  // the memory's time then
  uint32_t leaps_ = 0;
  bool told_stuck_ = false;
  std::string finding_;
};

Machine* machine = nullptr;

void fiber_body() { machine->body(); }

// ---- threads that can run

void Machine::add(Thread& thread, bool paused) {
  std::vector<Thread*>& list = paused ? paused_ : ready_;
  thread.paused = paused;
  thread.place = static_cast<uint32_t>(list.size());
  list.push_back(&thread);
}

void Machine::remove(Thread& thread) {
  std::vector<Thread*>& list = thread.paused ? paused_ : ready_;
  list[thread.place] = list.back();
  list[thread.place]->place = thread.place;
  list.pop_back();
  thread.place = kNowhere;
}

Thread* Machine::pick_of(std::vector<Thread*>& list) {
  Thread* chosen = list[random_.below(list.size())];
  for (int tries = 0; chosen->starved && tries < 6; ++tries) chosen = list[random_.below(list.size())];
  return chosen;
}

// Whom nobody waits for notices nothing; so some come late, by chance or all the time.
void Machine::choose_starved() {
  const uint32_t kind = temper_.starves;
  if (kind == 0) return;
  const uint32_t victim = random_.below(threads_.size());
  const uint32_t size[] = {1, 1, kWarp, 1, grid_.threads};
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    threads_[i].starved = kind == 3 ? (random_.next() & 1) != 0 : i / size[kind] == victim / size[kind];
  }
}

// All that can run wait for something. False: for what will never be.
bool Machine::go_on_waiting() {
  if (memory_.now() != changed_at_) quiet_ = leaps_ = 0;
  changed_at_ = memory_.now();
  if (++quiet_ < 6 * paused_.size() + 32) return true;
  quiet_ = 0;
  if (memory_.let_all_go()) return true;
  time_ns_ += Word{1000} << leaps_;
  if (++leaps_ < kMostLeaps) return true;
  if (options_.stuck == nullptr || told_stuck_) return false;
  told_stuck_ = true;
  leaps_ = 0;
  options_.stuck();
  return true;
}

Thread* Machine::pick() {
  if ((random_.next() & 0x3ff) == 0) choose_starved();
  if (!ready_.empty() && (paused_.empty() || !random_.chance(temper_.impatient))) return pick_of(ready_);
  if (paused_.empty()) return nullptr;
  if (ready_.empty() && !go_on_waiting()) {
    const Thread& one = *paused_.front();
    find("nobody gets anywhere: rank %u, block %u, thread %u and %zu more wait for memory", one.block->rank,
         one.block->number, one.index, paused_.size() - 1);
  }
  Thread* const chosen = paused_[random_.below(paused_.size())];
  remove(*chosen);
  add(*chosen, false);
  return chosen;
}

void Machine::reschedule() {
  Thread* const from = current_;
  Thread* const next = pick();
  if (next == from) return;
  if (next == nullptr) find("nobody can go on: %s", standings(threads_.data(), grid_.threads).c_str());
  current_ = next;
  from->fiber.switch_to(next->fiber);
}

void Machine::pause() {
  part();
  time_ns_ += 10;
  memory_.let_some_go();
  remove(*current_);
  add(*current_, true);
  reschedule();
}

// ---- beginning and end

void Machine::begin() {
  threads_.resize(static_cast<std::size_t>(grid_.ranks) * grid_.blocks * grid_.threads);
  const uint32_t warps = grid_.threads / kWarp;
  for (uint32_t i = 0; i < grid_.ranks * grid_.blocks; ++i) {
    Block& block = blocks_.emplace_back();
    block.rank = i / grid_.blocks;
    block.number = i % grid_.blocks;
    block.threads = &threads_[static_cast<std::size_t>(i) * grid_.threads];
    block.octets.resize(grid_.threads / kOctet);
    for (auto* const counts : {&block.arrived, &block.gone, &block.at_block}) counts->assign(warps + 1, 0);
    for (uint32_t t = 0; t < grid_.threads; ++t) {
      Thread& thread = block.threads[t];
      thread.block = &block;
      thread.index = t;
      thread.stamp.thread = i * grid_.threads + t;
      thread.fiber.begin(stacks.of(thread.stamp.thread, threads_.size()), kStackBytes, fiber_body);
      add(thread, false);
    }
  }
  left_ = threads_.size();
}

std::string Machine::run() {
  begin();
  choose_starved();
  current_ = pick();
  main_.switch_to(current_->fiber);
  memory_.let_all_go();
  return finding_;
}

void Machine::end() {
  part();
  Thread& thread = *current_;
  if (!stacks.held(thread.stamp.thread)) find("a thread's stack is longer than %zu bytes", kStackBytes);
  thread.ended = true;
  remove(thread);
  ++thread.block->gone[thread.index / kWarp];
  ++thread.block->gone.back();
  if (--left_ == 0) thread.fiber.switch_to(main_);
  look_for_absent(thread);
  reschedule();
}

void Machine::find(const char* what, ...) {
  char text[600];
  va_list arguments;
  va_start(arguments, what);
  std::vsnprintf(text, sizeof text, what, arguments);
  va_end(arguments);
  finding_ = "seed " + std::to_string(options_.seed) + ": " + text;
  current_->fiber.switch_to(main_);  // for good
}

// ---- meetings

std::string Machine::standings(const Thread* first, uint32_t count) const {
  const auto standing = [](const Thread& thread) {
    return thread.ended ? "ended" : thread.at == Meeting::kNone ? "running" : kMeetings[static_cast<int>(thread.at)];
  };
  std::string text = "rank " + std::to_string(first->block->rank) + ", block " + std::to_string(first->block->number);
  uint32_t groups = 0;
  for (uint32_t begin = 0, end = 0; begin < count && groups < 8; begin = end, ++groups) {
    for (end = begin + 1; end < count && std::strcmp(standing(first[begin]), standing(first[end])) == 0;) ++end;
    text += groups == 0 ? ": threads " : ", ";
    text += std::to_string(first[begin].index) + "-" + std::to_string(first[end - 1].index) + " " +
            standing(first[begin]);
  }
  return text;
}

// Whoever stands at a meeting to which somebody cannot come any more.
void Machine::look_for_absent(Thread& thread) {
  Block& block = *thread.block;
  const uint32_t warp = thread.index / kWarp;
  if (block.arrived[warp] > 0 && block.arrived[warp] + block.at_block[warp] + block.gone[warp] == kWarp) {
    find("threads of a warp do not meet: %s", standings(block.threads + warp * kWarp, kWarp).c_str());
  }
  if (block.arrived.back() > 0 && block.arrived.back() + block.gone.back() == grid_.threads) {
    find("threads of a block do not meet: %s", standings(block.threads, grid_.threads).c_str());
  }
}

// All are there.
void Machine::gather(Thread* first, uint32_t count, Meeting meeting, uint32_t& arrived) {
  bool any = false;
  bool all = true;
  Word acquired = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (first[i].at != meeting) find("threads meet at different places: %s", standings(first, count).c_str());
    any = any || first[i].yes;
    all = all && first[i].yes;
    acquired = std::max(acquired, first[i].acquired);
  }
  arrived = 0;
  for (uint32_t i = 0; i < count; ++i) {
    Thread& thread = first[i];
    thread.at = Meeting::kNone;
    thread.answer = meeting == Meeting::kAllOfWarp ? all : any;
    if (&thread != current_) add(thread, false);
    if (is_of_block(meeting)) ++thread.stamp.barriers;
    if (meeting == Meeting::kConverge) ++thread.stamp.converges;
    if (is_of_block(meeting) || meeting == Meeting::kConverge) thread.acquired = acquired;
    if (meeting == Meeting::kConverge) thread.block->octets[thread.index / kOctet].together = true;
  }
}

bool Machine::meet(Meeting meeting, bool yes) {
  part();
  Thread& thread = *current_;
  Block& block = *thread.block;
  const uint32_t warp = thread.index / kWarp;
  const bool of_block = is_of_block(meeting);
  thread.at = meeting;
  thread.yes = yes;
  uint32_t& arrived = of_block ? block.arrived.back() : block.arrived[warp];
  const uint32_t all = of_block ? grid_.threads : kWarp;
  if (of_block) ++block.at_block[warp];
  if (++arrived == all) {
    if (of_block) std::fill(block.at_block.begin(), block.at_block.end(), 0);
    gather(of_block ? block.threads : block.threads + warp * kWarp, all, meeting, arrived);
    step();
  } else {
    remove(thread);
    look_for_absent(thread);
    reschedule();
  }
  return thread.answer;
}

// ---- lines

// The thread does something else than the others of its octet: those that wait for it go on by themselves.
void Machine::part() {
  Octet& of = octet();
  if (!of.together) return;
  of.together = false;
  Thread* const first = current_->block->threads + current_->index / kOctet * kOctet;
  for (uint32_t i = 0; i < kOctet; ++i) {
    if ((of.arrived >> i & 1) == 0) continue;
    first[i].alone = true;
    add(first[i], false);
  }
  of.arrived = 0;
}

// False: not by one instruction, so that it is still to be done.
bool Machine::through_line(char* at, Word (&halves)[2], bool writes) {
  step();
  Octet& of = octet();
  if (!of.together) return false;
  Thread& thread = *current_;
  const uint32_t lane = thread.index % kOctet;
  char* const line = at - 16 * lane;
  if (reinterpret_cast<Word>(line) % 128 != 0 || (of.arrived != 0 && (of.line != line || of.writes != writes))) {
    part();
    return false;
  }
  of.line = line;
  of.writes = writes;
  of.arrived |= 1u << lane;
  if (writes) std::copy(halves, halves + 2, &of.data[2 * lane]);
  Thread* const first = &thread - lane;
  if (of.arrived != 0xff) {
    remove(thread);
    reschedule();
    if (thread.alone) {
      thread.alone = false;
      return false;
    }
  } else {
    of.arrived = 0;
    Word* const words = reinterpret_cast<Word*>(line);
    std::array<Stamp, Memory::kLine> by;
    for (uint32_t i = 0; i < Memory::kLine; ++i) by[i] = first[i / 2].stamp;
    if (writes) {
      memory_.store_line(words, of.data, by);
    } else {
      for (uint32_t i = 0; i < Memory::kLine; ++i) of.data[i] = memory_.load_relaxed(words + i, by[i]);
    }
    for (uint32_t i = 0; i < kOctet; ++i) {
      if (i != lane) add(first[i], false);
    }
  }
  if (!writes) std::copy(&of.data[2 * lane], &of.data[2 * lane] + 2, halves);
  return true;
}

void Machine::halves_alone(char* at, Word (&halves)[2], bool writes) {
  for (int i = 0; i < 2; ++i) {
    access();
    Word* const word = reinterpret_cast<Word*>(at) + i;
    if (writes) {
      memory_.store(word, halves[i], ~Word{0}, current_->stamp);
    } else {
      halves[i] = memory_.load_relaxed(word, current_->stamp);
    }
  }
}

// ---- the block's own memory

void* Machine::shared_memory(std::size_t bytes) {
  Block& block = *current_->block;
  if (block.memory_bytes == 0) {
    block.memory_bytes = bytes;
    block.memory.resize((bytes + 7) / 8);
    for (Word& word : block.memory) word = random_.next();
    block.state = std::make_unique<SharedState>(bytes);
  }
  return block.memory.data();
}

void Machine::touch(const void* at, std::size_t bytes, bool write) {
  const Block& block = *current_->block;
  const std::size_t offset = reinterpret_cast<std::size_t>(at) - reinterpret_cast<std::size_t>(block.memory.data());
  if (offset >= block.memory_bytes) return;
  if (!block.state->touch(offset, bytes, write, current_->stamp, order_)) {
    find("a race on the block's state: rank %u, block %u, thread %u %s %zu bytes at %zu that another thread has %s",
         block.rank, block.number, current_->index, write ? "writes" : "reads", bytes, offset,
         write ? "touched" : "written");
  }
  if (temper_.plain != 0 && random_.chance(temper_.plain)) reschedule();
}

// ---- words

// Calls with(word, its number, mask) for each word of 8 bytes in [at, at + bytes).
template <class With>
void for_words(const char* at, uint32_t bytes, With with) {
  if (reinterpret_cast<Word>(at) % bytes != 0) {
    machine->find("an access of %u bytes at %p, which is not aligned", bytes, static_cast<const void*>(at));
  }
  const auto address = reinterpret_cast<Word>(at);
  auto* const words = reinterpret_cast<Word*>(address & ~Word{7});
  if (bytes == 16) {
    with(words, 0, ~Word{0}, 0);
    with(words + 1, 8, ~Word{0}, 0);
  } else {
    const uint32_t shift = 8 * (address % 8);
    with(words, 0, (~Word{0} >> (64 - 8 * bytes)) << shift, shift);
  }
}

}  // namespace

uint32_t thread_index() { return machine->current().index; }
uint32_t threads() { return machine->threads(); }

void* shared_memory(std::size_t bytes) { return machine->shared_memory(bytes); }

bool meet(Meeting meeting, bool yes) { return machine->meet(meeting, yes); }

Word load_relaxed(const void* at) {
  machine->access();
  return machine->memory().load_relaxed(static_cast<const Word*>(at), machine->current().stamp);
}

Word load_acquire(const void* at) {
  machine->access();
  const Word value = machine->memory().load_relaxed(static_cast<const Word*>(at), machine->current().stamp);
  machine->acquire();
  return value;
}

void store_release(void* at, Word value) {
  machine->access();
  machine->memory().release(machine->current().stamp);
  machine->memory().store(static_cast<Word*>(at), value, ~Word{0}, machine->current().stamp);
}

bool claim(void* at, Word value) {
  machine->access();
  Word* const word = static_cast<Word*>(at);
  if (*word != 0) return false;
  *word = value;
  return true;
}

void load_halves(const char* at, Word (&to)[2]) {
  char* const where = const_cast<char*>(at);
  if (!machine->through_line(where, to, false)) machine->halves_alone(where, to, false);
}

void store_halves(char* at, const Word (&from)[2]) {
  Word halves[2] = {from[0], from[1]};
  if (!machine->through_line(at, halves, true)) machine->halves_alone(at, halves, true);
}

void load_plain(const char* at, void* to, uint32_t bytes) {
  machine->access();
  const Thread& thread = machine->current();
  for_words(at, bytes, [&](Word* word, uint32_t offset, Word mask, uint32_t shift) {
    const Word value = machine->memory().load_plain(word, mask, thread.stamp, thread.acquired) >> shift;
    std::memcpy(static_cast<char*>(to) + offset, &value, bytes < 8 ? bytes : 8);
  });
}

void store_plain(char* at, const void* from, uint32_t bytes) {
  machine->access();
  for_words(at, bytes, [&](Word* word, uint32_t offset, Word mask, uint32_t shift) {
    Word value = 0;
    std::memcpy(&value, static_cast<const char*>(from) + offset, bytes < 8 ? bytes : 8);
    machine->memory().store(word, value << shift, mask, machine->current().stamp);
  });
}

uint32_t load_shared(const uint32_t& shared) { return shared; }
void store_shared(uint32_t& shared, uint32_t value) { shared = value; }

Word now_ns() { return machine->now_ns(); }
void pause() { machine->pause(); }

void touched(const void* at, std::size_t bytes, bool write) {
  if (machine != nullptr) machine->touch(at, bytes, write);
}

std::string run(const Grid& grid, const std::function<void(uint32_t, uint32_t)>& body, const Options& options) {
  Machine one(grid, body, options);
  machine = &one;
  const std::string finding = one.run();
  machine = nullptr;
  return finding;
}

}  // namespace emulate
}  // namespace blink
