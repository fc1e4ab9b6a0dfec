// Layout and arrival of messages. A message is a row of units of 16
// bytes, one thread's work each; a wire says what is in a unit and when it has arrived.
//
//   Simple   16 bytes of data. The sender counts messages in `tail` when all of one is there.
//   LL       4 data, 4 flag, 4 data, 4 flag: each half is one store, so its flag vouches for its data.
//   LL128    lines of 8 units: 120 bytes of data and 8 of flag, the last ones. 8 neighbouring threads write one line by
//            one instruction, and NVLink keeps it together. Each thread's load is one by itself: so a line is loaded
//            once more when a vote of the warp has said that its flag was seen.
//
// Each wire has memory of its own, which only the sender writes. What an old message left there never looks like a flag
// that is waited for:
//  - LL128's flag of message number p is p + 1: 64 bits that only rise. It lies at the same place of every line, and
//    nothing but flags is ever stored there. So what lies there is 0, or the flag of a message p - n * slots: below the
//    one that is waited for, or equal to it, and then the line is that message's own.
//  - LL's flags lie at fixed places, too, but come round after 2^31 messages. Every 2^30 messages the sender wipes what
//    the message leaves of LL's lines in its slot (execute.h): one of LL what is behind its units, one of another wire,
//    which counts in the same positions, all. 0 is no flag: they have their uppermost bit set.
//
// Flags make the order of places superfluous. A word of LL is one store and one load with its flag; of a line of LL128
// the flag is not seen before the rest, and the rest is loaded behind the flag. So the head may be relaxed at both ends:
// it is stored behind a barrier that each thread comes to with all that it loaded in hand (it has stored what it made of
// it), and what comes into a slot next depends on the head that was read; no store is early, and the sender's own are in
// order. PTX promises neither that a line's flag is last, nor that a load is not overtaken by a store behind a barrier:
// docs/gpu.md says what does. Where one thread goes through a line (this CPU's LL128), data are read behind their flag,
// and the head says so, both by release and acquire. A relaxed head lets nobody know of what else its block did: a
// connection has one wire within a launch, and the end of a kernel orders what the next wire may rely on.
#pragma once

#include "blink/state.h"

namespace blink {
namespace device {

template <class Wire>
struct Units;

// What most wires need not do: keep a warp together.
struct AloneUnits {
  static constexpr bool kReloads = false;
  BLINK_INLINE static uint32_t padded(uint32_t units) { return units; }
  BLINK_INLINE static bool warp_all(bool ready) { return ready; }
  BLINK_INLINE static bool warp_any(bool yes) { return yes; }
  BLINK_INLINE static void warp_sync() {}
};

// Messages with flags lie in lines, and nothing counts them.
struct LineUnits {
  static constexpr bool kCounted = false;
  static constexpr bool kFlagged = true;
  static constexpr uint32_t kAlignment = 8;
};

template <>
struct Units<Simple> : AloneUnits {
  static constexpr bool kCounted = true;   // by `tail`
  static constexpr bool kFlagged = false;
  static constexpr bool kOrderedHead = true;  // stored with release, read with acquire
  static constexpr uint32_t kWords = 2;    // of data in a unit, at most
  static constexpr uint32_t kAlignment = 16;  // of own data that are read by whole words

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
  // Whether 8 threads go through a line side by side, or one from unit to unit.
  static constexpr bool kSideBySide = kWarp % 8 == 0;
  static constexpr bool kReloads = kSideBySide;
  static constexpr bool kOrderedHead = !kSideBySide;
  static constexpr uint32_t kWords = 2;

  BLINK_INLINE static uint32_t count(uint32_t bytes) { return (bytes + 119) / 120 * 8; }
  BLINK_INLINE static uint32_t whole(uint32_t bytes) { return bytes / 120 * 8; }
  // A warp stays together: it looks at 4 lines at a time, also where there are fewer.
  BLINK_INLINE static uint32_t padded(uint32_t units) { return (units + kWarp - 1) / kWarp * kWarp; }
  // Which unit of its line it is. Threads come in whole lines, so each has the same one of every line it looks at.
  BLINK_INLINE static uint32_t in_line(uint32_t unit) { return (kSideBySide ? thread_index() : unit) % 8; }
  BLINK_INLINE static bool has_flag(uint32_t unit) { return in_line(unit) == 7; }
  // 120 bytes a line and 16 a unit.
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
  // Whatever parted the threads of a line: they write it by one instruction, and load it behind what was voted on.
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
