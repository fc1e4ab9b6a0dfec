// One execution compared bit for bit with the definition: every type and operation, every wire, one to four sources
// with the own data at every place among the operands, scales and divisors, every alignment, odd lengths, in place and
// apart. One thread plays all peers in turn: some send, one reduces, one receives.
// Sanitizers: address.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <random>
#include <string>

#include "../src/kernels.h"
#include "check.h"
#include "kernels_definition.h"
#include "test_device_mesh.h"

namespace {

using blink_test::expect;

constexpr std::uint32_t kSenders = 3;
constexpr std::uint32_t kFolder = 3;
constexpr std::uint32_t kSink = 4;

struct Case {
  const Definition& of;
  std::uint32_t op;
  std::uint32_t messages;  // from the senders;
  std::uint32_t own_operand;      // index of the own data, or kNoOwnOperand
  std::size_t count;
  std::size_t skew;        // elements
  std::uint32_t scale_kind;
  double scale;
  std::uint32_t divisor;
  bool in_place;
  bool passes_on;          // also sends the result
};

std::string describe(const Case& at, std::uint32_t wire) {
  char text[240];
  std::snprintf(
      text, sizeof text, "wire %u %s %s messages %u own_operand %d count %zu skew %zu scale %u:%g divisor %u%s%s", wire,
      at.of.type.name, kOpNames[static_cast<int>(at.op)], at.messages, static_cast<int>(at.own_operand), at.count,
      at.skew, at.scale_kind, at.scale, at.divisor, at.in_place ? " in place" : "", at.passes_on ? " on" : "");
  return text;
}

template <class Wire>
void send_own(const Call& call, std::uint32_t connection) {
  blink::device::Row row = {};
  row.order.sends = 1;
  run_row<Wire>(call, row, {connection});
}

template <class Wire>
void fold(const Call& call, const Case& at) {
  blink::device::Row row = {};
  row.from = 0x020100;
  row.to = 3;
  row.order = {static_cast<std::uint8_t>(at.messages), static_cast<std::uint8_t>(at.passes_on ? 1 : 0),
               static_cast<std::uint8_t>(at.own_operand), true, true};
  run_row<Wire>(call, row, {0, 1, 2, 3}, at.divisor);
}

template <class Wire>
void receive(const Call& call) {
  blink::device::Row row = {};
  row.order = {1, 0, blink::kNoOwnOperand, true, false};
  run_row<Wire>(call, row, {3});
}

Word scale_bits(const Case& at) {
  if (at.scale_kind == blink::kScaleStored) return 0;
  if (!at.of.type.is_float()) return static_cast<Word>(static_cast<std::int64_t>(at.scale));
  Word bits = 0;
  const auto single = static_cast<float>(at.scale);
  if (at.of.type.kind == Kind::kFloat64) {
    std::memcpy(&bits, &at.scale, 8);
  } else {
    std::memcpy(&bits, &single, 4);
  }
  return bits;
}

class Bench {
 public:
  Bench() : mesh_(5, {{0, 3}, {1, 3}, {2, 3}, {3, 4}}, {1, 2, kSlotBytes, kSlotBytes * 2}) {}

  template <class Wire>
  void run(const Case& at, const std::vector<Elements>& inputs);

  static constexpr std::size_t kSlotBytes = 4096;

 private:
  Call call(std::uint32_t rank, const Case& at, const char* input, char* output) {
    Call call = mesh_.call(rank);
    call.input = input;
    call.output = output;
    call.count = at.count;
    call.chunk_bytes = kSlotBytes;
    call.dtype = static_cast<std::uint32_t>(at.of.type.code);
    call.op = static_cast<std::uint32_t>(at.op);
    call.timeout_ns = 2u * 1000000000ull;  // all messages are present, so nothing waits
    return call;
  }

