#include "values.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

size_t bytes_of(ncclDataType_t type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

static unsigned narrow(long value, int exponent_bits, int mantissa_bits) {
  const unsigned sign = value < 0;
  unsigned long magnitude = (unsigned long)(value < 0 ? -value : value);
  if (magnitude == 0) return 0;
  int exponent = 63 - __builtin_clzl(magnitude);
  const unsigned long fraction = magnitude - (1ul << exponent);
  const unsigned long mantissa =
      exponent <= mantissa_bits ? fraction << (mantissa_bits - exponent) : fraction >> (exponent - mantissa_bits);
  if (exponent > mantissa_bits && mantissa << (exponent - mantissa_bits) != fraction) abort();  // not representable
  exponent += (1 << (exponent_bits - 1)) - 1;
  return sign << (exponent_bits + mantissa_bits) | (unsigned)exponent << mantissa_bits | (unsigned)mantissa;
}

void encode(ncclDataType_t type, long value, void* out) {
  const uint64_t wrapped = (uint64_t)value;
  const float single = (float)value;
  const double twofold = (double)value;
  uint16_t two;
  uint8_t one;
  switch (type) {
    case ncclFloat32: memcpy(out, &single, 4); return;
    case ncclFloat64: memcpy(out, &twofold, 8); return;
    case ncclFloat16: two = (uint16_t)narrow(value, 5, 10); memcpy(out, &two, 2); return;
    case ncclBfloat16: two = (uint16_t)narrow(value, 8, 7); memcpy(out, &two, 2); return;
    case ncclFloat8e4m3: one = (uint8_t)narrow(value, 4, 3); memcpy(out, &one, 1); return;
    case ncclFloat8e5m2: one = (uint8_t)narrow(value, 5, 2); memcpy(out, &one, 1); return;
    default: memcpy(out, &wrapped, bytes_of(type)); return;
  }
}

static bool is_signed(ncclDataType_t type) { return type != ncclUint8 && type != ncclUint32 && type != ncclUint64; }
static bool is_tiny(ncclDataType_t type) { return type == ncclFloat8e4m3 || type == ncclFloat8e5m2; }

bool is_exact(ncclDataType_t type, ncclRedOp_t op, int ranks) {
  if (is_tiny(type) && ranks > 8) return false;
  return op != ncclAvg || !is_tiny(type) || (ranks & (ranks - 1)) == 0;
}

long operand(ncclDataType_t type, ncclRedOp_t op, int ranks, int rank, size_t i) {
  const long mixed = (long)((size_t)rank * 5 + i * 3 + i / 7);
  switch (op) {
    case ncclProd: return 1 + (((size_t)rank + i) % 3 == 0);
    case ncclMax: case ncclMin: return mixed % (is_tiny(type) ? 8 : 100) - (is_signed(type) ? 3 : 0);
    case ncclAvg: return ranks * (long)(((size_t)rank + i) % 2);
    default: return mixed % (is_tiny(type) ? 2 : 8);
  }
}

long reduced(ncclDataType_t type, ncclRedOp_t op, int ranks, size_t i) {
  long result = operand(type, op, ranks, 0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const long value = operand(type, op, ranks, rank, i);
    if (op == ncclProd) result *= value;
    else if (op == ncclMax) result = result > value ? result : value;
    else if (op == ncclMin) result = result < value ? result : value;
    else result += value;
  }
  return op == ncclAvg ? result / ranks : result;
}

long datum(ncclDataType_t type, int rank, size_t i) {
  const long mixed = (long)((size_t)rank * 31 + i * 7 + i / 11);
  return mixed % (is_tiny(type) ? 8 : 128);
}
