// The tests of the device layer on emulated blocks with threads: the code of GPUs, under a schedule and a memory order
// that differ in each launch. Also the reduce kernel of copy engines, whose threads have no other test.
// Sanitizers: address.
#define BLINK_EMULATED 1

#define main context_main
#include "test_device_context.cpp"
#undef main
#define main fold_main
#include "test_device_fold.cpp"
#undef main

BLINK_FOLD_ENTRY(reduce_kernel)

namespace {

// Sums of messages at any place, with or without own data, in place or into one of the messages.
void test_reduce(std::mt19937& random) {
  constexpr std::size_t kCount = 3000;
  const std::uint32_t receives = 1 + random() % 5;
  const bool joins = random() % 2 == 0;
  const std::size_t count = 1 + random() % kCount;
  Values wanted(count, 0);
  Memory all(static_cast<std::size_t>(receives) * kCount * 4 / 128 * 128 + 128 * receives);
  Values own(count);
  blink::Reduction reduction = {};
  for (std::uint32_t i = 0; i < receives; ++i) {
    reduction.lines[i] = i * (kCount * 4 / 128 + 1);
    auto* const message = reinterpret_cast<std::uint32_t*>(all.bytes.get() + reduction.lines[i] * blink::kLineBytes);
    for (std::size_t at = 0; at < count; ++at) wanted[at] += message[at] = random();
  }
  for (std::size_t at = 0; at < count; ++at) wanted[at] += (own[at] = random()) * (joins ? 1 : 0);
  reduction.own = reinterpret_cast<const char*>(own.data());
  reduction.messages = all.bytes.get();
  reduction.target = random() % 2 == 0 ? reinterpret_cast<char*>(own.data()) : all.bytes.get();
  reduction.bytes = static_cast<std::uint32_t>(count * 4);
  reduction.piece_bytes = 16 * (1 + random() % 400);
  reduction.divisor = 1;
  reduction.receives = static_cast<std::uint8_t>(receives);
  reduction.own_operand_index = joins ? static_cast<std::uint8_t>(random() % (receives + 1)) : blink::kOwnStaysOut;
  reduction.dtype = 5;
  blink::emulate::Options options;
  options.seed = schedule++;
  const std::uint32_t blocks = reduction.bytes / reduction.piece_bytes + 1;
  const std::string finding = blink::emulate::run(
      {1, blocks, block_threads()}, [&](std::uint32_t, std::uint32_t block) { reduce_kernel(&reduction, block); },
      options);
  expect(finding.empty(), "%s", finding.c_str());
  expect(std::memcmp(reduction.target, wanted.data(), reduction.bytes) == 0,
         "a reduction of %u messages%s: %zu elements in pieces of %u bytes are others", receives,
         joins ? " and the own data" : "", count, reduction.piece_bytes);
}

}  // namespace

int main() {
  const int code = context_main();
  std::mt19937 random(8);
  for (int i = 0; i < 40; ++i) test_reduce(random);
  return fold_main() | code;
}
