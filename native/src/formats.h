// Element types: reading, arithmetic and writing. A format loads kElements elements as one Vector, computes with it,
// and rounds it into a destination (store) or keeps it as accumulators (keep, recall).
//
// Types that are computed in their stored form are processed element by element, and the compiler vectorises the loops.
// Narrow floats are processed as vectors of float32. In an unnamed namespace: each kernel file compiles its own copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "float_formats.h"
#include "operations.h"

namespace blink {
namespace {

template <class T, bool kInteger = std::is_integral_v<T>>
struct TwinOf {
  using Type = std::make_unsigned_t<T>;
};
template <class T>
struct TwinOf<T, false> {
  using Type = T;
};

// A type that is computed in its stored form. A signed integer uses its unsigned Twin where the order does not matter.
template <class T>
struct Native {
  using Twin = Native<typename TwinOf<T>::Type>;
  using Store = T;
  using Acc = T;
  using Vector = T;
  static constexpr std::size_t kElements = 1;

  template <class Count>
  static Vector load(const Store* from, Count) {
    return *from;
  }
  template <class Count>
  static void store(Store* to, Vector value, Count) {
    *to = value;
  }
  template <class Count>
  static Vector recall(const Acc* from, Count) {
    return *from;
  }
  template <class Count>
  static void keep(Acc* to, Vector value, Count) {
    *to = value;
  }

  static Acc scalar(double scale) {
    if constexpr (std::is_integral_v<T>) {
      // Truncated toward zero and wrapped. Values outside 64 bits, including NaN, have no defined result; it is 0.
      if (!(scale > -0x1p64 && scale < 0x1p64)) return 0;
      const std::uint64_t size = static_cast<std::uint64_t>(scale < 0 ? -scale : scale);
      return static_cast<T>(scale < 0 ? 0 - size : size);
    } else {
      return static_cast<T>(scale);
    }
  }

  static Vector scaled(Vector value, Acc factor) { return Prod::apply(value, factor); }

  // Up to 32 bits the truncated quotient in double is exact, and it vectorises: its error is below 2^-21 / divisor,
  // and a quotient that is not an integer differs from one by at least 1 / divisor.
  static Vector quotient(Vector value, std::uint32_t divisor) {
    if constexpr (std::is_floating_point_v<T>) {
      return value / static_cast<T>(divisor);
    } else if constexpr (sizeof(T) <= 4) {
      return static_cast<T>(static_cast<double>(value) / static_cast<double>(divisor));
    } else {
      return value / static_cast<T>(divisor);
    }
  }
};

// A float that is computed as float32. `count` is the number of valid elements in a vector: fewer only at the end.
template <class Format>
struct Narrow {
  using Twin = Narrow;
  using Store = typename Format::Store;
  using Acc = float;
  using Vector = Floats;
  static constexpr std::size_t kElements = kWidth;

  template <class Count>
  static Vector load(const Store* from, Count count) {
    typename Format::Stored stored{};
    std::memcpy(&stored, from, count * sizeof(Store));
    return Format::widen(stored);
  }
  template <class Count>
  static void store(Store* to, Vector value, Count count) {
    const typename Format::Stored stored = Format::narrow(value);
    std::memcpy(to, &stored, count * sizeof(Store));
  }
  template <class Count>
  static Vector recall(const Acc* from, Count count) {
    Vector value{};
    std::memcpy(&value, from, count * sizeof(Acc));
    return value;
  }
  template <class Count>
  static void keep(Acc* to, Vector value, Count count) {
    std::memcpy(to, &value, count * sizeof(Acc));
  }

  static Acc scalar(double scale) { return static_cast<float>(scale); }
  // Rounded as it would be in a message: the same bits on whichever rank it is added.
  static Vector scaled(Vector value, Acc factor) { return Format::widen(Format::narrow(value * factor)); }
  static Vector quotient(Vector value, std::uint32_t divisor) { return value / static_cast<float>(divisor); }
};

}  // namespace
}  // namespace blink
