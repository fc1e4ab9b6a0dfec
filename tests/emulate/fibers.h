// The machine that runs everything in one thread of this CPU: a fiber per thread, with a schedule drawn from a seed. It
// switches threads at meetings, at waits and, as often as the seed determines, at accesses of memory.
//
//   schedule.cpp   selection of the next thread, and detection of deadlocks
//   meetings.cpp   barriers, votes, and threads that store a line together
//   fibers.cpp     the interface for block code (machine.h)
#pragma once

#include <deque>
#include <string>

#include "emulate/fiber.h"
#include "emulate/launch.h"
#include "emulate/machine.h"
#include "emulate/memory.h"
#include "emulate/shared_state.h"
#include "emulate/temper.h"

namespace blink {
namespace emulate {

struct Block;

struct Thread {
  Fiber fiber;
  Block* block = nullptr;
  uint32_t index = 0;  // in the block
  Stamp stamp;
  Word acquired = 0;
  Looks looks;
  Meeting at = Meeting::kNone;
  bool yes = false, answer = false;
  bool ended = false;
  bool paused = false;
  bool alone = false;  // its octet does not store the line together
  bool starved = false;
  uint32_t place = 0;  // in the list of runnable threads
};

// Threads that a converge() has joined store lines with one instruction each, until one of them does anything else.
struct Octet {
  bool together = false;
  uint32_t arrived = 0;  // one bit per thread
  char* line = nullptr;
  Memory::Line data;
};

// A meeting point for a number of the block's threads.
struct Barrier {
  uint32_t arrived = 0, count = 0;
  Meeting meeting = Meeting::kNone;
  bool any = false;
  Word acquired = 0;
  Known known = {};
  std::vector<Thread*> waiting;
  std::vector<bool> here;  // by thread
};

struct Block {
  uint32_t rank, number;
  Thread* threads;
  std::vector<Octet> octets;
  std::array<Barrier, kBarriers> barriers;
  std::vector<uint32_t> arrived;  // at a meeting of the warp;
  std::vector<uint32_t> gone;     // threads of the warp, of the block, that have ended;
  std::vector<uint32_t> at_block;  // threads of the warp, of the block, that wait at a barrier
  std::vector<Word> memory;
  std::size_t memory_bytes = 0;
  std::unique_ptr<SharedState> state;
};

class Machine {
 public:
  Machine(const Grid& grid, const std::function<void(uint32_t, uint32_t)>& body, const Options& options)
      : grid_(grid), body_(body), options_(options), random_(options.seed), temper_(temper_of(random_)),
        order_{grid.threads, &known_}, known_(static_cast<std::size_t>(grid.ranks) * grid.blocks * grid.threads),
        memory_(order_, grid.ranks * grid.blocks, temper_.weakness, random_) {}

  std::string run();

  // The running thread.
  Thread& current() { return *current_; }
  void body() {
    body_(current_->block->rank, current_->block->number);
    end();
  }
  bool meet(Meeting meeting, bool yes);
  bool meet_at(uint32_t barrier, uint32_t count, Meeting meeting, bool yes);
  bool store_of_line(char* at, const Word (&halves)[2]);
  void pause();
  // Called before each access of memory that other threads can see.
  void access() {
    part();
    step();
  }
  Word load_relaxed(const Word* at) {
    access();
    return memory_.load_relaxed(at, current_->stamp, current_->looks);
  }
  Word load_acquire(const Word* at) {
    access();
    current_->looks.begin(memory_.now());
    current_->acquired = memory_.now();
    return memory_.load_relaxed(at, current_->stamp, current_->looks);
  }
  void store(Word* at, Word value) {
    access();
    memory_.store(at, value, ~Word{0}, current_->stamp);
  }
  void* shared_memory(std::size_t bytes);
  void touch(const void* at, std::size_t bytes, bool write);
  uint32_t either() { return random_.below(2); }
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
  void gather(Thread* first, Meeting meeting);
  void pass(Block& block, Barrier& barrier);
  void look_for_absent(Thread& thread);
  std::string standings(const Thread* first, uint32_t count) const;
  Octet& octet() { return current_->block->octets[current_->index / kOctet]; }

  const Grid grid_;
  const std::function<void(uint32_t, uint32_t)>& body_;
  const Options& options_;
  Random random_;
  const Temper temper_;
  const Order order_;
  std::vector<Known> known_;
  Memory memory_;
  std::deque<Block> blocks_;
  std::vector<Thread> threads_;
  std::vector<Thread*> ready_, paused_;
  Fiber main_;
  Thread* current_ = nullptr;
  std::size_t left_ = 0;
  Word time_ns_ = 0;
  Word quiet_ = 0;      // polls of waiting threads since the last progress;
  Word changed_at_ = 0;  // the memory's time at that progress
  uint32_t leaps_ = 0;
  bool told_stuck_ = false;
  std::string finding_;
};

// The current machine.
extern Machine* machine;

}  // namespace emulate
}  // namespace blink
