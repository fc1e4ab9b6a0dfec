#include "elements.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace nccl_double {
namespace {

// A binary float of few bits: sign, `Exponent` bits, `Mantissa` bits. Finite: E4M3's, without infinities.
template <class Bits, int Exponent, int Mantissa, bool Finite>
struct Narrow {
  typedef double Wide;
  Bits bits;

  static constexpr int kBias = (1 << (Exponent - 1)) - 1;
  static constexpr int kAll = (1 << Exponent) - 1;

  double wide() const {
    const int exponent = (bits >> Mantissa) & kAll, mantissa = bits & ((1 << Mantissa) - 1);
    const double sign = (bits >> (Exponent + Mantissa)) & 1 ? -1 : 1;
    const bool top = exponent == kAll;
    if (top && (Finite ? mantissa == (1 << Mantissa) - 1 : mantissa != 0)) return std::nan("");
    if (top && !Finite) return sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - kBias - Mantissa);
    return sign * std::ldexp((1 << Mantissa) + mantissa, exponent - kBias - Mantissa);
  }

  static Narrow of(double value) {
    const Bits sign = static_cast<Bits>(std::signbit(value) ? Bits{1} << (Exponent + Mantissa) : 0);
    const Bits not_a_number = static_cast<Bits>((kAll << Mantissa) | ((1 << Mantissa) - 1));
    const Bits infinite = Finite ? not_a_number : static_cast<Bits>(kAll << Mantissa);
    if (std::isnan(value)) return {static_cast<Bits>(sign | not_a_number)};
    if (std::isinf(value)) return {static_cast<Bits>(sign | infinite)};
    if (value == 0) return {sign};
    const int exponent = std::max(std::ilogb(value), 1 - kBias);
    // In units of the last place; nearbyint rounds to even. A carry propagates into the exponent.
    const double units = std::nearbyint(std::ldexp(std::fabs(value), Mantissa - exponent));
    const auto wide_bits = static_cast<std::int64_t>(units) +
                           (static_cast<std::int64_t>(exponent + kBias - 1) << Mantissa);
    const std::int64_t most = Finite ? not_a_number - 1 : infinite - 1;
    if (wide_bits > most) return {static_cast<Bits>(sign | infinite)};
    return {static_cast<Bits>(sign | static_cast<Bits>(wide_bits))};
  }
};

template <class T>
struct Plain {
  typedef std::conditional_t<std::is_floating_point<T>::value, double, T> Wide;
  T value;
  Wide wide() const { return static_cast<Wide>(value); }
  static Plain of(Wide wide) { return {static_cast<T>(wide)}; }
};

// Integers wrap: they are added and multiplied as unsigned.
template <class W>
using Wrapping = std::conditional_t<std::is_integral<W>::value, std::uint64_t, W>;
template <class W>
W added(W a, W b) {
  return static_cast<W>(static_cast<Wrapping<W>>(a) + static_cast<Wrapping<W>>(b));
}
template <class W>
W multiplied(W a, W b) {
  return static_cast<W>(static_cast<Wrapping<W>>(a) * static_cast<Wrapping<W>>(b));
}

template <class E>
void reduce_as(Fold fold, const std::vector<const char*>& operands, const std::vector<const char*>& scales,
               char* output, std::size_t count) {
  typedef typename E::Wide W;
  const auto load = [](const char* at) {
    E element;
    std::memcpy(&element, at, sizeof element);
    return element.wide();
  };
  for (std::size_t i = 0; i < count; ++i) {
    W result{};
    for (std::size_t r = 0; r < operands.size(); ++r) {
      W value = load(operands[r] + i * sizeof(E));
      if (fold == kPreMulSum) value = multiplied(value, load(scales[r]));
      if (r == 0) result = value;
      else if (fold == kProd) result = multiplied(result, value);
      else if (fold == kMax) result = std::max(result, value);
      else if (fold == kMin) result = std::min(result, value);
      else result = added(result, value);
    }
    if (fold == kAvg) result = static_cast<W>(result / static_cast<W>(operands.size()));
    const E element = E::of(result);
    std::memcpy(output + i * sizeof(E), &element, sizeof element);
  }
}

constexpr std::size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

}  // namespace

std::size_t size_of(int dtype) { return dtype >= 0 && dtype < 12 ? kSizes[dtype] : 0; }

void reduce(Fold fold, int dtype, const std::vector<const char*>& operands, const std::vector<const char*>& scales,
            char* output, std::size_t count) {
  const auto as = [&](auto element) { reduce_as<decltype(element)>(fold, operands, scales, output, count); };
  switch (dtype) {
    case 0: return as(Plain<std::int8_t>());
    case 1: return as(Plain<std::uint8_t>());
    case 2: return as(Plain<std::int32_t>());
    case 3: return as(Plain<std::uint32_t>());
    case 4: return as(Plain<std::int64_t>());
    case 5: return as(Plain<std::uint64_t>());
    case 6: return as(Narrow<std::uint16_t, 5, 10, false>());
    case 7: return as(Plain<float>());
    case 8: return as(Plain<double>());
    case 9: return as(Narrow<std::uint16_t, 8, 7, false>());
    case 10: return as(Narrow<std::uint8_t, 4, 3, true>());
    case 11: return as(Narrow<std::uint8_t, 5, 2, false>());
    default: return;
  }
}

}  // namespace nccl_double
