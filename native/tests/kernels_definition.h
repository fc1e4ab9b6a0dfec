// What the kernels compute, one element at a time and written differently from them: integers as bit strings of 64,
// narrow floats through ldexp, nearbyint and a search among all values of the format.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "blink/types.h"
#include "../src/kernels.h"

namespace {

using std::uint32_t;
using blink::Finish;

// ---- types

enum class Kind { kSigned, kUnsigned, kBool, kNarrow, kFloat32, kFloat64 };

struct Type {
  std::uint32_t code;
  const char* name;
  std::size_t size;
  Kind kind;
  int exponent_bits = 0;
  int mantissa_bits = 0;
  bool infinities = true;

  bool is_float() const { return kind == Kind::kNarrow || kind == Kind::kFloat32 || kind == Kind::kFloat64; }
};

const Type kTypes[] = {
    {BLINK_INT8, "int8", 1, Kind::kSigned},
    {BLINK_UINT8, "uint8", 1, Kind::kUnsigned},
    {BLINK_INT16, "int16", 2, Kind::kSigned},
    {BLINK_UINT16, "uint16", 2, Kind::kUnsigned},
    {BLINK_INT32, "int32", 4, Kind::kSigned},
    {BLINK_UINT32, "uint32", 4, Kind::kUnsigned},
    {BLINK_INT64, "int64", 8, Kind::kSigned},
    {BLINK_UINT64, "uint64", 8, Kind::kUnsigned},
    {BLINK_FLOAT16, "float16", 2, Kind::kNarrow, 5, 10},
    {BLINK_BFLOAT16, "bfloat16", 2, Kind::kNarrow, 8, 7},
    {BLINK_FLOAT32, "float32", 4, Kind::kFloat32, 8, 23},
    {BLINK_FLOAT64, "float64", 8, Kind::kFloat64, 11, 52},
    {BLINK_FLOAT8_E4M3FN, "float8_e4m3fn", 1, Kind::kNarrow, 4, 3, false},
    {BLINK_FLOAT8_E5M2, "float8_e5m2", 1, Kind::kNarrow, 5, 2},
    {BLINK_BOOL, "bool", 1, Kind::kBool},
};
const char* const kOpNames[] = {"sum", "prod", "min", "max", "band", "bor", "bxor"};

bool has(const Type& type, std::uint32_t op) { return !type.is_float() || op <= BLINK_MAX; }

std::uint64_t read(const void* memory, const Type& type, std::size_t index) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(memory) + index * type.size, type.size);
  return bits;
}

void write(void* memory, const Type& type, std::size_t index, std::uint64_t bits) {
  std::memcpy(static_cast<char*>(memory) + index * type.size, &bits, type.size);
}

using Elements = std::vector<std::uint64_t>;

std::vector<unsigned char> bytes_of(const Elements& elements, const Type& type) {
  std::vector<unsigned char> bytes(elements.size() * type.size);
  for (std::size_t i = 0; i < elements.size(); ++i) write(bytes.data(), type, i, elements[i]);
  return bytes;
}

// ---- narrow floats, by arithmetic

double decode(const Type& type, std::uint64_t bits) {
  const int sign_at = type.exponent_bits + type.mantissa_bits;
  const auto mantissa = static_cast<int>(bits & ((1u << type.mantissa_bits) - 1));
  const auto exponent = static_cast<int>((bits >> type.mantissa_bits) & ((1u << type.exponent_bits) - 1));
  const int top = (1 << type.exponent_bits) - 1;
  const int bias = (1 << (type.exponent_bits - 1)) - 1;
  double value;
  if (exponent == top && type.infinities) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == top && mantissa == (1 << type.mantissa_bits) - 1) {
    value = NAN;
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - type.mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1 << type.mantissa_bits), exponent - bias - type.mantissa_bits);
  }
  return (bits >> sign_at & 1) != 0 ? -value : value;
}

// The non-negative finite values of a format in order; their index is their code.
std::vector<double> finite_values(const Type& type) {
  std::vector<double> values;
  for (std::uint64_t code = 0; std::isfinite(decode(type, code)); ++code) values.push_back(decode(type, code));
  return values;
}

std::uint64_t encode(const Type& type, const std::vector<double>& values, double value) {
  const int sign_at = type.exponent_bits + type.mantissa_bits;
  const std::uint64_t sign = std::uint64_t{std::signbit(value)} << sign_at;
  const std::uint64_t all = (std::uint64_t{1} << sign_at) - 1;
  if (std::isnan(value)) return sign | all;
  const double size = std::fabs(value);
  const int bias = (1 << (type.exponent_bits - 1)) - 1;
  const int exponent = size == 0 || std::ilogb(size) < 1 - bias ? 1 - bias : std::ilogb(size);
  const double rounded =
      std::isinf(size) ? size
                       : std::ldexp(std::nearbyint(std::ldexp(size, type.mantissa_bits - exponent)),
                                    exponent - type.mantissa_bits);
  if (rounded > values.back()) return sign | (type.infinities ? values.size() : all);
  std::size_t low = 0;
  std::size_t high = values.size() - 1;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (values[middle] < rounded) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return sign | low;
}

