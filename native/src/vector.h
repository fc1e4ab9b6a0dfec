// Vectors of 32-bit elements, and conversions from and to codes of 8 or 16 bits, for this file's instruction set.
//
// The types are GCC's vector types (clang has them too): + - * / & | ^ << >> < ? : work on them element by element.
// Only the changes of width are written by hand: compilers' code for __builtin_convertvector is up to ten times slower.
//
// In an unnamed namespace: each kernel file compiles its own copy, and the linker cannot mix them up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace blink {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kWidth = 16;
#elif defined(__AVX2__)
constexpr std::size_t kWidth = 8;
#else
constexpr std::size_t kWidth = 4;
#endif

using Floats = float __attribute__((vector_size(kWidth * 4)));
using Words = std::uint32_t __attribute__((vector_size(kWidth * 4)));
using SignedWords = std::int32_t __attribute__((vector_size(kWidth * 4)));
using Halves = std::uint16_t __attribute__((vector_size(kWidth * 2)));
using Bytes = std::uint8_t __attribute__((vector_size(kWidth)));

#if defined(__AVX512F__)

// The zero-masked forms with a full mask, because the plain ones cause GCC's -Wmaybe-uninitialized.
inline Words words_of(Halves codes) {
  return reinterpret_cast<Words>(_mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(codes)));
}
inline Halves halves_of(Bytes codes) {
  return reinterpret_cast<Halves>(_mm256_cvtepu8_epi16(reinterpret_cast<__m128i>(codes)));
}
inline void narrow_to(Halves* codes, Words words) {
  *codes = reinterpret_cast<Halves>(_mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(words)));
}
inline void narrow_to(Bytes* codes, Words words) {
  *codes = reinterpret_cast<Bytes>(_mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(words)));
}

#elif defined(__AVX2__)

inline Words words_of(Halves codes) {
  return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(codes)));
}
inline Halves halves_of(Bytes codes) {
  return reinterpret_cast<Halves>(_mm_cvtepu8_epi16(_mm_cvtsi64_si128(reinterpret_cast<long long>(codes))));
}
inline void narrow_to(Halves* codes, Words words) {
  const __m256i pairs = _mm256_packus_epi32(reinterpret_cast<__m256i>(words), reinterpret_cast<__m256i>(words));
  *codes = reinterpret_cast<Halves>(_mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0x08)));
}
inline void narrow_to(Bytes* codes, Words words) {
  Halves halves;
  narrow_to(&halves, words);
  const __m128i packed = _mm_packus_epi16(reinterpret_cast<__m128i>(halves), reinterpret_cast<__m128i>(halves));
  *codes = reinterpret_cast<Bytes>(_mm_cvtsi128_si64(packed));
}

#elif defined(__x86_64__)

inline Words words_of(Halves codes) {
  const __m128i low = _mm_cvtsi64_si128(reinterpret_cast<long long>(codes));
  return reinterpret_cast<Words>(_mm_unpacklo_epi16(low, _mm_setzero_si128()));
}
inline Halves halves_of(Bytes codes) {
  const __m128i low = _mm_cvtsi32_si128(reinterpret_cast<int>(codes));
  return reinterpret_cast<Halves>(_mm_cvtsi128_si64(_mm_unpacklo_epi8(low, _mm_setzero_si128())));
}
inline void narrow_to(Halves* codes, Words words) {
  // SSE2 packs signed words only: extend the sign of the lower half first.
  const __m128i extended = _mm_srai_epi32(_mm_slli_epi32(reinterpret_cast<__m128i>(words), 16), 16);
  *codes = reinterpret_cast<Halves>(_mm_cvtsi128_si64(_mm_packs_epi32(extended, extended)));
}
inline void narrow_to(Bytes* codes, Words words) {
  const __m128i halves = _mm_packs_epi32(reinterpret_cast<__m128i>(words), reinterpret_cast<__m128i>(words));
  *codes = reinterpret_cast<Bytes>(_mm_cvtsi128_si32(_mm_packus_epi16(halves, halves)));
}

#elif defined(__aarch64__)

inline Words words_of(Halves codes) { return reinterpret_cast<Words>(vmovl_u16(reinterpret_cast<uint16x4_t>(codes))); }
inline Halves halves_of(Bytes codes) {
  const uint8x8_t low = vcreate_u8(reinterpret_cast<std::uint32_t>(codes));
  return reinterpret_cast<Halves>(vget_low_u16(vmovl_u8(low)));
}
inline void narrow_to(Halves* codes, Words words) {
  *codes = reinterpret_cast<Halves>(vmovn_u32(reinterpret_cast<uint32x4_t>(words)));
}
inline void narrow_to(Bytes* codes, Words words) {
  const uint16x4_t halves = vmovn_u32(reinterpret_cast<uint32x4_t>(words));
  const uint8x8_t packed = vmovn_u16(vcombine_u16(halves, halves));
  *codes = reinterpret_cast<Bytes>(vget_lane_u32(vreinterpret_u32_u8(packed), 0));
}

#else

inline Words words_of(Halves codes) { return __builtin_convertvector(codes, Words); }
inline Halves halves_of(Bytes codes) { return __builtin_convertvector(codes, Halves); }
template <class Codes>
void narrow_to(Codes* codes, Words words) {
  *codes = __builtin_convertvector(words, Codes);
}

#endif

inline Words bits_of(Floats values) { return reinterpret_cast<Words>(values); }
inline Floats floats_of(Words bits) { return reinterpret_cast<Floats>(bits); }
inline Words all(std::uint32_t bits) { return Words{} + bits; }

// a < b ? yes : no, for a and b below 2^31: few instruction sets compare unsigned integers.
inline Words if_below(Words a, Words b, Words yes, Words no) {
  return reinterpret_cast<SignedWords>(a) < reinterpret_cast<SignedWords>(b) ? yes : no;
}

}  // namespace
}  // namespace blink
