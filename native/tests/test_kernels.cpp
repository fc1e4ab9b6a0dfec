// Every kernel of every level compared bit for bit with the one for any CPU: any number of sources and destinations, in
// place, scaled and divided; all conversions; no write outside the destinations.
// Sanitizers: address.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../src/kernels_blocks.h"
#include "blink/host.h"
#include "check.h"
#include "kernels_definition.h"

namespace {

using blink::Kernel;
using blink::Level;
using blink_test::expect;

// ---- reductions

// Separate memory; the last destination in the first source; destinations in the last and first sources, crossed.
enum class Place { kApart, kFirst, kCrossed };

// One reduction with its expected result. `twice`: the last source is the memory of the first.
struct Case {
  const Definition& definition;
  std::uint32_t op;
  Finish finish;
  std::vector<Elements> inputs;  // [source][element]
  bool twice = false;
  Elements wanted = {};
  std::vector<std::vector<unsigned char>> input_bytes = {};
  std::vector<unsigned char> wanted_bytes = {};

  void solve() {
    if (twice) inputs.back() = inputs.front();
    wanted.clear();
    Elements from(inputs.size());
    for (std::size_t i = 0; i < inputs[0].size(); ++i) {
      for (std::size_t s = 0; s < inputs.size(); ++s) from[s] = inputs[s][i];
      wanted.push_back(definition.element(op, from, finish));
    }
    input_bytes.clear();
    for (const Elements& input : inputs) input_bytes.push_back(bytes_of(input, definition.type));
    wanted_bytes = bytes_of(wanted, definition.type);
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
  for (std::size_t s = 0; s < nsrc && bytes > 0; ++s) std::memcpy(src[s], of.input_bytes[s].data(), bytes);

  const std::vector<const void*> sources(src.begin(), src.end());
  const Kernel* const kernel = level.find(type.code, of.op);
  kernel->combine(dst.data(), static_cast<int>(ndst), sources.data(), static_cast<int>(nsrc), of.wanted.size(),
                  of.finish);

  std::string wrong;
  for (std::size_t d = 0; d < ndst && wrong.empty(); ++d) {
    if (bytes == 0 || std::memcmp(dst[d], of.wanted_bytes.data(), bytes) == 0) continue;
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
    if (!buffer.guarded()) wrong = ": wrote outside";
  }
  expect(wrong.empty(), "%s%s", wrong.empty() ? "" : describe(of, level, ndst, place).c_str(), wrong.c_str());
}

void run_everywhere(const Case& of, const std::vector<Level>& levels) {
  for (const Level& level : levels) {
    for (std::size_t ndst = 1; ndst <= 3; ++ndst) {
      for (const Place place : {Place::kApart, Place::kFirst, Place::kCrossed}) run(of, level, ndst, place);
    }
  }
}

void test_combine(const std::vector<Level>& levels, const Definition& definition, std::uint32_t op) {
  std::mt19937_64 random(static_cast<std::uint64_t>(definition.type.code) * 16 + static_cast<std::uint64_t>(op));
  for (const std::size_t count : {0ul, 1ul, 15ul, 16ul, 17ul, 1000ul, 5000ul}) {
    for (int nsrc = 1; nsrc <= 5; ++nsrc) {
      Case one{definition, op, {}, {}};
      for (int s = 0; s < nsrc; ++s) {
        one.inputs.emplace_back();
        for (std::size_t i = 0; i < count; ++i) one.inputs.back().push_back(random_element(definition, random));
      }
      one.solve();
      run_everywhere(one, levels);
      if (definition.type.kind != Kind::kBool) {
        for (const Finish& finish : {Finish{0, 3.0, 1}, Finish{nsrc - 1, -2.5, 7}, Finish{-1, 1.0, 3}, Finish{-1, 1.0, 4}}) {
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
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 10007) add(static_cast<std::uint32_t>(bits));
  const std::uint64_t positive = std::uint64_t{1} << (8 * definition.type.size - 1);
  for (std::uint64_t code = 0; code + 1 < positive; ++code) {
    const double value = definition.widen(code), next = definition.widen(code + 1);
    const double step = value - definition.widen(code == 0 ? 0 : code - 1);
    // Beyond the largest value: by half a step, and by more.
    for (const double tie : {(value + next) / 2, std::isfinite(next) ? value : value + step / 2}) {
      const auto single = static_cast<float>(tie);
      for (const float near : {single, std::nextafterf(single, 0.0f), std::nextafterf(single, INFINITY)}) {
        floats.push_back(near);
        floats.push_back(-near);
      }
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
  for (const Level& level : levels) {
    const blink::Stepwise& steps = level.find(type.code, BLINK_SUM)->stepwise;
    std::vector<float> widened(patterns);
    steps.load(widened.data(), stored.data(), patterns, false, 1.0);
    for (std::size_t code = 0; code < patterns; ++code) {
      const double value = definition.widen(code), got = static_cast<double>(widened[code]);
      const bool right =
          std::isnan(value) ? std::isnan(got) : value == got && std::signbit(value) == std::signbit(got);
      expect(right, "%s widens %s 0x%zx to %g, expected %g", level.name, type.name, code, got, value);
    }
    std::vector<unsigned char> narrowed(floats.size() * type.size);
    void* const dst[] = {narrowed.data()};
    steps.store(dst, 1, floats.data(), floats.size(), 1);
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const std::uint64_t got = read(narrowed.data(), type, i);
      const std::uint64_t wanted = definition.narrow(static_cast<double>(floats[i]));
      expect(definition.same(got, wanted), "%s narrows %a to %s 0x%" PRIx64 ", expected 0x%" PRIx64, level.name,
             static_cast<double>(floats[i]), type.name, got, wanted);
      if (std::isnan(floats[i])) {
        const bool negative = (got >> (8 * type.size - 1) & 1) != 0;
        expect(negative == std::signbit(floats[i]), "%s loses the sign of a NaN in %s", level.name, type.name);
      }
    }
  }
}

// ---- the rest

void test_stepwise(const std::vector<Level>& levels, const Definition& definition, std::uint32_t op) {
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
      const Elements from = {read(memory[0].data(), type, i), read(memory[1].data(), type, i),
                             read(memory[2].data(), type, i)};
      const Finish finish = scaled ? Finish{1, scale, 3} : Finish{};
      const std::uint64_t wanted = definition.element(op, from, finish);
      right = right && definition.same(read(memory[3].data(), type, i), wanted);
    }
    right = right && memory[3] == memory[4];
    expect(right, "%s in steps: %s %s", level.name, type.name, kOpNames[static_cast<int>(op)]);
  }
}

void test_copy() {
  std::mt19937_64 random(11);
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{4097}, std::size_t{1} << 16, (std::size_t{9} << 20) + 13}) {
    for (const std::size_t skew : {std::size_t{0}, std::size_t{1}, std::size_t{17}}) {
      Buffer from(bytes, 0);
      Buffer to(bytes, skew);
      for (std::size_t i = 0; i < bytes; ++i) from.data()[i] = static_cast<char>(random());
      blink::copy_bytes(to.data(), from.data(), bytes);
      const bool same = bytes == 0 || std::memcmp(to.data(), from.data(), bytes) == 0;
      expect(same && to.guarded(), "copy of %zu bytes", bytes);
    }
  }
}

void test_missing(const Level& level) {
  for (const Type& type : kTypes) {
    for (int op = 0; op < 7; ++op) {
      const bool there = level.find(type.code, op) != nullptr;
      const bool wanted = has(type, op);
      expect(there == wanted, "%s %s %s there", type.name, kOpNames[op], there ? "is" : "is not");
    }
  }
  expect(level.find(15, BLINK_SUM) == nullptr, "type 15 is accepted");
  expect(level.find(BLINK_INT8, 7) == nullptr, "operation 7 is accepted");
  expect(level.find(BLINK_BOOL, 7) == nullptr, "operation 7 on bool is accepted");
  expect(blink_combine(BLINK_FLOAT32, BLINK_BAND, nullptr, 1, nullptr, 1, 3, -1, 1.0, 1) == -1, "band on float32 is accepted");
}

// Whole lines with their surroundings, at every offset in a line.
void test_copy_past_caches() {
  std::vector<char> from(512), to(512);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7 + 1);
  for (std::size_t at = 0; at < 65; ++at) {
    for (const std::size_t bytes : {0u, 1u, 63u, 64u, 65u, 127u, 128u, 191u, 200u, 321u}) {
      std::fill(to.begin(), to.end(), kGuardByte);
      blink::copy_past_caches(&to[at], &from[at % 7], bytes);
      const bool copied = bytes == 0 || std::memcmp(&to[at], &from[at % 7], bytes) == 0;
      const auto around = std::count(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(at), kGuardByte) +
                          std::count(to.begin() + static_cast<std::ptrdiff_t>(at + bytes), to.end(), kGuardByte);
      expect(copied && around == static_cast<std::ptrdiff_t>(to.size() - bytes), "%zu bytes to place %zu", bytes, at);
    }
  }
}

}  // namespace

int main() {
  int count = 0;
  const Level* const first = blink::levels(&count);
  const std::vector<Level> levels(first, first + count);
  expect(count >= 1, "no level");
  for (const Level& level : levels) test_missing(level);
  for (const Type& type : kTypes) {
    const Definition definition(type);
    if (type.kind == Kind::kNarrow) test_conversions(levels, definition);
    for (int op = 0; op < 7; ++op) {
      if (!has(type, op)) continue;
      test_combine(levels, definition, op);
      test_stepwise(levels, definition, op);
    }
  }
  test_copy();
  test_copy_past_caches();
  for (const Level& level : levels) std::printf("%s ", level.name);
  std::printf("checked, %s chosen: ", blink::isa_name());
  return blink_test::verdict();
}
