// Every kernel of every level against a scalar definition that is written differently: integers as bit strings of 64,
// narrow floats through ldexp, nearbyint and a search among all values of the format.
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../src/kernels.h"
#include "../src/kernels_blocks.h"

namespace {

using blink::DType;
using blink::Finish;
using blink::Kernel;
using blink::Level;
using blink::Op;

long checks = 0;
long failures = 0;

void expect(bool ok, const std::string& what) {
  ++checks;
  if (ok) return;
  if (++failures <= 20) std::printf("FAILED: %s\n", what.c_str());
}

// ---- types

enum class Kind { kSigned, kUnsigned, kBool, kNarrow, kFloat32, kFloat64 };

struct Type {
  DType code;
  const char* name;
  std::size_t size;
  Kind kind;
  int exponent_bits = 0;
  int mantissa_bits = 0;
  bool infinities = true;

  bool is_float() const { return kind == Kind::kNarrow || kind == Kind::kFloat32 || kind == Kind::kFloat64; }
};

const Type kTypes[] = {
    {DType::kInt8, "int8", 1, Kind::kSigned},
    {DType::kUint8, "uint8", 1, Kind::kUnsigned},
    {DType::kInt16, "int16", 2, Kind::kSigned},
    {DType::kUint16, "uint16", 2, Kind::kUnsigned},
    {DType::kInt32, "int32", 4, Kind::kSigned},
    {DType::kUint32, "uint32", 4, Kind::kUnsigned},
    {DType::kInt64, "int64", 8, Kind::kSigned},
    {DType::kUint64, "uint64", 8, Kind::kUnsigned},
    {DType::kFloat16, "float16", 2, Kind::kNarrow, 5, 10},
    {DType::kBfloat16, "bfloat16", 2, Kind::kNarrow, 8, 7},
    {DType::kFloat32, "float32", 4, Kind::kFloat32, 8, 23},
    {DType::kFloat64, "float64", 8, Kind::kFloat64, 11, 52},
    {DType::kFloat8E4M3, "float8_e4m3fn", 1, Kind::kNarrow, 4, 3, false},
    {DType::kFloat8E5M2, "float8_e5m2", 1, Kind::kNarrow, 5, 2},
    {DType::kBool, "bool", 1, Kind::kBool},
};
const char* const kOpNames[] = {"sum", "prod", "min", "max", "band", "bor", "bxor"};

bool has(const Type& type, Op op) { return !type.is_float() || op <= Op::kMax; }

std::uint64_t read(const void* memory, const Type& type, std::size_t index) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(memory) + index * type.size, type.size);
  return bits;
}

