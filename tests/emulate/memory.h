// A memory that is weaker than that of any known GPU. Stores of a thread are held back, and become visible to other
// blocks in any order: by words of 8 bytes, with the stores of each word in order. A line that an octet stores with one
// instruction becomes visible in 16 parts too; only its last word is ordered behind the others. A release makes visible
// the stores of its thread, and those of its block that the thread knows. A plain load may return any value of a word
// since the thread's last acquire, as a cache with an early read would. A relaxed load may return any value since the
// thread last met others or waited, as concurrent loads may. docs/gpu.md lists what PTX allows beyond that.
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

// The time of an action: the barriers of the block that its thread had reached, and the converge()s of its warp.
struct Stamp {
  uint32_t thread = 0;  // index in the launch
  uint32_t barriers = 0, converges = 0;
};

// For each warp of a block, which reaches barriers as a whole: the number of barriers whose prior actions are known.
using Known = std::array<uint32_t, 16>;

// Threads of one block: an action before a barrier precedes those behind it, also through other threads; the same holds
// for a converge() of a warp. The second stamp is always the current action's.
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

// Limits of a thread's relaxed loads: no value older than `since`, when it last met others or waited, and for each word
// none older than an earlier load returned.
struct Looks {
  Word since = 0;
  std::vector<std::pair<const Word*, Word>> newest;

  void begin(Word now) {
    since = now;
    newest.clear();
  }
};

// In 1/256: frequencies of holding a store back, of making one visible, and of loading an old value.
struct Weakness {
  uint32_t held, let_go, past;
};

class Memory {
 public:
  Memory(const Order& order, uint32_t blocks, const Weakness& weakness, Random& random)
      : order_(order), weakness_(weakness), random_(random), held_(blocks) {}

  static constexpr uint32_t kLine = 16;  // words
  using Line = std::array<Word, kLine>;

  // `acquired`: the time of the thread's last acquire. Words are at multiples of 8; `mask` selects bytes of each.
  Word load_plain(const Word* at, Word mask, const Stamp& by, Word acquired);
  Word load_relaxed(const Word* at, const Stamp& by, Looks& looks);
  void store(Word* at, Word value, Word mask, const Stamp& by);
  // Always held back, so that a line does not look complete only because stores are rarely held back.
  void store_line(Word* at, const Line& value, const std::array<Stamp, kLine>& by);
  // Makes visible all stores that are ordered before `by`.
  void release(const Stamp& by);
  // The current time: after an acquire a thread's loads return current or later values.
  Word now() const { return now_; }

  // Sometimes makes a held-back store visible.
  void let_some_go();
  // Returns false if no store was held back.
  bool let_all_go();

 private:
  struct Held {
    Word* at;
    Word value, mask;
    Stamp by;
    uint32_t next;   // of the same word, plus 1;
    uint32_t place;  // in held_[block]
    uint32_t last;    // plus 1: the last word of its line, which waits for this one;
    uint32_t before;  // number of words of its line that it waits for
  };
  struct Shadow {
    Word before;     // the value until `when`;
    Word changed;    // mask of the bytes that changed then;
    uint32_t when;   // 0: the value never changed;
    Stamp by;        // the author of the change;
    uint32_t held;   // the first held-back store, plus 1
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
