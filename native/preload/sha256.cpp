#include "sha256.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace blink::shim {
namespace {

constexpr std::size_t kBlock = 64;

// The first 32 bits of the fractional parts of the square roots of the first 8 primes, and of the cube roots of the
// first 64.
constexpr std::array<std::uint32_t, 8> kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr std::uint32_t turned(std::uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

void absorb(std::array<std::uint32_t, 8>& state, const unsigned char* block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t byte = 0; byte < 4; ++byte) w[i] = w[i] << 8 | block[4 * i + byte];
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t low = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3;
    const std::uint32_t high = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + low + w[i - 7] + high;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t chosen = (e & f) ^ (~e & g), most = (a & b) ^ (a & c) ^ (b & c);
    const std::uint32_t one = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + chosen + kRound[i] + w[i];
    const std::uint32_t two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + most;
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const std::array<std::uint32_t, 8> more = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += more[i];
}

}  // namespace

std::string sha256(const void* bytes, std::size_t size) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  std::array<std::uint32_t, 8> state = kStart;
  const std::size_t whole = size / kBlock * kBlock;
  for (std::size_t i = 0; i < whole; i += kBlock) absorb(state, at + i);

  // The rest, a one bit, and the length in bits at the end of a block.
  unsigned char last[2 * kBlock] = {};
  const std::size_t rest = size - whole, blocks = rest + 1 + 8 > kBlock ? 2 : 1;
  if (rest != 0) std::memcpy(last, at + whole, rest);
  last[rest] = 0x80;
  const std::uint64_t bits = std::uint64_t{8} * size;
  for (std::size_t i = 0; i < 8; ++i) last[blocks * kBlock - 1 - i] = static_cast<unsigned char>(bits >> 8 * i);
  for (std::size_t i = 0; i < blocks; ++i) absorb(state, last + i * kBlock);

  std::string text;
  for (const std::uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

}  // namespace blink::shim
