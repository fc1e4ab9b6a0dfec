// Layout and arrival of messages. A message is a row of units of 16 bytes, each handled by one thread. A wire defines
// the content of a unit and the sign of its arrival.
//
//   Simple   16 bytes of data. The sender counts a message in `tail` when all of it is written.
//   LL       4 data, 4 flag, 4 data, 4 flag: each half is one store, so its flag vouches for its data.
//   LL128    lines of 8 units: 120 bytes of data and a flag in the last 8. 8 neighbouring threads write a line in one
//            instruction, and NVLink keeps it together. The loads of the threads are separate: so after a vote of the
//            warp has confirmed the flag, the line is loaded again.
//
// Each wire has its own memory, which only the sender writes. Old data there never equal an expected flag:
//  - LL128's flag of message number p is p + 1: 64 bits that only increase. It is at the same place in every line, and
//    only flags are stored there. So the place holds 0 or the flag of a message p - n * slots. That is below the
//    expected flag, or equal to it, and then the line is that message's own.
//  - LL's flags are at fixed places, too, but repeat after 2^31 messages. Every 2^30 messages the sender clears the
//    rest of its slot's LL lines (execute.h): a message of LL clears the units behind its own, and one of another wire,
//    which counts in the same positions, clears all. 0 is not a flag, since flags have their uppermost bit set.
//
// With flags, the head needs no acquire and release. A word of LL is one store and one load with its flag. In LL128 no
// reader sees the flag before the rest of the line, and it loads the rest after the flag. So the head is relaxed at
// both ends. It is stored behind a barrier that each thread reaches after all of its loads have returned (it has stored
// their results). The next stores into a slot depend on the loaded head: no store is early, and the sender's own stores
// are in order. PTX guarantees neither that a line's flag is last nor that a store behind a barrier cannot overtake a
// load; docs/gpu.md says why known hardware does. Where one thread handles a line (this CPU's LL128), data are read
// after their flag, and before the head, both by release and acquire. A relaxed head publishes nothing else of its
// block: a connection has one wire within a launch, and the end of a kernel orders the data for the next wire.
#pragma once

#include "blink/state.h"

namespace blink {
namespace device {

template <class Wire>
struct Units;

// The default, for wires that do not keep a warp together.
struct AloneUnits {
  static constexpr bool kReloads = false;
  BLINK_INLINE static uint32_t padded(uint32_t units) { return units; }
  BLINK_INLINE static bool warp_all(bool ready) { return ready; }
  BLINK_INLINE static bool warp_any(bool yes) { return yes; }
  BLINK_INLINE static void warp_sync() {}
};

// Messages with flags are in lines, without a counter.
struct LineUnits {
  static constexpr bool kCounted = false;
  static constexpr bool kFlagged = true;
  static constexpr uint32_t kAlignment = 8;
};

template <>
struct Units<Simple> : AloneUnits {
  static constexpr bool kCounted = true;   // by `tail`
  static constexpr bool kFlagged = false;
  static constexpr bool kOrderedHead = true;  // stored with release, loaded with acquire
  static constexpr uint32_t kWords = 2;    // data words in a unit, at most
  static constexpr uint32_t kAlignment = 16;  // of own data that are accessed as whole words

  BLINK_INLINE static uint32_t count(uint32_t bytes) { return (bytes + 15) / 16; }
  BLINK_INLINE static uint32_t whole(uint32_t bytes) { return bytes / 16; }
  BLINK_INLINE static uint32_t offset(uint32_t unit) { return unit * 16; }
  BLINK_INLINE static uint32_t width(uint32_t) { return 16; }
  BLINK_INLINE static Pair load_own(const char* at, uint32_t) { return load_pair(at); }
  BLINK_INLINE static void store_own(char* at, uint32_t, const Pair& data) { store_pair(at, data); }

  BLINK_INLINE static bool read(const char* message, uint32_t unit, Word, Pair& raw) {
    raw = load_pair(message + unit * 16);
    return true;
  }
  BLINK_INLINE static Pair data(const Pair& raw) { return raw; }
  BLINK_INLINE static void write(char* message, uint32_t unit, Word, const Pair& data) {
    store_pair(message + unit * 16, data);
  }
};

template <>
struct Units<LL> : AloneUnits, LineUnits {
  static constexpr bool kOrderedHead = false;
  static constexpr uint32_t kWords = 1;

