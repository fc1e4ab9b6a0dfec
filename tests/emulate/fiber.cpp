#include "emulate/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#if defined(__x86_64__)

extern "C" void blink_switch_stacks(void** from, void* to);

// Registers that a called function must preserve are pushed onto the old stack and popped from the new one.
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
  *--words = nullptr;  // the return address of body(), which begins as if it had been called
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

namespace blink {
namespace emulate {
namespace {

constexpr std::uint64_t kStackEnd = 0x57ac4e4d57ac4e4d;  // marks the end of a stack

}  // namespace

char* Stacks::of(std::size_t fiber, std::size_t fibers) {
  if (fibers > count_) {
    if (memory_ != nullptr) munmap(memory_, count_ * kStackBytes);
    void* const got = mmap(nullptr, fibers * kStackBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(got);
    count_ = fibers;
  }
  char* const stack = memory_ + fiber * kStackBytes;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack, kStackBytes);
#endif
  std::memcpy(stack, &kStackEnd, sizeof kStackEnd);
  return stack;
}

bool Stacks::held(std::size_t fiber) const {
  return std::memcmp(memory_ + fiber * kStackBytes, &kStackEnd, sizeof kStackEnd) == 0;
}

}  // namespace emulate
}  // namespace blink
