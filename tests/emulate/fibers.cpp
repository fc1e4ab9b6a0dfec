#include "emulate/fibers.h"

#include <cstring>

namespace blink {
namespace emulate {

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

// ---- machine.h

namespace {

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
bool meet_at(uint32_t barrier, uint32_t count, Meeting meeting, bool yes) {
  return machine->meet_at(barrier, count, meeting, yes);
}

Word load_relaxed(const void* at) { return machine->load_relaxed(static_cast<const Word*>(at)); }
Word load_acquire(const void* at) { return machine->load_acquire(static_cast<const Word*>(at)); }

void store_release(void* at, Word value) {
  machine->access();
  machine->memory().release(machine->current().stamp);
  machine->memory().store(static_cast<Word*>(at), value, ~Word{0}, machine->current().stamp);
}

void store_relaxed(void* at, Word value) { machine->store(static_cast<Word*>(at), value); }

bool claim(void* at, Word value) {
  machine->access();
  Word* const word = static_cast<Word*>(at);
  if (*word != 0) return false;
  *word = value;
  return true;
}

// The halves of a vector are separate loads, in any order.
void load_halves(const char* at, Word (&to)[2]) {
  const uint32_t first = machine->either();
  for (const uint32_t i : {first, first ^ 1}) to[i] = load_relaxed(at + 8 * i);
}

void store_halves(char* at, const Word (&from)[2]) {
  if (machine->store_of_line(at, from)) return;
  const uint32_t first = machine->either();
  for (const uint32_t i : {first, first ^ 1}) store_relaxed(at + 8 * i, from[i]);
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