  BLINK_INLINE static uint32_t count(uint32_t bytes) { return (bytes + 7) / 8; }
  BLINK_INLINE static uint32_t whole(uint32_t bytes) { return bytes / 8; }
  BLINK_INLINE static uint32_t offset(uint32_t unit) { return unit * 8; }
  BLINK_INLINE static uint32_t width(uint32_t) { return 8; }
  BLINK_INLINE static Pair load_own(const char* at, uint32_t) { return {load<Word>(at), 0}; }
  BLINK_INLINE static void store_own(char* at, uint32_t, const Pair& data) { store<Word>(at, data.low); }

  BLINK_INLINE static Word flag(Word position) { return (position << 32) | Word{1} << 63; }
  BLINK_INLINE static bool read(const char* message, uint32_t unit, Word position, Pair& raw) {
    raw = load_halves(message + unit * 16);
    const Word wanted = flag(position) >> 32;
    return raw.low >> 32 == wanted && raw.high >> 32 == wanted;
  }
  BLINK_INLINE static Pair data(const Pair& raw) { return {(raw.low & 0xffffffffu) | raw.high << 32, 0}; }
  BLINK_INLINE static void write(char* message, uint32_t unit, Word position, const Pair& data) {
    const Word sign = flag(position);
    store_halves(message + unit * 16, {(data.low & 0xffffffffu) | sign, data.low >> 32 | sign});
  }
};

template <>
struct Units<LL128> : LineUnits {
  // True if 8 threads handle a line side by side; otherwise one thread handles unit after unit.
  static constexpr bool kSideBySide = kWarp % 8 == 0;
  static constexpr bool kReloads = kSideBySide;
  static constexpr bool kOrderedHead = !kSideBySide;
  static constexpr uint32_t kWords = 2;

  BLINK_INLINE static uint32_t count(uint32_t bytes) { return (bytes + 119) / 120 * 8; }
  BLINK_INLINE static uint32_t whole(uint32_t bytes) { return bytes / 120 * 8; }
  // A warp stays together: it reads 4 lines at a time, even if fewer are left.
  BLINK_INLINE static uint32_t padded(uint32_t units) { return (units + kWarp - 1) / kWarp * kWarp; }
  // The unit's index in its line. Threads come in whole lines, so a thread has the same index in every line.
  BLINK_INLINE static uint32_t in_line(uint32_t unit) { return (kSideBySide ? thread_index() : unit) % 8; }
  BLINK_INLINE static bool has_flag(uint32_t unit) { return in_line(unit) == 7; }
  // 120 bytes per line, 16 per unit.
  BLINK_INLINE static uint32_t offset(uint32_t unit) { return unit * 15 + in_line(unit); }
  BLINK_INLINE static uint32_t width(uint32_t unit) { return has_flag(unit) ? 8 : 16; }
  BLINK_INLINE static Pair load_own(const char* at, uint32_t unit) {
    return {load<Word>(at), has_flag(unit) ? 0 : load<Word>(at + 8)};
  }
  BLINK_INLINE static void store_own(char* at, uint32_t unit, const Pair& data) {
    store<Word>(at, data.low);
    if (!has_flag(unit)) store<Word>(at + 8, data.high);
  }

  BLINK_INLINE static Word flag(Word position) { return position + 1; }
  BLINK_INLINE static Pair data(const Pair& raw) { return raw; }
  BLINK_INLINE static bool warp_all(bool ready) { return all_of_warp(ready); }
  BLINK_INLINE static bool warp_any(bool yes) { return any_of_warp(yes); }
  // After a divergence: the threads of a line write it in one instruction, and load it after the vote.
  BLINK_INLINE static void warp_sync() { converge(); }
  BLINK_INLINE static bool read(const char* message, uint32_t unit, Word position, Pair& raw) {
    if constexpr (kSideBySide) {
      raw = load_halves(message + unit * 16);
      return !has_flag(unit) || raw.high == flag(position);
    } else {
      const auto* const words = reinterpret_cast<const AnyWord*>(message + unit / 8 * 128);
      if (load_acquire(words + 15) != flag(position)) return false;
      raw = load_halves(message + unit * 16);
      return true;
    }
  }
  BLINK_INLINE static void write(char* message, uint32_t unit, Word position, const Pair& data) {
    if constexpr (kSideBySide) {
      store_halves(message + unit * 16, {data.low, has_flag(unit) ? flag(position) : data.high});
    } else if (!has_flag(unit)) {
      store_halves(message + unit * 16, data);
    } else {
      auto* const words = reinterpret_cast<AnyWord*>(message + unit * 16);
      store_relaxed(words, data.low);
      store_release(words + 1, flag(position));
    }
  }
};

}  // namespace device
}  // namespace blink
