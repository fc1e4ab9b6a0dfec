#include "agreement.h"

#include <sched.h>

#include <algorithm>

#include "deadline.h"

namespace blink::shim {

bool Agreement::chunk_for(int rank, std::uint64_t call, std::uint64_t initial, std::uint64_t* chunk_bytes) {
  Line& mine = reached_[rank];
  if (mine.value.load(std::memory_order_relaxed) < call + 1) mine.value.store(call + 1);
  const auto is_open = [this, call] {
    const std::uint64_t from = shared_.proposed.value.load();
    return from != 0 && from <= call;
  };
  if (is_open()) {
    const Deadline patience(kPatienceS);
    while (is_open()) {
      if (patience.passed()) return false;
      sched_yield();  // rank 0 may need this core for its verdict
    }
  }
  const std::uint64_t decided = shared_.decided.value.load();
  *chunk_bytes = initial;
  for (std::uint64_t i = decided; i > 0 && i + kHistory > decided; --i) {
    const Decision& decision = shared_.decisions[(i - 1) % kHistory];
    if (decision.from.load(std::memory_order_relaxed) > call) continue;
    *chunk_bytes = decision.chunk_bytes.load(std::memory_order_relaxed);
    break;
  }
  return true;
}

std::uint64_t Agreement::decide(std::uint64_t chunk_bytes, void (*pause)()) {
  const auto between = [pause] {
    if (pause != nullptr) pause();
  };
  const std::uint64_t from = pick();
  if (from == 0) return 0;
  between();
  propose(from);
  between();
  if (passed(from)) {
    withdraw();
    return 0;
  }
  between();
  commit(from, chunk_bytes);
  return from;
}

std::uint64_t Agreement::pick() const {
  std::uint64_t least = ~std::uint64_t{0}, most = 0;
  for (int rank = 0; rank < nranks_; ++rank) {
    const std::uint64_t reached = reached_[rank].value.load();
    least = std::min(least, reached);
    most = std::max(most, reached);
  }
  const std::uint64_t decided = shared_.decided.value.load(std::memory_order_relaxed);
  if (decided >= kHistory) {
    // The place of number decided − kHistory is due; the one after it must do for everybody.
    const std::uint64_t next = shared_.decisions[(decided + 1) % kHistory].from.load(std::memory_order_relaxed);
    if (least <= next) return 0;
  }
  return most + 2;
}

bool Agreement::passed(std::uint64_t from) const {
  const auto is_there = [from](const Line& line) { return line.value.load() > from; };
  return std::any_of(reached_, reached_ + nranks_, is_there);
}

void Agreement::commit(std::uint64_t from, std::uint64_t chunk_bytes) {
  const std::uint64_t decided = shared_.decided.value.load(std::memory_order_relaxed);
  Decision& decision = shared_.decisions[decided % kHistory];
  decision.from.store(from, std::memory_order_relaxed);
  decision.chunk_bytes.store(chunk_bytes, std::memory_order_relaxed);
  shared_.decided.value.store(decided + 1);
  shared_.proposed.value.store(0);
}

}  // namespace blink::shim
