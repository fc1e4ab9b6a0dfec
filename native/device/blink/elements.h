// Element types and operations. A format defines how 8 bytes become accumulators and back. The results are those of
// blinkccl/collectives/ops.py, bit for bit: narrow floats are reduced as float32 and rounded once, to nearest even;
// integers wrap; a product is never contracted with a sum.
#pragma once

#include "blink/platform.h"

namespace blink {
namespace device {

// On the CPU all operations; on a GPU only NCCL's, since compilation takes time.
#ifdef BLINK_CUDA
constexpr bool kBitwise = false;
#else
constexpr bool kBitwise = true;
#endif

// Bytes per element, 1, 2, 4 or 8, from two bits per code.
BLINK_INLINE constexpr uint32_t item_bytes(uint32_t dtype) { return 1u << ((0xe5fa50u >> (2 * dtype)) & 3u); }

// ---- integers: their own accumulators

// `Wide` is unsigned, so that integers wrap, and has at least 32 bits: 65535 · 65535 would overflow an int.
template <class T, class Wide, class Quotient>
struct Integer {
  typedef T Acc;
  static constexpr uint32_t kCount = 8 / sizeof(T);
  static constexpr bool kBits = kBitwise;
  static constexpr bool kUntouched = false;

  BLINK_INLINE static void widen(Word word, Acc (&to)[kCount]) {
    BLINK_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) to[i] = static_cast<T>(word >> (8 * sizeof(T) * i));
  }
  BLINK_INLINE static Word narrow(const Acc (&from)[kCount]) {
    constexpr Word kMask = ~Word{0} >> (64 - 8 * sizeof(T));
    Word word = 0;
    BLINK_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) word |= (static_cast<Word>(from[i]) & kMask) << (8 * sizeof(T) * i);
    return word;
  }
  BLINK_INLINE static Acc given(Word bits) { return static_cast<T>(bits); }
  BLINK_INLINE static Acc sum(Acc a, Acc b) { return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b)); }
  BLINK_INLINE static Acc product(Acc a, Acc b) { return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b)); }
  BLINK_INLINE static Acc lesser(Acc a, Acc b) { return a < b ? a : b; }
  BLINK_INLINE static Acc greater(Acc a, Acc b) { return a > b ? a : b; }
  BLINK_INLINE static Acc quotient(Acc a, uint32_t n) {
    return static_cast<T>(static_cast<Quotient>(a) / static_cast<Quotient>(n));
  }
};

typedef Integer<int8_t, uint32_t, int32_t> Int8;
typedef Integer<uint8_t, uint32_t, uint32_t> Uint8;
typedef Integer<int16_t, uint32_t, int32_t> Int16;
typedef Integer<uint16_t, uint32_t, uint32_t> Uint16;
typedef Integer<int32_t, uint32_t, int32_t> Int32;
typedef Integer<uint32_t, uint32_t, uint32_t> Uint32;
typedef Integer<int64_t, Word, int64_t> Int64;
typedef Integer<uint64_t, Word, uint64_t> Uint64;

// ---- floats

template <class A>
struct FloatOps {
  typedef A Acc;
  static constexpr bool kBits = false;
  static constexpr bool kUntouched = false;

  BLINK_INLINE static Acc sum(Acc a, Acc b) { return add(a, b); }
  BLINK_INLINE static Acc product(Acc a, Acc b) { return multiply(a, b); }
  // NaN wins, and the first of two NaNs.
  BLINK_INLINE static Acc lesser(Acc a, Acc b) { return a < b || a != a ? a : b; }
  BLINK_INLINE static Acc greater(Acc a, Acc b) { return a > b || a != a ? a : b; }
  BLINK_INLINE static Acc quotient(Acc a, uint32_t n) { return divide(a, static_cast<A>(n)); }
};

struct Float32 : FloatOps<float> {
  static constexpr uint32_t kCount = 2;

  BLINK_INLINE static void widen(Word word, Acc (&to)[kCount]) {
    to[0] = float_of(static_cast<uint32_t>(word));
    to[1] = float_of(static_cast<uint32_t>(word >> 32));
  }
  BLINK_INLINE static Word narrow(const Acc (&from)[kCount]) {
    return bits_of(from[0]) | static_cast<Word>(bits_of(from[1])) << 32;
  }
  BLINK_INLINE static Acc given(Word bits) { return float_of(static_cast<uint32_t>(bits)); }
};

