// Checks of tests: expect() counts and prints failures, verdict() is the program's exit code.
#pragma once

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace blink_test {

inline std::atomic<long> checks{0};
inline std::atomic<long> failures{0};

__attribute__((format(printf, 2, 3))) inline bool expect(bool ok, const char* what, ...) {
  ++checks;
  if (ok || ++failures > 20) return ok;
  char text[512];
  va_list arguments;
  va_start(arguments, what);
  std::vsnprintf(text, sizeof text, what, arguments);
  va_end(arguments);
  std::printf("FAILED: %s\n", text);
  std::fflush(stdout);
  return false;
}

inline int verdict() {
  std::printf("%ld checks, %ld failures\n", checks.load(), failures.load());
  return failures == 0 && checks > 0 ? 0 : 1;
}

// The amount of work that fits into the time: sanitizers take three to fifteen times as long.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
constexpr int kEffort = 2;
#elif defined(__SANITIZE_ADDRESS__)
constexpr bool kThreadSanitizer = false;
constexpr int kEffort = 4;
#else
constexpr bool kThreadSanitizer = false;
constexpr int kEffort = 8;
#endif

}  // namespace blink_test