  Mesh mesh_;
};

// `inputs`: the operands in order.
template <class Wire>
void Bench::run(const Case& at, const std::vector<Elements>& inputs) {
  const Type& type = at.of.type;
  const std::size_t bytes = at.count * type.size;
  std::uint32_t operand = 0;
  Buffer own(bytes, at.skew * type.size);
  for (std::uint32_t message = 0; message <= at.messages; ++message) {
    if (operand == at.own_operand) std::memcpy(own.data(), bytes_of(inputs[operand++], type).data(), bytes);
    if (message == at.messages) break;
    const std::vector<unsigned char> theirs = bytes_of(inputs[operand++], type);
    send_own<Wire>(call(message, at, reinterpret_cast<const char*>(theirs.data()), nullptr), message);
  }
  Buffer kept(bytes, (at.skew == 0 ? 0 : at.skew + 1) * type.size);
  Buffer passed(bytes, 0);
  char* const output = at.in_place ? own.data() : kept.data();
  Call folding = call(kFolder, at, own.data(), output);
  folding.average = 1;
  folding.scale_kind = at.scale_kind;
  folding.scale = scale_bits(at);
  const std::uint64_t stored = type.is_float() ? at.of.narrow(at.scale) : static_cast<std::uint64_t>(at.scale);
  folding.scale_at = reinterpret_cast<const char*>(&stored);
  fold<Wire>(folding, at);
  if (at.passes_on) receive<Wire>(call(kSink, at, nullptr, passed.data()));

  const bool scaled = at.scale_kind != blink::kUnscaled && at.own_operand != blink::kNoOwnOperand;
  Finish finish;
  finish.own = scaled ? static_cast<std::int32_t>(at.own_operand) : -1;
  finish.scale = at.scale_kind == blink::kScaleStored && type.is_float() ? at.of.widen(stored) : at.scale;
  finish.divisor = at.divisor;
  Elements from(inputs.size());
  std::string wrong;
  for (std::size_t i = 0; i < at.count && wrong.empty(); ++i) {
    for (std::size_t s = 0; s < inputs.size(); ++s) from[s] = inputs[s][i];
    const bool untouched = inputs.size() == 1 && !scaled && at.divisor == 1;
    const std::uint64_t wanted = untouched ? from[0] : at.of.element(at.op, from, finish);
    const std::uint64_t got = read(output, type, i);
    const bool right = untouched ? got == wanted : at.of.same(got, wanted);
    const bool both = !at.passes_on || read(passed.data(), type, i) == got;
    if (right && both) continue;
    char text[120];
    std::snprintf(text, sizeof text, ": element %zu is 0x%" PRIx64 ", expected 0x%" PRIx64 "%s", i, got, wanted,
                  both ? "" : ", and another one was passed on");
    wrong = text;
  }
  if (!own.guarded() || !kept.guarded() || !passed.guarded()) wrong = ": wrote outside";
  if (mesh_.statuses[kFolder].code != 0) wrong = ": gave up";
  expect(wrong.empty(), "%s%s", wrong.empty() ? "" : describe(at, Wire::kNumber).c_str(), wrong.c_str());
}

void run_everywhere(Bench& bench, const Case& at, std::mt19937_64& random) {
  if (blink_test::failures >= 5) return;
  std::vector<Elements> inputs(at.messages + (at.own_operand == blink::kNoOwnOperand ? 0 : 1));
  for (Elements& input : inputs) {
    for (std::size_t i = 0; i < at.count; ++i) input.push_back(random_element(at.of, random));
  }
  bench.run<blink::Simple>(at, inputs);
  bench.run<blink::LL>(at, inputs);
  bench.run<blink::LL128>(at, inputs);
}

// Every place of the own data, with each option of an operation in ops.py: none, a scale, a divisor.
void test_operation(Bench& bench, const Definition& of, std::uint32_t op, std::mt19937_64& random) {
  const Type& type = of.type;
  const std::size_t most = Bench::kSlotBytes / type.size * 15 / 16;
  const std::size_t group = 16 / type.size;
  const std::size_t counts[] = {1, group - 1, group, 5 * group + 1, 37 * group + group / 2, 300 / type.size, most};
  for (std::uint32_t messages = 0; messages <= kSenders; ++messages) {
    for (std::uint32_t own_operand = 0; own_operand <= messages + 1; ++own_operand) {
      if (messages == 0 && own_operand > 0) continue;
      const bool joins = own_operand <= messages;
      for (int extra = 0; extra < (type.kind == Kind::kBool ? 1 : 4); ++extra) {
        for (int effort = 0; effort < blink_test::kEffort / 2; ++effort) {
          const std::uint64_t dice = random();
          if (kEmulated && (dice >> 32) % 40 != 0) continue;  // emulated blocks have many threads, so a sample
          const std::size_t count = counts[dice % 7];
          if (count == 0) continue;
          const std::uint32_t kind = joins ? static_cast<std::uint32_t>(extra % 3) : 0;
          const double scale = type.is_float() ? 0.37 + static_cast<double>(dice >> 8 & 7) : 3.0;
          const Case at = {of,
                           op,
                           messages,
                           joins ? own_operand : blink::kNoOwnOperand,
                           count,
                           dice >> 16 & 3,
                           kind,
                           scale,
                           extra == 0 || (extra == 1 && effort > 0) ? 1u
                           : extra == 3                             ? 200u
                                                                    : 3u,
                           joins && (dice >> 24 & 1) != 0,
                           (dice >> 25 & 3) != 0};
          run_everywhere(bench, at, random);
        }
      }
    }
  }
}

// Every narrow value, widened and rounded again: unchanged, scaled by 1, and between two neighbours.
void test_all_values(Bench& bench, const Definition& of) {
  const std::size_t all = std::size_t{1} << (8 * of.type.size);
  const std::size_t batch = std::min(all, Bench::kSlotBytes / of.type.size * 7 / 8);
  for (std::size_t first = 0; first < all; first += batch) {
    Elements own;
    Elements next;
    for (std::size_t i = first; i < std::min(first + batch, all); ++i) {
      own.push_back(i);
      next.push_back(std::min(i + 1, all - 1));
    }
    const Case scaled = {of, BLINK_SUM, 0, 0, own.size(), 0, blink::kScaleGiven, 1.0, 1, false, false};
    bench.run<blink::Simple>(scaled, {own});
    const Case tiny = {of, BLINK_SUM, 0, 0, own.size(), 0, blink::kScaleGiven, 0x1p-3, 1, false, false};
    bench.run<blink::Simple>(tiny, {own});
    const Case middle = {of, BLINK_SUM, 1, 0, own.size(), 0, blink::kUnscaled, 1.0, 2, false, true};
    bench.run<blink::Simple>(middle, {own, next});
    const Case large = {of, BLINK_SUM, 1, 0, own.size(), 0, blink::kUnscaled, 1.0, 1, false, true};
    bench.run<blink::LL>(large, {own, own});
  }
}

}  // namespace

int main() {
  Bench bench;
  std::mt19937_64 random(4);
  for (const Type& type : kTypes) {
    const Definition definition(type);
    for (int op = 0; op < 7; ++op) {
      if (has(type, op)) test_operation(bench, definition, op, random);
    }
    if (type.kind == Kind::kNarrow) test_all_values(bench, definition);
  }
  return blink_test::verdict();
}