struct Float64 : FloatOps<double> {
  static constexpr uint32_t kCount = 1;

  BLINK_INLINE static void widen(Word word, Acc (&to)[kCount]) { to[0] = double_of(word); }
  BLINK_INLINE static Word narrow(const Acc (&from)[kCount]) { return bits_of(from[0]); }
  BLINK_INLINE static Acc given(Word bits) { return double_of(bits); }
};

// ---- narrow floats: accumulated as float32

// IEEE 754's layout with fewer bits. Without infinities ("fn") only the last code, all ones, is special: NaN.
template <int kExponentBits, int kMantissaBits, bool kInfinities>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kUnit = 1 - kBias - kMantissaBits;  // 2^kUnit is the smallest positive value
  static constexpr int kShift = 23 - kMantissaBits;        // from a float32's mantissa to this one
  static constexpr int kSignShift = 31 - kExponentBits - kMantissaBits;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kMask = (1u << (kExponentBits + kMantissaBits)) - 1;
  static constexpr uint32_t kSmallestNormal = 1u << kMantissaBits;
  static constexpr uint32_t kTop = ((1u << kExponentBits) - 1) << kMantissaBits;  // the largest exponent
  static constexpr uint32_t kFirstSpecial = kInfinities ? kTop : kMask;
  static constexpr uint32_t kNaN = kInfinities ? kTop | (kSmallestNormal >> 1) : kMask;

  BLINK_INLINE static float power_of_two(int exponent) {
    return float_of(static_cast<uint32_t>(127 + exponent) << 23);
  }

  BLINK_INLINE static float widen(uint32_t code) {
    const uint32_t magnitude = code & kMask;
    const uint32_t normal = (magnitude << kShift) + kRebias;
    uint32_t bits = bits_of(multiply(static_cast<float>(static_cast<int32_t>(magnitude)), power_of_two(kUnit)));
    if (magnitude >= kSmallestNormal) bits = normal;
    if (magnitude >= kFirstSpecial) bits = kInfinities ? normal | 0x7f800000u : 0x7fc00000u;
    return float_of(bits | ((code & ~kMask) << kSignShift));
  }

  BLINK_INLINE static uint32_t narrow(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t below_half = ((1u << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1);
    const uint32_t normal = (magnitude + below_half - kRebias) >> kShift;
    // Adding a float whose last place is 2^kUnit makes the hardware round to that place.
    const float ruler = power_of_two(kUnit + 23);
    const uint32_t subnormal = bits_of(add(float_of(magnitude), ruler)) - bits_of(ruler);
    uint32_t code = normal < kFirstSpecial ? normal : kFirstSpecial;
    if (magnitude < kRebias + (1u << 23)) code = subnormal;
    if (magnitude > 0x7f800000u) code = kNaN;
    return code | ((bits & 0x80000000u) >> kSignShift);
  }
};

// Two values at a time, for formats without a faster instruction.
template <class Bits, uint32_t kSize>
struct OneByOne {
  static constexpr uint32_t kBytes = kSize;
  BLINK_INLINE static void widen_two(uint32_t codes, float& first, float& second) {
    constexpr uint32_t kMask = (1u << (8 * kSize)) - 1;
    first = Bits::widen(codes & kMask);
    second = Bits::widen(codes >> (8 * kSize) & kMask);
  }
  BLINK_INLINE static uint32_t narrow_two(float first, float second) {
    return Bits::narrow(first) | Bits::narrow(second) << (8 * kSize);
  }
};

struct HalfBits : OneByOne<HalfBits, 2> {
#ifdef BLINK_CUDA
  BLINK_INLINE static void widen_two(uint32_t codes, float& first, float& second) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
        : "=f"(first), "=f"(second)
        : "r"(codes));
  }
  BLINK_INLINE static uint32_t narrow(float value) {
    uint16_t code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
    return code;
  }
