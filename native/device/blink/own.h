// The rank's own data where they do not lie on whole words, or end within one: read and written by the widest pieces
// that their address allows; the elements themselves are aligned.
#pragma once

#include "blink/wires.h"

namespace blink {
namespace device {

// The widest piece, up to 8 bytes, that all addresses p + 8·n are aligned to.
BLINK_INLINE uint32_t piece_of(const void* p) {
  const uint32_t low = static_cast<uint32_t>(reinterpret_cast<Word>(p)) | 8;
  return low & (0 - low);
}

template <class T>
BLINK_INLINE Pair load_pieces(const char* at, uint32_t bytes) {
  Word words[2] = {0, 0};
  BLINK_UNROLL
  for (uint32_t i = 0; i < 16; i += sizeof(T)) {
    if (i + sizeof(T) <= bytes) words[i / 8] |= static_cast<Word>(load<T>(at + i)) << (i % 8 * 8);
  }
  return {words[0], words[1]};
}

BLINK_INLINE Pair load_some(const char* at, uint32_t bytes, uint32_t piece) {
  if (piece == 8) return load_pieces<Word>(at, bytes);
  if (piece == 4) return load_pieces<uint32_t>(at, bytes);
  if (piece == 2) return load_pieces<uint16_t>(at, bytes);
  return load_pieces<uint8_t>(at, bytes);
}

template <class T>
BLINK_INLINE void store_pieces(char* at, uint32_t bytes, const Pair& data) {
  BLINK_UNROLL
  for (uint32_t i = 0; i < 16; i += sizeof(T)) {
    if (i + sizeof(T) <= bytes) store<T>(at + i, static_cast<T>((i < 8 ? data.low : data.high) >> (i % 8 * 8)));
  }
}

BLINK_INLINE void store_some(char* at, uint32_t bytes, uint32_t piece, const Pair& data) {
  if (piece == 8) return store_pieces<Word>(at, bytes, data);
  if (piece == 4) return store_pieces<uint32_t>(at, bytes, data);
  if (piece == 2) return store_pieces<uint16_t>(at, bytes, data);
  return store_pieces<uint8_t>(at, bytes, data);
}

// Of a message of `total` bytes, those in this unit.
template <class Wire>
BLINK_INLINE uint32_t bytes_in(uint32_t unit, uint32_t total) {
  const uint32_t first = Units<Wire>::offset(unit);
  const uint32_t left = first < total ? total - first : 0;
  const uint32_t width = Units<Wire>::width(unit);
  return left < width ? left : width;
}

// The own data of one unit, where it is not whole words. Rare, and so not compiled into every loop.
template <class Wire>
BLINK_OUTLINE Pair load_odd(const char* own, uint32_t unit, uint32_t total, uint32_t item) {
  const uint32_t bytes = bytes_in<Wire>(unit, total);
  return load_some(own + Units<Wire>::offset(unit), bytes, bytes % 8 == 0 ? piece_of(own) : item);
}

template <class Wire>
BLINK_OUTLINE void store_odd(char* kept, uint32_t unit, uint32_t total, uint32_t item, const Pair data) {
  const uint32_t bytes = bytes_in<Wire>(unit, total);
  store_some(kept + Units<Wire>::offset(unit), bytes, bytes % 8 == 0 ? piece_of(kept) : item, data);
}

}  // namespace device
}  // namespace blink