// ---- the definition

struct Definition {
  const Type& type;
  std::vector<double> values;

  explicit Definition(const Type& of) : type(of) {
    if (type.kind == Kind::kNarrow) values = finite_values(type);
  }

  double widen(std::uint64_t bits) const {
    if (type.kind == Kind::kNarrow) return decode(type, bits);
    if (type.kind == Kind::kFloat64) {
      double value;
      std::memcpy(&value, &bits, 8);
      return value;
    }
    float value;
    const auto low = static_cast<std::uint32_t>(bits);
    std::memcpy(&value, &low, 4);
    return static_cast<double>(value);
  }

  std::uint64_t narrow(double value) const {
    std::uint64_t bits = 0;
    if (type.kind == Kind::kNarrow) return encode(type, values, value);
    if (type.kind == Kind::kFloat64) {
      std::memcpy(&bits, &value, 8);
      return bits;
    }
    const auto single = static_cast<float>(value);
    std::memcpy(&bits, &single, 4);
    return bits;
  }

  // Two float32 in a double add and multiply without a second rounding that shows: the double is rounded once.
  double rounded(double value) const {
    return type.kind == Kind::kFloat64 ? value : static_cast<double>(static_cast<float>(value));
  }

  double float_op(std::uint32_t op, double a, double b) const {
    switch (op) {
      case BLINK_SUM: return rounded(a + b);
      case BLINK_PROD: return rounded(a * b);
      case BLINK_MIN: return std::isnan(a) ? a : std::isnan(b) ? b : a < b ? a : b;
      default: return std::isnan(a) ? a : std::isnan(b) ? b : b < a ? a : b;
    }
  }

  std::uint64_t mask() const { return ~std::uint64_t{0} >> (64 - 8 * type.size); }

  std::int64_t as_signed(std::uint64_t bits) const {
    const std::uint64_t sign = mask() / 2 + 1;
    return static_cast<std::int64_t>((bits ^ sign) - sign);
  }

  std::uint64_t integer_op(std::uint32_t op, std::uint64_t a, std::uint64_t b) const {
    const bool a_is_less = type.kind == Kind::kSigned ? as_signed(a) < as_signed(b) : a < b;
    switch (op) {
      case BLINK_SUM: return type.kind == Kind::kBool ? (a | b) : (a + b) & mask();
      case BLINK_PROD: return (a * b) & mask();
      case BLINK_MIN: return a_is_less ? a : b;
      case BLINK_MAX: return a_is_less ? b : a;
      case BLINK_BAND: return a & b;
      case BLINK_BOR: return a | b;
      case BLINK_BXOR: return a ^ b;
    }
    return 0;
  }

  std::uint64_t integer_quotient(std::uint64_t value, std::uint64_t divisor) const {
    const bool negative = type.kind == Kind::kSigned && as_signed(value) < 0;
    const std::uint64_t size = negative ? (0 - value) & mask() : value;
    const std::uint64_t quotient = size / divisor;
    return (negative ? 0 - quotient : quotient) & mask();
  }

  std::uint64_t element(std::uint32_t op, const Elements& from, const Finish& finish) const {
    const std::size_t own = finish.own < 0 ? from.size() : static_cast<std::size_t>(finish.own);
    if (!type.is_float()) {
      const auto factor = static_cast<std::uint64_t>(static_cast<std::int64_t>(finish.scale));
      std::uint64_t value = 0;
      for (std::size_t s = 0; s < from.size(); ++s) {
        const std::uint64_t next = s == own ? (from[s] * factor) & mask() : from[s];
        value = s == 0 ? next : integer_op(op, value, next);
      }
      return finish.divisor > 1 ? integer_quotient(value, finish.divisor) : value;
    }
    double value = 0;
    for (std::size_t s = 0; s < from.size(); ++s) {
      const double next = s == own ? rounded(widen(from[s]) * rounded(finish.scale)) : widen(from[s]);
      value = s == 0 ? next : float_op(op, value, next);
    }
    if (finish.divisor > 1) value = rounded(value / rounded(finish.divisor));
    return narrow(value);
  }

  bool same(std::uint64_t got, std::uint64_t wanted) const {
    return got == wanted || (type.is_float() && std::isnan(widen(got)) && std::isnan(widen(wanted)));
  }
};

}  // namespace