void write(void* memory, const Type& type, std::size_t index, std::uint64_t bits) {
  std::memcpy(static_cast<char*>(memory) + index * type.size, &bits, type.size);
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

  double float_op(Op op, double a, double b) const {
    switch (op) {
      case Op::kSum: return rounded(a + b);
      case Op::kProd: return rounded(a * b);
      case Op::kMin: return std::isnan(a) ? a : std::isnan(b) ? b : a < b ? a : b;
      default: return std::isnan(a) ? a : std::isnan(b) ? b : b < a ? a : b;
    }
  }

  std::uint64_t mask() const { return ~std::uint64_t{0} >> (64 - 8 * type.size); }

  std::int64_t as_signed(std::uint64_t bits) const {
    const std::uint64_t sign = mask() / 2 + 1;
    return static_cast<std::int64_t>((bits ^ sign) - sign);
  }

  std::uint64_t integer_op(Op op, std::uint64_t a, std::uint64_t b) const {
    const bool a_is_less = type.kind == Kind::kSigned ? as_signed(a) < as_signed(b) : a < b;
    switch (op) {
      case Op::kSum: return type.kind == Kind::kBool ? (a | b) : (a + b) & mask();
      case Op::kProd: return (a * b) & mask();
      case Op::kMin: return a_is_less ? a : b;
      case Op::kMax: return a_is_less ? b : a;
      case Op::kBand: return a & b;
      case Op::kBor: return a | b;
      case Op::kBxor: return a ^ b;
    }
    return 0;
  }

  std::uint64_t integer_quotient(std::uint64_t value, std::uint64_t divisor) const {
    const bool negative = type.kind == Kind::kSigned && as_signed(value) < 0;
    const std::uint64_t size = negative ? (0 - value) & mask() : value;
    const std::uint64_t quotient = size / divisor;
    return (negative ? 0 - quotient : quotient) & mask();
  }

  std::uint64_t element(Op op, const std::vector<std::uint64_t>& from, const Finish& finish) const {
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

// ---- inputs

// Half of the floats are small numbers, so that sums and products stay finite; the others are any bits.
std::uint64_t random_element(const Definition& of, std::mt19937_64& random) {
  const std::uint64_t bits = random();
  if (of.type.kind == Kind::kBool) return bits & 1;
  if (of.type.is_float() && (bits & 1) != 0) {
    return of.narrow((static_cast<double>(bits >> 44) - 524288.0) / 131072.0);
  }
  return (bits >> 7) & of.mask();
}

// ---- combine

constexpr std::size_t kGuard = 64;
constexpr unsigned char kGuardByte = 0xa5;

struct Buffer {
  std::vector<unsigned char> bytes;
  std::size_t skew;

  Buffer(std::size_t size, std::size_t skewed) : bytes(size + 2 * kGuard + skewed, kGuardByte), skew(skewed) {}
  unsigned char* data() { return bytes.data() + kGuard + skew; }
  bool guarded(std::size_t size) const {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool inside = i >= kGuard + skew && i < kGuard + skew + size;
      if (!inside && bytes[i] != kGuardByte) return false;
    }
    return true;
  }
};

// Apart; the last destination in the first source; destinations in the last and first sources, crossed.
enum class Place { kApart, kFirst, kCrossed };

using Elements = std::vector<std::uint64_t>;

// One reduction with its answer. `twice`: the last source is the memory of the first.
struct Case {
  const Definition& definition;
  Op op;
  Finish finish;
  std::vector<Elements> inputs;  // [source][element]
  bool twice = false;
  Elements wanted = {};

  void solve() {
    if (twice) inputs.back() = inputs.front();
    wanted.clear();
    Elements from(inputs.size());
    for (std::size_t i = 0; i < inputs[0].size(); ++i) {
      for (std::size_t s = 0; s < inputs.size(); ++s) from[s] = inputs[s][i];
      wanted.push_back(definition.element(op, from, finish));
    }
  }
};

std::string describe(const Case& of, const Level& level, std::size_t ndst, Place place) {
  char text[240];
  std::snprintf(text, sizeof text, "%s %s %s count %zu nsrc %zu%s ndst %zu place %d own %d scale %g divisor %u",
                level.name, of.definition.type.name, kOpNames[static_cast<int>(of.op)], of.wanted.size(),
                of.inputs.size(), of.twice ? " twice" : "", ndst, static_cast<int>(place), of.finish.own,
                of.finish.scale, of.finish.divisor);
  return text;
}

void run(const Case& of, const Level& level, std::size_t ndst, Place place) {
  const Type& type = of.definition.type;
  const std::size_t nsrc = of.inputs.size();
  const std::size_t bytes = of.wanted.size() * type.size;
  std::vector<Buffer> buffers;
  for (std::size_t n = 0; n < nsrc + ndst; ++n) buffers.emplace_back(bytes, n % 3 * type.size);
  std::vector<void*> src;
  std::vector<void*> dst;
  for (std::size_t s = 0; s < nsrc; ++s) src.push_back(buffers[s].data());
  for (std::size_t d = 0; d < ndst; ++d) dst.push_back(buffers[nsrc + d].data());
  if (of.twice) src.back() = src.front();
  if (place == Place::kFirst) dst.back() = src.front();
  if (place == Place::kCrossed) {
    dst.front() = src.back();
    if (ndst > 1) dst[1] = src.front();
  }
  for (std::size_t s = 0; s < nsrc; ++s) {
    for (std::size_t i = 0; i < of.wanted.size(); ++i) write(src[s], type, i, of.inputs[s][i]);
  }

  const std::vector<const void*> sources(src.begin(), src.end());
  level.find(type.code, of.op)
      ->combine(dst.data(), static_cast<int>(ndst), sources.data(), static_cast<int>(nsrc), of.wanted.size(), of.finish);

  std::string wrong;
  for (std::size_t d = 0; d < ndst && wrong.empty(); ++d) {
    for (std::size_t i = 0; i < of.wanted.size() && wrong.empty(); ++i) {
      const std::uint64_t got = read(dst[d], type, i);
      if (of.definition.same(got, of.wanted[i])) continue;
      char text[120];
      std::snprintf(text, sizeof text, ": dst %zu element %zu is 0x%" PRIx64 ", expected 0x%" PRIx64, d, i, got,
                    of.wanted[i]);
      wrong = text;
    }
  }
  for (const Buffer& buffer : buffers) {
    if (!buffer.guarded(bytes)) wrong = ": wrote outside";
  }
  expect(wrong.empty(), wrong.empty() ? wrong : describe(of, level, ndst, place) + wrong);
}

void run_everywhere(const Case& of, const std::vector<Level>& levels) {
  for (const Level& level : levels) {
    for (std::size_t ndst = 1; ndst <= 3; ++ndst) {
      for (const Place place : {Place::kApart, Place::kFirst, Place::kCrossed}) run(of, level, ndst, place);
    }
  }
}

// There are no threads here, so ThreadSanitizer, which is slow, gets a sample.
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kCounts[] = {0, 1, 17, 200};
constexpr std::uint64_t kSweepStep = 1000003;
#else
constexpr std::size_t kCounts[] = {0, 1, 15, 16, 17, 1000, 5000};
constexpr std::uint64_t kSweepStep = 10007;
#endif

void test_combine(const std::vector<Level>& levels, const Definition& definition, Op op) {
  std::mt19937_64 random(static_cast<std::uint64_t>(definition.type.code) * 16 + static_cast<std::uint64_t>(op));
  for (const std::size_t count : kCounts) {
    for (int nsrc = 1; nsrc <= 5; ++nsrc) {
      Case one{definition, op, {}, {}};
      for (int s = 0; s < nsrc; ++s) {
        one.inputs.emplace_back();
        for (std::size_t i = 0; i < count; ++i) one.inputs.back().push_back(random_element(definition, random));
      }
      one.solve();
      run_everywhere(one, levels);
      if (definition.type.kind != Kind::kBool) {
        for (const Finish& finish : {Finish{0, 3.0, 1}, Finish{nsrc - 1, -2.5, 7}, Finish{-1, 1.0, 3}}) {
          one.finish = finish;
          one.solve();
          for (const Level& level : levels) run(one, level, 2, Place::kCrossed);
        }
        one.finish = {};
      }
      one.twice = true;
      one.solve();
      for (const Level& level : levels) run(one, level, 2, Place::kCrossed);
    }
  }
}

// ---- conversions: all patterns widened, a dense sweep narrowed

std::vector<float> sweep(const Definition& definition) {
  std::vector<float> floats;
  const auto add = [&floats](std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    floats.push_back(value);
  };
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += kSweepStep) add(static_cast<std::uint32_t>(bits));
  for (std::size_t code = 0; code + 1 < definition.values.size(); ++code) {
    const auto tie = static_cast<float>((definition.values[code] + definition.values[code + 1]) / 2);
    for (const float value : {tie, std::nextafterf(tie, 0.0f), std::nextafterf(tie, INFINITY)}) {
      floats.push_back(value);
      floats.push_back(-value);
    }
  }
  const double largest = definition.values.back();
  const double beyond = largest + (largest - definition.values[definition.values.size() - 2]) / 2;
  for (const double value : {largest, beyond, 2 * largest, static_cast<double>(INFINITY)}) {
    const auto single = static_cast<float>(value);
    for (const float near : {single, std::nextafterf(single, 0.0f), std::nextafterf(single, INFINITY)}) {
      floats.push_back(near);
      floats.push_back(-near);
    }
  }
  for (const std::uint32_t bits : {0x00000000u, 0x80000000u, 0x00000001u, 0x807fffffu, 0x7f800001u, 0xffc00000u,
                                   0x7fffffffu, 0xffffffffu, 0x7fff8000u}) {
    add(bits);
  }
  return floats;
}

