// Control that goes from stack to stack, without the system, and the stacks.
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
  // Goes on with `to`, until somebody switches back.
  void switch_to(Fiber& to);

 private:
#if defined(__x86_64__)
  void* at_ = nullptr;  // its stack, when it does not run
#else
  ucontext_t at_;
#endif
};

constexpr std::size_t kStackBytes = 64 << 10;

// Stacks for all fibers of a run, kept for the next one.
class Stacks {
 public:
  // That of a fiber, before it begins.
  char* of(std::size_t fiber, std::size_t fibers);
  // Whether it was long enough so far.
  bool held(std::size_t fiber) const;

 private:
  char* memory_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace emulate
}  // namespace blink
