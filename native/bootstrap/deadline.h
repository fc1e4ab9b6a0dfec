// Deadlines: a moment on the monotonic clock, which a flag can bring forward; every wait has one.
#pragma once

#include <atomic>
#include <chrono>

namespace blink {

class Deadline {
 public:
  // `cancelled` makes it pass at once when set, and must outlive it.
  explicit Deadline(double seconds, const std::atomic<bool>* cancelled = nullptr)
      : at_(std::chrono::steady_clock::now() + nanoseconds(seconds)), cancelled_(cancelled) {}

  // The same cancellation, `seconds` from now.
  Deadline moved_to(double seconds) const { return Deadline(seconds, cancelled_); }

  bool called_off() const { return cancelled_ != nullptr && *cancelled_; }

  bool passed() const { return called_off() || std::chrono::steady_clock::now() >= at_; }

  // Remaining seconds, at least 0.
  double left() const {
    if (called_off()) return 0;
    const std::chrono::duration<double> left = at_ - std::chrono::steady_clock::now();
    return left.count() > 0 ? left.count() : 0;
  }

  // For poll(): at least 1 while time remains, and short enough to see a cancellation soon.
  int left_ms() const {
    const double most = cancelled_ == nullptr ? 3600 : 0.02;
    const double seconds = left();
    if (seconds <= 0) return 0;
    return static_cast<int>((seconds < most ? seconds : most) * 1e3) + 1;
  }

 private:
  // NaN and negative numbers have passed already; a billion seconds count as forever, since more would overflow.
  static std::chrono::nanoseconds nanoseconds(double seconds) {
    constexpr double kForever = 1e9;
    if (!(seconds > 0)) return std::chrono::nanoseconds(0);
    return std::chrono::nanoseconds(static_cast<long long>((seconds < kForever ? seconds : kForever) * 1e9));
  }

  std::chrono::steady_clock::time_point at_;
  const std::atomic<bool>* cancelled_;
};

// A number of seconds from the environment; `otherwise` if the variable is missing or not a positive number.
double seconds_from(const char* variable, double otherwise);

}  // namespace blink
