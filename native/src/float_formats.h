// Conversions between float32 and narrow floats, a vector at a time.
//
// Widening is exact. Narrowing rounds to nearest, ties to even. Values out of range become infinity, or NaN in a format
// without infinities; NaN stays NaN with its sign. The results have the same bits as those of ml_dtypes and NumPy, on
// every instruction set: formats without conversion instructions use 32-bit integer arithmetic.
//
// Each format is a struct with widen(codes) and narrow(floats) for one vector.
#pragma once

#include <cstdint>

#include "vector.h"

namespace blink {
namespace {

constexpr std::uint32_t kFloatInfinity = 0x7f800000;
constexpr std::uint32_t kFloatMagnitude = 0x7fffffff;

// The upper half of a float32, with the same exponents.
struct Bfloat16 {
  using Store = std::uint16_t;
  using Stored = Halves;

  static Floats widen(Stored stored) { return floats_of(words_of(stored) << 16); }

  static Stored narrow(Floats values) {
    const Words bits = bits_of(values);
    const Words upper = bits >> 16;
    const Words rounded = (bits + 0x7fff + (upper & 1)) >> 16;
    const Words quiet = upper | 0x0040;
    Stored codes;
    narrow_to(&codes, values == values ? rounded : quiet);
    return codes;
  }
};

// IEEE 754's layout with fewer bits. Without infinities ("fn") only the last code, all ones, is special: it is NaN.
template <class StoreType, class StoredType, int kExponentBits, int kMantissaBits, bool kInfinities>
struct SmallFloat {
  using Store = StoreType;
  using Stored = StoredType;

  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kUnit = 1 - kBias - kMantissaBits;  // 2^kUnit is the smallest positive value
  static constexpr int kShift = 23 - kMantissaBits;        // from a float32's mantissa to this format's
  static constexpr int kSignShift = 31 - kExponentBits - kMantissaBits;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  static constexpr std::uint32_t kMask = (1u << (kExponentBits + kMantissaBits)) - 1;
  static constexpr std::uint32_t kSmallestNormal = 1u << kMantissaBits;
  static constexpr std::uint32_t kTop = ((1u << kExponentBits) - 1) << kMantissaBits;  // the largest exponent
  static constexpr std::uint32_t kFirstSpecial = kInfinities ? kTop : kMask;
  static constexpr std::uint32_t kNaN = kInfinities ? kTop | (kSmallestNormal >> 1) : kMask;

  static Floats power_of_two(int exponent) { return floats_of(all(static_cast<std::uint32_t>(127 + exponent) << 23)); }

  static Floats widen(Stored stored) {
    const Words code = words_of(stored);
    const Words magnitude = code & kMask;
    const Floats integer = __builtin_convertvector(reinterpret_cast<SignedWords>(magnitude), Floats);
    const Words subnormal = bits_of(integer * power_of_two(kUnit));
    const Words normal = (magnitude << kShift) + kRebias;
    const Words special = kInfinities ? normal | kFloatInfinity : all(0x7fc00000);
    const Words finite = if_below(magnitude, all(kSmallestNormal), subnormal, normal);
    const Words values = if_below(magnitude, all(kFirstSpecial), finite, special);
    return floats_of(values | ((code & ~kMask) << kSignShift));
  }

  static Stored narrow(Floats values) {
    const Words bits = bits_of(values);
    const Words magnitude = bits & kFloatMagnitude;
    const Words below_half = ((1u << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1);
    const Words normal = (magnitude + below_half - kRebias) >> kShift;
    const Words limited = if_below(normal, all(kFirstSpecial), normal, all(kFirstSpecial));
    // Adding a float whose last place is 2^kUnit makes the hardware round to that place.
    const Floats ruler = power_of_two(kUnit + 23);
    const Words subnormal = bits_of(floats_of(magnitude) + ruler) - bits_of(ruler);
    const Words number = if_below(magnitude, all(kRebias + (1u << 23)), subnormal, limited);
    const Words result = values == values ? number : all(kNaN);
    Stored codes;
    narrow_to(&codes, result | ((bits & ~kFloatMagnitude) >> kSignShift));
    return codes;
  }
};

#if defined(__F16C__) || defined(__aarch64__)

// Uses the processor's own conversions, which round in the same way.
struct Float16 {
  using Store = std::uint16_t;
  using Stored = Halves;

#if defined(__AVX512F__)
  static Floats widen(Stored stored) { return _mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(stored)); }
  static Stored narrow(Floats values) {
    return reinterpret_cast<Stored>(_mm512_maskz_cvtps_ph(0xffff, values, _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined(__F16C__)
  static Floats widen(Stored stored) { return _mm256_cvtph_ps(reinterpret_cast<__m128i>(stored)); }
  static Stored narrow(Floats values) {
    return reinterpret_cast<Stored>(_mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  }
#else
  static Floats widen(Stored stored) {
    return reinterpret_cast<Floats>(vcvt_f32_f16(reinterpret_cast<float16x4_t>(stored)));
  }
  static Stored narrow(Floats values) {
    return reinterpret_cast<Stored>(vcvt_f16_f32(reinterpret_cast<float32x4_t>(values)));
  }
#endif
};

#else

using Float16 = SmallFloat<std::uint16_t, Halves, 5, 10, true>;

#endif

// The 8-bit floats are widened through float16. This format is the upper half of a float16.
struct Float8E5M2 : SmallFloat<std::uint8_t, Bytes, 5, 2, true> {
  static Floats widen(Stored stored) { return Float16::widen(halves_of(stored) << 8); }
};

// In float16's bit positions its codes mean values 2^8 times too small: the biases are 7 and 15.
struct Float8E4M3 : SmallFloat<std::uint8_t, Bytes, 4, 3, false> {
  static Floats widen(Stored stored) {
    const Halves code = halves_of(stored);
    const Halves magnitude = (code & 0x7f) << 7;
    const Halves number = (code & 0x7f) == 0x7f ? magnitude | 0x7c00 : magnitude;
    return Float16::widen(number | ((code & 0x80) << 8)) * 256.0f;
  }
};

}  // namespace
}  // namespace blink
