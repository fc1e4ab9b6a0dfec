#include <algorithm>
#include <cstring>

#include "emulate/fibers.h"

namespace blink {
namespace emulate {
namespace {

const char* const kMeetings[] = {"", "barrier", "any_of_block", "all_of_warp", "any_of_warp", "converge"};

bool is_of_block(Meeting meeting) { return meeting == Meeting::kBarrier || meeting == Meeting::kAnyOfBlock; }

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

}  // namespace emulate
}  // namespace blink
