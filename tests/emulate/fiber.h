// Switches between stacks without the system, and the stacks.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace blink {
namespace emulate {

class Fiber {
 public:
  // The next switch to it calls body(), which never returns.
  void begin(char* stack, std::size_t bytes, void (*body)());
  // Continues `to`, until another fiber switches back.
  void switch_to(Fiber& to);

 private:
#if defined(__x86_64__)
  void* at_ = nullptr;  // its stack pointer while it is suspended
#else
  ucontext_t at_;
#endif
};

constexpr std::size_t kStackBytes = 64 << 10;

// Stacks for all fibers of a run, reused by the next one.
class Stacks {
 public:
  // Returns the stack of a fiber before it begins.
  char* of(std::size_t fiber, std::size_t fibers);
  // Whether the stack has been large enough so far.
  bool held(std::size_t fiber) const;

 private:
  char* memory_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace emulate
}  // namespace blink
