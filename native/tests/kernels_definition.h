// The definition of one element of a reduction, with the kernels for any CPU, one element at a time.
// tests/unit/native/test_kernels.py compares these kernels bit for bit with NumPy and ml_dtypes. Tests compare
// everything else with them: other instruction sets, blocks, places and steps, and the device code of GPUs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "../src/kernels.h"
#include "../src/kernels_blocks.h"
#include "blink/types.h"

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
    {BLINK_FLOAT16, "float16", 2, Kind::kNarrow},
    {BLINK_BFLOAT16, "bfloat16", 2, Kind::kNarrow},
    {BLINK_FLOAT32, "float32", 4, Kind::kFloat32},
    {BLINK_FLOAT64, "float64", 8, Kind::kFloat64},
    {BLINK_FLOAT8_E4M3FN, "float8_e4m3fn", 1, Kind::kNarrow},
    {BLINK_FLOAT8_E5M2, "float8_e5m2", 1, Kind::kNarrow},
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

constexpr std::size_t kGuard = 64;
constexpr char kGuardByte = 0x5a;

// Memory between guard bytes that must not change, `skew` off a multiple of 16.
struct Buffer {
  std::vector<char> whole;
  std::size_t size, skew;

  Buffer(std::size_t bytes, std::size_t off) : whole(bytes + 2 * kGuard + off, kGuardByte), size(bytes), skew(off) {}
  char* data() { return whole.data() + kGuard + skew; }
  bool guarded() const {
    const auto is_guard = [](char byte) { return byte == kGuardByte; };
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(kGuard + skew);
    return std::all_of(whole.begin(), first, is_guard) &&
           std::all_of(first + static_cast<std::ptrdiff_t>(size), whole.end(), is_guard);
  }
};

// ---- the definition

struct Definition {
  const Type& type;

  explicit Definition(const Type& of) : type(of) {}

  const blink::Kernel& kernel(std::uint32_t op) const {
    int count = 0;
    return *blink::levels(&count)[0].find(type.code, op);
  }

  double widen(std::uint64_t bits) const {
    double value = 0;
    float single = 0;
    if (type.kind == Kind::kFloat64) {
      std::memcpy(&value, &bits, 8);
      return value;
    }
    kernel(BLINK_SUM).stepwise.load(&single, &bits, 1, false, 1.0);
    return static_cast<double>(single);
  }

  std::uint64_t narrow(double value) const {
    std::uint64_t bits = 0;
    void* const to[] = {&bits};
    const auto single = static_cast<float>(value);
    const void* const from = type.kind == Kind::kFloat64 ? static_cast<const void*>(&value) : &single;
    kernel(BLINK_SUM).stepwise.store(to, 1, from, 1, 1);
    return bits;
  }

  std::uint64_t mask() const { return ~std::uint64_t{0} >> (64 - 8 * type.size); }

  std::uint64_t element(std::uint32_t op, const Elements& from, const Finish& finish) const {
    std::uint64_t value = 0;
    void* const to[] = {&value};
    std::vector<const void*> sources;
    for (const std::uint64_t& bits : from) sources.push_back(&bits);
    kernel(op).combine(to, 1, sources.data(), static_cast<int>(sources.size()), 1, finish);
    return value;
  }

  bool same(std::uint64_t got, std::uint64_t wanted) const {
    return got == wanted || (type.is_float() && std::isnan(widen(got)) && std::isnan(widen(wanted)));
  }
};

// Half of the floats are zeros and small numbers, so that sums and products stay finite; the others are any bits.
std::uint64_t random_element(const Definition& of, std::mt19937_64& random) {
  const std::uint64_t bits = random();
  if (of.type.kind == Kind::kBool) return bits & 1;
  if (of.type.is_float() && (bits & 15) == 1) return of.narrow((bits & 16) != 0 ? 0.0 : -0.0);
  if (of.type.is_float() && (bits & 1) != 0) return of.narrow((static_cast<double>(bits >> 44) - 524288.0) / 131072.0);
  return (bits >> 7) & of.mask();
}

}  // namespace
