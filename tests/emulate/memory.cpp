#include "emulate/memory.h"

namespace blink {
namespace emulate {
namespace {

// The most stores that a block holds back.
constexpr std::size_t kMostHeld = 256;

// Copies only the bytes that are set in `mask`: the others may belong to another thread.
void copy_bytes(Word* to, const Word* from, Word mask) {
  if (mask == ~Word{0}) {
    *to = *from;
    return;
  }
  for (uint32_t i = 0; i < sizeof(Word); ++i) {
    if ((mask >> (8 * i) & 1) != 0) reinterpret_cast<char*>(to)[i] = reinterpret_cast<const char*>(from)[i];
  }
}

Word read(const Word* at, Word mask) {
  Word value = 0;
  copy_bytes(&value, at, mask);
  return value;
}

}  // namespace

Memory::Shadow* Memory::shadow(const Word* at) {
  const Word word = reinterpret_cast<Word>(at) / sizeof(Word);
  if (word / kPage != last_number_) {
    const auto found = pages_.find(word / kPage);
    if (found == pages_.end()) return nullptr;
    last_number_ = word / kPage;
    last_ = found->second.get();
  }
  return &(*last_)[word % kPage];
}

Memory::Shadow& Memory::made(const Word* at) {
  if (Shadow* const there = shadow(at)) return *there;
  pages_[reinterpret_cast<Word>(at) / sizeof(Word) / kPage] = std::make_unique<Page>();
  return *shadow(at);
}

Memory::Held* Memory::held_by_block(Shadow& of, const Stamp& by) {
  for (uint32_t index = of.held; index != 0; index = pool_[index - 1].next) {
    if (order_.same_block(pool_[index - 1].by, by)) return &pool_[index - 1];
  }
  return nullptr;
}

// Adds the block's own stores: a thread always sees its own and those ordered before it, and may see the others.
Word Memory::with_own(Word value, Shadow& of, const Stamp& by) {
  const Held* const own = of.held == 0 ? nullptr : held_by_block(of, by);
  if (own == nullptr || !(order_.before(own->by, by) || random_.chance(128))) return value;
  return (value & ~own->mask) | (own->value & own->mask);
}

bool Memory::gives_past(const Shadow& of, const Stamp& by, Word since) {
  return of.when > since && !order_.before(of.by, by) && random_.chance(weakness_.past);
}

Word Memory::given(const Word* at, Word mask, Shadow& of, const Stamp& by, bool past) {
  const Word value = read(at, mask);
  return with_own(past ? (value & ~of.changed) | of.before : value, of, by);
}

Word Memory::load_relaxed(const Word* at, const Stamp& by, Looks& looks) {
  Shadow* const of = shadow(at);
  if (of == nullptr) return *at;
  Word since = looks.since;
  for (const auto& [word, when] : looks.newest) since = word == at ? when : since;
  const bool past = gives_past(*of, by, since);
  if (!past) looks.newest.emplace_back(at, now_);
  return given(at, ~Word{0}, *of, by, past);
}

Word Memory::load_plain(const Word* at, Word mask, const Stamp& by, Word acquired) {
  Shadow* const of = shadow(at);
  if (of == nullptr) return read(at, mask);
  return given(at, mask, *of, by, gives_past(*of, by, acquired));
}

void Memory::write(Shadow& of, Word* at, Word value, Word mask, const Stamp& by) {
  of.before = read(at, mask);
  of.changed = mask;
  of.when = static_cast<uint32_t>(++now_);
  of.by = by;
  copy_bytes(at, &value, mask);
}

uint32_t Memory::hold(Word* at, Word value, Word mask, const Stamp& by) {
  uint32_t index = static_cast<uint32_t>(pool_.size());
  if (free_.empty()) {
    pool_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Shadow& of = made(at);
  std::vector<uint32_t>& held = held_[block_of(by)];
  pool_[index] = {at, value, mask, by, of.held, static_cast<uint32_t>(held.size()), 0, 0};
  of.held = index + 1;
  held.push_back(index);
  return index;
}

void Memory::let_one_go(uint32_t index) {
  const Held one = pool_[index];
  Shadow& of = made(one.at);
  uint32_t* link = &of.held;
  while (*link != index + 1) link = &pool_[*link - 1].next;
  *link = one.next;
  std::vector<uint32_t>& held = held_[block_of(one.by)];
  held[one.place] = held.back();
  pool_[held[one.place]].place = one.place;
  held.pop_back();
  free_.push_back(index);
  if (one.last != 0) --pool_[one.last - 1].before;
  write(of, one.at, one.value, one.mask, one.by);
}

// When the last word of a line becomes visible, so do all its remaining words.
void Memory::let_go(uint32_t index) {
  if (pool_[index].before != 0) {
    for (uint32_t i = 1; i < kLine; ++i) let_older_go(pool_[index].at - i, pool_[index].by);
  }
  let_one_go(index);
}

// Makes the block's older stores to one word visible.
void Memory::let_older_go(Word* at, const Stamp& by) {
  Shadow& of = made(at);
  if (Held* const older = of.held == 0 ? nullptr : held_by_block(of, by)) {
    let_go(static_cast<uint32_t>(older - pool_.data()));
  }
}

void Memory::trim(uint32_t block) {
  std::vector<uint32_t>& held = held_[block];
  while (held.size() > kMostHeld) let_go(held[random_.below(held.size())]);
}

void Memory::store(Word* at, Word value, Word mask, const Stamp& by) {
  let_older_go(at, by);
  if (!random_.chance(weakness_.held)) return write(made(at), at, value, mask, by);
  hold(at, value, mask, by);
  trim(block_of(by));
}

void Memory::store_line(Word* at, const Line& value, const std::array<Stamp, kLine>& by) {
  constexpr uint32_t kLast = kLine - 1;
  for (uint32_t i = 0; i < kLine; ++i) let_older_go(at + i, by[i]);
  const uint32_t last = hold(at + kLast, value[kLast], ~Word{0}, by[kLast]);
  pool_[last].before = kLast;
  for (uint32_t i = 0; i < kLast; ++i) pool_[hold(at + i, value[i], ~Word{0}, by[i])].last = last + 1;
  trim(block_of(by[0]));
}

void Memory::release(const Stamp& by) {
  std::vector<uint32_t>& held = held_[block_of(by)];
  // The entry that replaces a removed one has been visited already, or comes later.
  for (std::size_t i = held.size(); i-- > 0;) {
    if (i < held.size() && order_.before(pool_[held[i]].by, by)) let_go(held[i]);
  }
}

void Memory::let_some_go() {
  if (!random_.chance(weakness_.let_go)) return;
  std::vector<uint32_t>& held = held_[random_.below(held_.size())];
  if (!held.empty()) let_go(held[random_.below(held.size())]);
}

bool Memory::let_all_go() {
  bool some = false;
  for (std::vector<uint32_t>& held : held_) {
    for (; !held.empty(); some = true) let_go(held.back());
  }
  return some;
}

}  // namespace emulate
}  // namespace blink
