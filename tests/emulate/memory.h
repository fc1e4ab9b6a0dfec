// A memory that is weaker than any GPU known to us. What a thread stores is held back, and comes to be seen by other
// blocks in any order: word by word of 8 bytes, each word's stores in their order. A line that an octet stores by one
// instruction comes in 16 parts, too; its last word, and that alone, comes behind the others. A release brings to memory
// what its thread has stored, and what it knows that others of its block have. A plain load may give what a word held
// at any time since the thread's last acquire, as a cache that has read it early would; a relaxed one what it held at
// any time since the thread last met others or waited, as loads that are under way at once may. What PTX allows beyond
// that docs/gpu.md lists.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blink/call.h"
#include "emulate/random.h"

namespace blink {
namespace emulate {

// When something was done: how many barriers of the block its thread had come to, and converge()s of its warp.
struct Stamp {
  uint32_t thread = 0;  // of all in the launch
  uint32_t barriers = 0, converges = 0;
};

// Of the warps of a block, each of which comes to barriers as a whole: what was done before so many barriers is known.
using Known = std::array<uint32_t, 16>;

// Threads of one block: what was done before a barrier is before what is done behind it, through others too; so it is
// with a converge() of a warp. The second of two stamps is always one of now.
struct Order {
  uint32_t threads;                 // of a block
  const std::vector<Known>* known;  // by thread

  bool same_block(const Stamp& a, const Stamp& b) const { return a.thread / threads == b.thread / threads; }
  bool before(const Stamp& a, const Stamp& b) const {
    if (a.thread == b.thread) return true;
    if (!same_block(a, b)) return false;
    return a.barriers < (*known)[b.thread][a.thread % threads / 32] ||
           (a.thread / 32 == b.thread / 32 && a.converges < b.converges);
  }
};

// What relaxed loads of a thread may give: nothing older than `since`, when it last met others or waited, and of a word
// nothing older than what they have given already.
struct Looks {
  Word since = 0;
  std::vector<std::pair<const Word*, Word>> newest;

  void begin(Word now) {
    since = now;
    newest.clear();
  }
};

// In 1/256: how often a store is held back, how often what is held back is let go, how often a load gives the past.
struct Weakness {
  uint32_t held, let_go, past;
};

class Memory {
 public:
  Memory(const Order& order, uint32_t blocks, const Weakness& weakness, Random& random)
      : order_(order), weakness_(weakness), random_(random), held_(blocks) {}

  static constexpr uint32_t kLine = 16;  // words
  using Line = std::array<Word, kLine>;

  // `acquired`: when the thread last acquired. Words are at multiples of 8; of each, the bytes that are set in `mask`.
  Word load_plain(const Word* at, Word mask, const Stamp& by, Word acquired);
  Word load_relaxed(const Word* at, const Stamp& by, Looks& looks);
  void store(Word* at, Word value, Word mask, const Stamp& by);
  // Held back always, so that no line is seen whole by how seldom anything is.
  void store_line(Word* at, const Line& value, const std::array<Stamp, kLine>& by);
  // Brings to memory all that is before `by`.
  void release(const Stamp& by);
  // All loads of a thread that acquires now give what memory has now, or later.
  Word now() const { return now_; }

  // Now and then lets something go that is held back.
  void let_some_go();
  // False: there was nothing.
  bool let_all_go();

 private:
  struct Held {
    Word* at;
    Word value, mask;
    Stamp by;
    uint32_t next;   // of the same word, plus 1
    uint32_t place;  // in held_[block]
    uint32_t last;    // plus 1: the last word of its line, which waits for this one
    uint32_t before;  // words of its line that it waits for
  };
  struct Shadow {
    Word before;     // what it held until `when`, as far as
    Word changed;    // these bytes go
    uint32_t when;   // 0: it was always what it is
    Stamp by;        // who changed it
    uint32_t held;   // the first one, plus 1
  };
  static constexpr uint32_t kPage = 512;  // words
  using Page = std::array<Shadow, kPage>;

  Shadow* shadow(const Word* at);
  Shadow& made(const Word* at);
  uint32_t block_of(const Stamp& by) const { return by.thread / order_.threads; }
  bool gives_past(const Shadow& of, const Stamp& by, Word since);
  Word given(const Word* at, Word mask, Shadow& of, const Stamp& by, bool past);
  Held* held_by_block(Shadow& of, const Stamp& by);
  Word with_own(Word value, Shadow& of, const Stamp& by);
  uint32_t hold(Word* at, Word value, Word mask, const Stamp& by);
  void write(Shadow& of, Word* at, Word value, Word mask, const Stamp& by);
  void let_go(uint32_t index);
  void let_one_go(uint32_t index);
  void let_older_go(Word* at, const Stamp& by);
  void trim(uint32_t block);

  const Order order_;
  const Weakness weakness_;
  Random& random_;
  Word now_ = 0;
  std::unordered_map<Word, std::unique_ptr<Page>> pages_;
  Word last_number_ = ~Word{0};
  Page* last_ = nullptr;
  std::vector<Held> pool_;
  std::vector<uint32_t> free_;
  std::vector<std::vector<uint32_t>> held_;  // by block
};

}  // namespace emulate
}  // namespace blink
