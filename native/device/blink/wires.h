// Layout and arrival of messages. A message is a row of units of 16
// bytes, one thread's work each; a wire says what is in a unit and when it has arrived.
//
//   Simple   16 bytes of data. The sender counts messages in `tail` when all of one is there.
//   LL       4 data, 4 flag, 4 data, 4 flag: each half is one store, so its flag vouches for its data.
//   LL128    lines of 8 units: 120 bytes of data and 8 of flag. 8 neighbouring threads write one line by one
//            instruction, and NVLink keeps it together.
//
// LL and LL128 use the same memory, in turns. What one left behind must never look like the other's flag, or like a
// flag of its own from long ago:
//  - LL's flags have their uppermost bit set; LL128's, as 8 bytes, are below 2^63. So an old LL flag, which lies in the
//    upper half of where LL128 looks, is no LL128 flag.
//  - LL128 has data where LL has flags. Its receiver zeroes what it has read, before it lets the slot be written again.
//  - LL's flags come round after 2^31 messages. Every 2^30 messages the sender wipes what the message leaves of its
//    slot's lines (execute.h), whatever the wire.
#pragma once

#include "blink/state.h"

namespace blink {
namespace device {

template <class Wire>
struct Units;

// What most wires need not do: keep a warp together, and clear what was read.
struct AloneUnits {
  BLINK_INLINE static uint32_t padded(uint32_t units) { return units; }
  BLINK_INLINE static bool warp_all(bool ready) { return ready; }
  BLINK_INLINE static bool warp_any(bool yes) { return yes; }
  BLINK_INLINE static void warp_sync() {}
  BLINK_INLINE static void clear(char*, uint32_t) {}
};

// Messages with flags lie in lines, and nothing counts them.
struct LineUnits {
  static constexpr bool kCounted = false;
  static constexpr bool kFlagged = true;
  static constexpr uint32_t kAlignment = 8;
  BLINK_INLINE static char* room(const State& state, const Side& side) {
    return side.lines + side.slot * state.line_bytes;
  }
};

template <>
struct Units<Simple> : AloneUnits {
  static constexpr bool kCounted = true;   // by `tail`
  static constexpr bool kFlagged = false;
  static constexpr uint32_t kWords = 2;    // of data in a unit, at most
  static constexpr uint32_t kAlignment = 16;  // of own data that are read by whole words

  BLINK_INLINE static uint32_t count(uint32_t bytes) { return (bytes + 15) / 16; }
  BLINK_INLINE static uint32_t whole(uint32_t bytes) { return bytes / 16; }
  BLINK_INLINE static uint32_t offset(uint32_t unit) { return unit * 16; }
  BLINK_INLINE static uint32_t width(uint32_t) { return 16; }
  BLINK_INLINE static Pair load_own(const char* at, uint32_t) { return load_pair(at); }
  BLINK_INLINE static void store_own(char* at, uint32_t, const Pair& data) { store_pair(at, data); }

  BLINK_INLINE static char* room(const State& state, const Side& side) {
    return side.ring + side.slot * state.slot_bytes;
  }
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
  static constexpr uint32_t kWords = 2;

  BLINK_INLINE static uint32_t count(uint32_t bytes) { return (bytes + 119) / 120 * 8; }
  BLINK_INLINE static uint32_t whole(uint32_t bytes) { return bytes / 120 * 8; }
  // A warp stays together: it looks at 4 lines at a time, also where there are fewer.
  BLINK_INLINE static uint32_t padded(uint32_t units) { return (units + kWarp - 1) / kWarp * kWarp; }
  // Which unit of its line it is. Threads come in whole lines, so each has the same one of every line it looks at.
  BLINK_INLINE static uint32_t in_line(uint32_t unit) { return (kWarp % 8 == 0 ? thread_index() : unit) % 8; }
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
  BLINK_INLINE static void clear(char* message, uint32_t unit) { store_halves(message + unit * 16, {0, 0}); }
  BLINK_INLINE static bool warp_all(bool ready) { return all_of_warp(ready); }
  BLINK_INLINE static bool warp_any(bool yes) { return any_of_warp(yes); }
  // Whatever parted the threads of a line: they read and write it by one instruction.
  BLINK_INLINE static void warp_sync() { converge(); }
#ifdef BLINK_WHOLE_LINES
  BLINK_INLINE static bool read(const char* message, uint32_t unit, Word position, Pair& raw) {
    raw = load_halves(message + unit * 16);
    return !has_flag(unit) || raw.high == flag(position);
  }
  BLINK_INLINE static void write(char* message, uint32_t unit, Word position, const Pair& data) {
    store_halves(message + unit * 16, {data.low, has_flag(unit) ? flag(position) : data.high});
  }
#else
  // Nobody keeps 128 bytes together here: the flag is written last and read first.
  static bool read(const char* message, uint32_t unit, Word position, Pair& raw) {
    const char* const line = message + unit / 8 * 128;
    if (load_acquire(reinterpret_cast<const AnyWord*>(line + 120)) != flag(position)) return false;
    raw = load_halves(message + unit * 16);
    return true;
  }
  static void write(char* message, uint32_t unit, Word position, const Pair& data) {
    auto* const words = reinterpret_cast<AnyWord*>(message + unit * 16);
    if (!has_flag(unit)) return store_halves(message + unit * 16, data);
    __atomic_store_n(words, data.low, __ATOMIC_RELAXED);
    store_release(words + 1, flag(position));
  }
#endif
};

}  // namespace device
}  // namespace blink
