#include <algorithm>
#include <cstring>
#include <utility>

#include "emulate/fibers.h"

namespace blink {
namespace emulate {
namespace {

const char* const kMeetings[] = {"", "barrier", "any_of_block", "arrives", "all_of_warp", "any_of_warp", "converge"};

void join(Known& to, const Known& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
}

}  // namespace

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

// Reports a thread at a meeting that another thread can no longer reach.
void Machine::look_for_absent(Thread& thread) {
  Block& block = *thread.block;
  const uint32_t warp = thread.index / kWarp;
  if (block.arrived[warp] > 0 && block.arrived[warp] + block.at_block[warp] + block.gone[warp] == kWarp) {
    find("threads of a warp do not meet: %s", standings(block.threads + warp * kWarp, kWarp).c_str());
  }
  if (block.at_block.back() > 0 && block.at_block.back() + block.gone.back() == grid_.threads) {
    find("threads of a block do not meet: %s", standings(block.threads, grid_.threads).c_str());
  }
  for (const Barrier& barrier : block.barriers) {
    if (block.gone.back() == grid_.threads && barrier.arrived > 0) {
      find("threads come to a barrier that nobody passes: rank %u, block %u", block.rank, block.number);
    }
  }
}

// All threads of a warp have arrived.
void Machine::gather(Thread* first, Meeting meeting) {
  bool any = false;
  bool all = true;
  Word acquired = 0;
  for (uint32_t i = 0; i < kWarp; ++i) {
    if (first[i].at != meeting) find("threads meet at different places: %s", standings(first, kWarp).c_str());
    any = any || first[i].yes;
    all = all && first[i].yes;
    acquired = std::max(acquired, first[i].acquired);
  }
  for (uint32_t i = 0; i < kWarp; ++i) {
    Thread& thread = first[i];
    thread.at = Meeting::kNone;
    thread.answer = meeting == Meeting::kAllOfWarp ? all : any;
    if (&thread != current_) add(thread, false);
    if (meeting != Meeting::kConverge) continue;
    ++thread.stamp.converges;
    thread.acquired = acquired;
    thread.looks.begin(memory_.now());
    thread.block->octets[thread.index / kOctet].together = true;
  }
}

bool Machine::meet(Meeting meeting, bool yes) {
  part();
  Thread& thread = *current_;
  const uint32_t warp = thread.index / kWarp;
  thread.at = meeting;
  thread.yes = yes;
  uint32_t& arrived = thread.block->arrived[warp];
  if (++arrived == kWarp) {
    arrived = 0;
    gather(thread.block->threads + warp * kWarp, meeting);
    step();
  } else {
    remove(thread);
    look_for_absent(thread);
    reschedule();
  }
  return thread.answer;
}

// All threads have arrived.
void Machine::pass(Block& block, Barrier& barrier) {
  for (Thread* const thread : barrier.waiting) {
    thread->at = Meeting::kNone;
    thread->answer = barrier.any;
    thread->acquired = barrier.acquired;
    thread->looks.begin(memory_.now());
    join(known_[thread->stamp.thread], barrier.known);
    if (thread == current_) continue;
    add(*thread, false);
    --block.at_block[thread->index / kWarp];
    --block.at_block.back();
  }
  barrier.waiting.clear();
  barrier.here.assign(grid_.threads, false);
  barrier.arrived = 0;
  barrier.any = false;
}

bool Machine::meet_at(uint32_t number, uint32_t count, Meeting meeting, bool yes) {
  part();
  Thread& thread = *current_;
  Block& block = *thread.block;
  Barrier& barrier = block.barriers[number];
  const bool waits = meeting != Meeting::kArrive;
  if (barrier.arrived == 0) {
    barrier.count = count;
    barrier.meeting = Meeting::kNone;
    barrier.acquired = 0;
    barrier.here.resize(grid_.threads);
  }
  if (waits) thread.at = meeting;
  if (barrier.count != count || (waits && barrier.meeting != Meeting::kNone && barrier.meeting != meeting)) {
    find("threads meet at different places: %s", standings(block.threads, grid_.threads).c_str());
  }
  if (barrier.here[thread.index]) {
    find("a thread comes to barrier %u twice: rank %u, block %u, thread %u", number, block.rank, block.number,
         thread.index);
  }
  if (waits) barrier.meeting = meeting;
  barrier.here[thread.index] = true;
  barrier.any = barrier.any || yes;
  barrier.acquired = std::max(barrier.acquired, thread.acquired);
  join(barrier.known, known_[thread.stamp.thread]);
  uint32_t& own = barrier.known[thread.index / kWarp];
  own = std::max(own, ++thread.stamp.barriers);
  if (waits) barrier.waiting.push_back(&thread);
  if (++barrier.arrived == count) {
    pass(block, barrier);
    step();
  } else if (waits) {
    ++block.at_block[thread.index / kWarp];
    ++block.at_block.back();
    remove(thread);
    look_for_absent(thread);
    reschedule();
  } else {
    step();
  }
  return thread.answer;
}

// ---- lines

// The thread does not store a line with its octet: the others that wait for it continue separately.
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

// Returns false if the octet did not store the line together, so that the caller must.
bool Machine::store_of_line(char* at, const Word (&halves)[2]) {
  step();
  Octet& of = octet();
  if (!of.together) return false;
  Thread& thread = *current_;
  const uint32_t lane = thread.index % kOctet;
  char* const line = at - 16 * lane;
  if (reinterpret_cast<Word>(line) % 128 != 0 || (of.arrived != 0 && of.line != line)) {
    part();
    return false;
  }
  of.line = line;
  of.arrived |= 1u << lane;
  std::copy(halves, halves + 2, &of.data[2 * lane]);
  if (of.arrived != 0xff) {
    remove(thread);
    reschedule();
    return !std::exchange(thread.alone, false);
  }
  of.arrived = 0;
  Thread* const first = &thread - lane;
  std::array<Stamp, Memory::kLine> by;
  for (uint32_t i = 0; i < Memory::kLine; ++i) by[i] = first[i / 2].stamp;
  memory_.store_line(reinterpret_cast<Word*>(line), of.data, by);
  for (uint32_t i = 0; i < kOctet; ++i) {
    if (i != lane) add(first[i], false);
  }
  return true;
}

}  // namespace emulate
}  // namespace blink
