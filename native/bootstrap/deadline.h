// Deadlines: a moment on the monotonic clock, or until somebody calls it off; every wait has one.
#pragma once

#include <atomic>
#include <chrono>

namespace blink {

class Deadline {
 public:
  // `cancelled`, which must live as long, makes it pass at once.
  explicit Deadline(double seconds, const std::atomic<bool>* cancelled = nullptr)
      : at_(std::chrono::steady_clock::now() + nanoseconds(seconds)), cancelled_(cancelled) {}

  // The same, so many seconds from now.
  Deadline moved_to(double seconds) const { return Deadline(seconds, cancelled_); }

  bool called_off() const { return cancelled_ != nullptr && *cancelled_; }

  bool passed() const { return called_off() || std::chrono::steady_clock::now() >= at_; }

  // Seconds that are left, at least 0.
  double left() const {
    if (called_off()) return 0;
    const std::chrono::duration<double> left = at_ - std::chrono::steady_clock::now();
    return left.count() > 0 ? left.count() : 0;
  }

  // The same for poll(): at least 1 while anything is left, and no more than one may sleep before one asks again.
  int left_ms() const {
    const double most = cancelled_ == nullptr ? 3600 : 0.02;
    const double seconds = left();
    if (seconds <= 0) return 0;
    return static_cast<int>((seconds < most ? seconds : most) * 1e3) + 1;
  }

 private:
  // What is no number or negative has passed already; a billion seconds are for ever, and more would overflow.
  static std::chrono::nanoseconds nanoseconds(double seconds) {
    constexpr double kForever = 1e9;
    if (!(seconds > 0)) return std::chrono::nanoseconds(0);
    return std::chrono::nanoseconds(static_cast<long long>((seconds < kForever ? seconds : kForever) * 1e9));
  }

  std::chrono::steady_clock::time_point at_;
  const std::atomic<bool>* cancelled_;
};

// A number of seconds from the environment; `otherwise` where the variable is missing or no positive number.
double seconds_from(const char* variable, double otherwise);

}  // namespace blink
