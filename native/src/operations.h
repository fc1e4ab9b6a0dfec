// Operations a ∘ b, of one element or of a vector of them. Integers wrap.
//
// In an unnamed namespace: each kernel file compiles its own copy (kernels_body.inc says why).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace blink {
namespace {

// Unsigned, so that integers wrap, and at least as long as `unsigned`: 65535 · 65535 in uint16_t would overflow an int.
template <class A>
using Wide = std::common_type_t<std::make_unsigned_t<A>, unsigned>;

struct Sum {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(Wide<A>(a) + Wide<A>(b));
    } else {
      return a + b;
    }
  }
};

struct Prod {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(Wide<A>(a) * Wide<A>(b));
    } else {
      return a * b;
    }
  }
};

// choice ? a : b for one float, on its bits and without `?`: GCC does not vectorise a loop body with two of them.
template <class A, class Choice>
A choose(Choice choice, A a, A b) {
  if constexpr (std::is_floating_point_v<A>) {
    using Bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
    Bits x;
    Bits y;
    std::memcpy(&x, &a, sizeof x);
    std::memcpy(&y, &b, sizeof y);
    y ^= (x ^ y) & (Bits{0} - static_cast<Bits>(choice));
    std::memcpy(&b, &y, sizeof b);
    return b;
  } else {
    return choice ? a : b;
  }
}

// A NaN wins, and the first of two NaNs. `|` instead of `||`, because A may be a vector.
struct Min {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return a < b ? a : b;
    } else {
      return choose((a < b) | (a != a), a, b);
    }
  }
};

struct Max {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return a > b ? a : b;
    } else {
      return choose((a > b) | (a != a), a, b);
    }
  }
};

struct Band {
  template <class A>
  static A apply(A a, A b) {
    return static_cast<A>(a & b);
  }
};

struct Bor {
  template <class A>
  static A apply(A a, A b) {
    return static_cast<A>(a | b);
  }
};

struct Bxor {
  template <class A>
  static A apply(A a, A b) {
    return static_cast<A>(a ^ b);
  }
};

template <class O>
constexpr bool kOrders = std::is_same_v<O, Min> || std::is_same_v<O, Max>;

}  // namespace
}  // namespace blink