void test_conversions(const std::vector<Level>& levels, const Definition& definition) {
  const Type& type = definition.type;
  const std::size_t patterns = std::size_t{1} << (8 * type.size);
  std::vector<unsigned char> stored(patterns * type.size);
  for (std::size_t code = 0; code < patterns; ++code) write(stored.data(), type, code, code);
  const std::vector<float> floats = sweep(definition);
  std::vector<std::uint64_t> wanted;
  for (const float value : floats) wanted.push_back(definition.narrow(static_cast<double>(value)));

  for (const Level& level : levels) {
    const blink::Stepwise& steps = level.find(type.code, Op::kSum)->stepwise;
    std::vector<float> widened(patterns);
    steps.load(widened.data(), stored.data(), patterns, false, 1.0);
    for (std::size_t code = 0; code < patterns; ++code) {
      const auto value = static_cast<float>(decode(type, code));
      const bool right = std::isnan(value) ? std::isnan(widened[code])
                                           : value == widened[code] && std::signbit(value) == std::signbit(widened[code]);
      expect(right, std::string(level.name) + " widens " + type.name + " " + std::to_string(code));
    }
    std::vector<unsigned char> narrowed(floats.size() * type.size);
    void* const dst[] = {narrowed.data()};
    steps.store(dst, 1, floats.data(), floats.size(), 1);
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const std::uint64_t got = read(narrowed.data(), type, i);
      expect(definition.same(got, wanted[i]),
             std::string(level.name) + " narrows " + std::to_string(floats[i]) + " to " + type.name);
      if (std::isnan(floats[i])) {
        const bool negative = (got >> (8 * type.size - 1) & 1) != 0;
        expect(negative == std::signbit(floats[i]), std::string(level.name) + " loses the sign of NaN, " + type.name);
      }
    }
  }
}

