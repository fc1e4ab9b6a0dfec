// Floats on a CPU: their bits, and operations that are rounded one by one.
#pragma once

#include <cstring>

#include "blink/call.h"
#include "blink/target.h"

namespace blink {
namespace device {

BLINK_INLINE float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
BLINK_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
BLINK_INLINE double double_of(Word bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
BLINK_INLINE Word bits_of(double value) {
  Word bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
// -ffp-contract=off prevents contraction.
BLINK_INLINE float add(float a, float b) { return a + b; }
BLINK_INLINE float multiply(float a, float b) { return a * b; }
BLINK_INLINE float divide(float a, float b) { return a / b; }
BLINK_INLINE double add(double a, double b) { return a + b; }
BLINK_INLINE double multiply(double a, double b) { return a * b; }
BLINK_INLINE double divide(double a, double b) { return a / b; }

}  // namespace device
}  // namespace blink
