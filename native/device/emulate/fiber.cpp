#include "emulate/fiber.h"

#include <cstdint>

#if defined(__x86_64__)

extern "C" void blink_switch_stacks(void** from, void* to);

// What a called function must preserve goes onto the stack that is left, and comes from the other one.
asm(R"(
.text
.type blink_switch_stacks, @function
blink_switch_stacks:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size blink_switch_stacks, .-blink_switch_stacks
)");

namespace blink {
namespace emulate {

void Fiber::begin(char* stack, std::size_t bytes, void (*body)()) {
  auto top = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{15};
  auto* words = reinterpret_cast<void**>(top);
  *--words = nullptr;  // where body() would return to; it begins as if it had been called
  *--words = reinterpret_cast<void*>(body);
  for (int registers = 0; registers < 6; ++registers) *--words = nullptr;
  at_ = words;
}

void Fiber::switch_to(Fiber& to) { blink_switch_stacks(&at_, to.at_); }

}  // namespace emulate
}  // namespace blink

#else

namespace blink {
namespace emulate {

void Fiber::begin(char* stack, std::size_t bytes, void (*body)()) {
  getcontext(&at_);
  at_.uc_stack.ss_sp = stack;
  at_.uc_stack.ss_size = bytes;
  at_.uc_link = nullptr;
  makecontext(&at_, body, 0);
}

void Fiber::switch_to(Fiber& to) { swapcontext(&at_, &to.at_); }

}  // namespace emulate
}  // namespace blink

#endif