// ---- the rest

void test_stepwise(const std::vector<Level>& levels, const Definition& definition, Op op) {
  const Type& type = definition.type;
  constexpr std::size_t kCount = 333;
  std::mt19937_64 random(7);
  std::vector<std::vector<unsigned char>> memory(5, std::vector<unsigned char>(kCount * type.size));
  for (std::size_t s = 0; s < 3; ++s) {
    for (std::size_t i = 0; i < kCount; ++i) write(memory[s].data(), type, i, random_element(definition, random));
  }
  const double scale = 3.0;
  const bool scaled = type.kind != Kind::kBool;
  for (const Level& level : levels) {
    const Kernel* const kernel = level.find(type.code, op);
    std::vector<unsigned char> acc(kCount * kernel->accumulator_size);
    kernel->stepwise.load(acc.data(), memory[0].data(), kCount, false, 1.0);
    kernel->stepwise.step(acc.data(), memory[1].data(), kCount, scaled, scale);
    kernel->stepwise.step(acc.data(), memory[2].data(), kCount, false, 1.0);
    void* const dst[] = {memory[3].data(), memory[4].data()};
    kernel->stepwise.store(dst, 2, acc.data(), kCount, scaled ? 3 : 1);
    bool right = kernel->itemsize == type.size;
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::vector<std::uint64_t> from = {read(memory[0].data(), type, i), read(memory[1].data(), type, i),
                                               read(memory[2].data(), type, i)};
      const Finish finish = scaled ? Finish{1, scale, 3} : Finish{};
      const std::uint64_t wanted = definition.element(op, from, finish);
      right = right && definition.same(read(memory[3].data(), type, i), wanted);
    }
    right = right && memory[3] == memory[4];
    expect(right, std::string(level.name) + " in steps: " + type.name + " " + kOpNames[static_cast<int>(op)]);
  }
}

void test_copy() {
  std::mt19937_64 random(11);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, (std::size_t{9} << 20) + 13}) {
    for (const std::size_t skew : {std::size_t{0}, std::size_t{1}, std::size_t{17}}) {
      Buffer from(bytes, 0);
      Buffer to(bytes, skew);
      for (std::size_t i = 0; i < bytes; ++i) from.data()[i] = static_cast<unsigned char>(random());
      blink::copy_bytes(to.data(), from.data(), bytes);
      const bool same = bytes == 0 || std::memcmp(to.data(), from.data(), bytes) == 0;
      expect(same && to.guarded(bytes), "copy of " + std::to_string(bytes) + " bytes");
    }
  }
}

void test_missing(const Level& level) {
  for (const Type& type : kTypes) {
    for (int op = 0; op < 7; ++op) {
      const bool there = level.find(type.code, static_cast<Op>(op)) != nullptr;
      expect(there == has(type, static_cast<Op>(op)), std::string(type.name) + " " + kOpNames[op] + " is there");
    }
  }
  expect(level.find(static_cast<DType>(15), Op::kSum) == nullptr, "there is no type 15");
  expect(level.find(DType::kInt8, static_cast<Op>(7)) == nullptr, "there is no operation 7");
  expect(level.find(DType::kBool, static_cast<Op>(7)) == nullptr, "there is no operation 7 on bool");
}

void test_entry_point() {
  const std::int32_t a[] = {1, 2, 3};
  const std::int32_t b[] = {10, 20, 30};
  std::int32_t c[] = {0, 0, 0};
  void* const dst[] = {c};
  const void* const src[] = {a, b};
  expect(blink_combine(4, 0, dst, 1, src, 2, 3, -1, 1.0, 1) == 0 && c[0] == 11 && c[2] == 33, "blink_combine adds");
  expect(blink_combine(10, 4, dst, 1, src, 2, 3, -1, 1.0, 1) == -1 && c[0] == 11, "no band on float32");
}

}  // namespace

int main() {
  int count = 0;
  const Level* const first = blink::levels(&count);
  const std::vector<Level> levels(first, first + count);
  expect(count >= 1, "there is a level");
  for (const Level& level : levels) test_missing(level);
  for (const Type& type : kTypes) {
    const Definition definition(type);
    if (type.kind == Kind::kNarrow) test_conversions(levels, definition);
    for (int op = 0; op < 7; ++op) {
      if (!has(type, static_cast<Op>(op))) continue;
      test_combine(levels, definition, static_cast<Op>(op));
      test_stepwise(levels, definition, static_cast<Op>(op));
    }
  }
  test_copy();
  test_entry_point();
  std::printf("kernels: %ld checks on", checks);
  for (const Level& level : levels) std::printf(" %s", level.name);
  std::printf(", chosen %s, %ld failed\n", blink::isa_name(), failures);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
