#include <cstdarg>
#include <cstdio>

#include "emulate/fibers.h"

namespace blink {
namespace emulate {
namespace {

// The number of times that virtual time doubles before the threads count as deadlocked.
constexpr uint32_t kMostLeaps = 40;

Stacks stacks;

void fiber_body() { machine->body(); }

}  // namespace

Machine* machine = nullptr;

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
}

Thread* Machine::pick_of(std::vector<Thread*>& list) {
  Thread* chosen = list[random_.below(list.size())];
  for (int tries = 0; chosen->starved && tries < 6; ++tries) chosen = list[random_.below(list.size())];
  return chosen;
}

// A late thread has no effect unless others wait for it; so some threads are delayed, at random or permanently.
void Machine::choose_starved() {
  const uint32_t kind = temper_.starves;
  if (kind == 0) return;
  const uint32_t victim = random_.below(threads_.size());
  const uint32_t size[] = {1, 1, kWarp, 1, grid_.threads};
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    threads_[i].starved = kind == 3 ? (random_.next() & 1) != 0 : i / size[kind] == victim / size[kind];
  }
}

// All runnable threads wait. Returns false if none of them can ever continue.
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
  current_->looks.begin(memory_.now());
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
  look_for_absent(thread);
  if (--left_ == 0) thread.fiber.switch_to(main_);
  reschedule();
}

void Machine::find(const char* what, ...) {
  char text[600];
  va_list arguments;
  va_start(arguments, what);
  std::vsnprintf(text, sizeof text, what, arguments);
  va_end(arguments);
  finding_ = "seed " + std::to_string(options_.seed) + ": " + text;
  current_->fiber.switch_to(main_);  // never returns
}

}  // namespace emulate
}  // namespace blink
