// The rank's own data where they do not lie on whole words, or end within one: read and written by the widest pieces
// that their address allows; the elements themselves are aligned.
#pragma once

#include "blink/wires.h"

namespace blink {
namespace device {

// The widest piece, up to 4 bytes, that all addresses p + 4·n are aligned to.
BLINK_INLINE uint32_t piece_of(const void* p) {
  const uint32_t low = static_cast<uint32_t>(reinterpret_cast<Word>(p)) | 4;
  return low & (0 - low);
}

BLINK_INLINE uint32_t load_piece(const char* at, uint32_t bytes) {
  if (bytes == 4) return load<uint32_t>(at);
  if (bytes == 2) return load<uint16_t>(at);
  return load<uint8_t>(at);
}

BLINK_INLINE void store_piece(char* at, uint32_t bytes, uint32_t piece) {
  if (bytes == 4) return store<uint32_t>(at, piece);
  if (bytes == 2) return store<uint16_t>(at, static_cast<uint16_t>(piece));
  store<uint8_t>(at, static_cast<uint8_t>(piece));
}

// Of a message of `total` bytes, those in this unit.
template <class Wire>
BLINK_INLINE uint32_t bytes_in(uint32_t unit, uint32_t total) {
  const uint32_t first = Units<Wire>::offset(unit);
  const uint32_t left = first < total ? total - first : 0;
  const uint32_t width = Units<Wire>::width(unit);
  return left < width ? left : width;
}

// Of one unit, the own data that are not whole words: rare, and so a loop over pieces, which costs the loop around it
// neither a call nor registers. 32 bits at a time: pieces of 8 bytes are two of 4.
template <class Wire>
BLINK_INLINE Pair load_odd(const char* own, uint32_t unit, uint32_t total, uint32_t item) {
  const uint32_t bytes = bytes_in<Wire>(unit, total);
  const uint32_t piece = bytes % 4 == 0 ? piece_of(own) : item;
  const char* const at = own + Units<Wire>::offset(unit);
  uint32_t words[4] = {0, 0, 0, 0};
  BLINK_NO_UNROLL
  for (uint32_t i = 0; i < bytes; i += piece) {
    const uint32_t part = load_piece(at + i, piece) << (i % 4 * 8);
    BLINK_UNROLL
    for (uint32_t n = 0; n < 4; ++n) words[n] |= n == i / 4 ? part : 0;
  }
  return {words[0] | static_cast<Word>(words[1]) << 32, words[2] | static_cast<Word>(words[3]) << 32};
}

template <class Wire>
BLINK_INLINE void store_odd(char* kept, uint32_t unit, uint32_t total, uint32_t item, const Pair& data) {
  const uint32_t bytes = bytes_in<Wire>(unit, total);
  const uint32_t piece = bytes % 4 == 0 ? piece_of(kept) : item;
  char* const at = kept + Units<Wire>::offset(unit);
  BLINK_NO_UNROLL
  for (uint32_t i = 0; i < bytes; i += piece) {
    store_piece(at + i, piece, static_cast<uint32_t>((i < 8 ? data.low : data.high) >> (i % 8 * 8)));
  }
}

}  // namespace device
}  // namespace blink
