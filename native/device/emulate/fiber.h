// Control that goes from stack to stack, without the system.
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

}  // namespace emulate
}  // namespace blink