#else
  static float widen(uint32_t code) { return SmallFloat<5, 10, true>::widen(code); }
  static uint32_t narrow(float value) { return SmallFloat<5, 10, true>::narrow(value); }
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  BLINK_INLINE static uint32_t narrow_two(float first, float second) {
    uint32_t codes;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(second), "f"(first));
    return codes;
  }
#endif
};

// The upper half of a float32, with the same exponent.
struct BrainBits : OneByOne<BrainBits, 2> {
  BLINK_INLINE static float widen(uint32_t code) { return float_of(code << 16); }
  BLINK_INLINE static uint32_t narrow(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return value == value ? rounded : (bits >> 16) | 0x0040u;
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  BLINK_INLINE static uint32_t narrow_two(float first, float second) {
    uint32_t codes;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(second), "f"(first));
    return codes;
  }
#endif
};

template <int kExponentBits, int kMantissaBits, bool kInfinities>
struct ByteBits : SmallFloat<kExponentBits, kMantissaBits, kInfinities>,
                  OneByOne<SmallFloat<kExponentBits, kMantissaBits, kInfinities>, 1> {};

template <class Bits>
struct Narrow : FloatOps<float> {
  static constexpr uint32_t kCount = 8 / Bits::kBytes;
  static constexpr uint32_t kWidth = 8 * Bits::kBytes;

  BLINK_INLINE static void widen(Word word, Acc (&to)[kCount]) {
    BLINK_UNROLL
    for (uint32_t i = 0; i < kCount; i += 2) {
      Bits::widen_two(static_cast<uint32_t>(word >> (kWidth * i)), to[i], to[i + 1]);
    }
  }
  BLINK_INLINE static Word narrow(const Acc (&from)[kCount]) {
    Word word = 0;
    BLINK_UNROLL
    for (uint32_t i = 0; i < kCount; i += 2) {
      word |= static_cast<Word>(Bits::narrow_two(from[i], from[i + 1])) << (kWidth * i);
    }
    return word;
  }
  BLINK_INLINE static Acc given(Word bits) { return float_of(static_cast<uint32_t>(bits)); }
};

typedef Narrow<HalfBits> Float16;
typedef Narrow<BrainBits> Bfloat16;
typedef Narrow<ByteBits<4, 3, false>> Float8E4M3;
typedef Narrow<ByteBits<5, 2, true>> Float8E5M2;

// ---- operations

// Not a reduction: a = b.
constexpr uint32_t kTakesNext = 0xffffffffu;

// a = a ∘ b, for each element of a word. The operation is tested once per word, not per element.
template <class Format>
BLINK_INLINE void combine(uint32_t op, typename Format::Acc (&a)[Format::kCount],
                          const typename Format::Acc (&b)[Format::kCount]) {
#define BLINK_EACH(expression) \
  BLINK_UNROLL                 \
  for (uint32_t i = 0; i < Format::kCount; ++i) a[i] = expression;
  typedef typename Format::Acc Acc;
  if (op == kTakesNext) {
    BLINK_EACH(b[i])
  } else if (op == BLINK_SUM) {
    BLINK_EACH(Format::sum(a[i], b[i]))
  } else if (op == BLINK_PROD) {
    BLINK_EACH(Format::product(a[i], b[i]))
  } else if (op == BLINK_MIN) {
    BLINK_EACH(Format::lesser(a[i], b[i]))
  } else if (op == BLINK_MAX) {
    BLINK_EACH(Format::greater(a[i], b[i]))
  } else if constexpr (Format::kBits) {
    if (op == BLINK_BAND) {
      BLINK_EACH(static_cast<Acc>(a[i] & b[i]))
    } else if (op == BLINK_BOR) {
      BLINK_EACH(static_cast<Acc>(a[i] | b[i]))
    } else {
      BLINK_EACH(static_cast<Acc>(a[i] ^ b[i]))
    }
  }
#undef BLINK_EACH
}

// On bool, sum, max and bor are "or"; prod, min and band are "and". A bool is one byte, 0 or 1.
BLINK_INLINE constexpr uint32_t op_of_bools(uint32_t op) {
  if (op == BLINK_BXOR) return BLINK_BXOR;
  return op == BLINK_PROD || op == BLINK_MIN || op == BLINK_BAND ? BLINK_BAND : BLINK_BOR;
}

}  // namespace device
}  // namespace blink
