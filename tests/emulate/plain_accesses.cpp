// The functions that a compiler calls with `-fsanitize=thread` before every plain access. Bodies that are compiled with
// it, and linked with this file instead of the sanitizer, report their accesses to the fibers.
#include <cstddef>

namespace blink {
namespace emulate {

void touched(const void* at, std::size_t bytes, bool write);

}  // namespace emulate
}  // namespace blink

#define BLINK_TOUCHES(name, bytes)                                                              \
  extern "C" __attribute__((visibility("default"))) void __tsan_read##name(const void* at) {    \
    blink::emulate::touched(at, bytes, false);                                                  \
  }                                                                                             \
  extern "C" __attribute__((visibility("default"))) void __tsan_write##name(const void* at) {   \
    blink::emulate::touched(at, bytes, true);                                                   \
  }

BLINK_TOUCHES(1, 1)
BLINK_TOUCHES(2, 2)
BLINK_TOUCHES(4, 4)
BLINK_TOUCHES(8, 8)
BLINK_TOUCHES(16, 16)

extern "C" {

__attribute__((visibility("default"))) void __tsan_unaligned_read2(const void* at) { __tsan_read2(at); }
__attribute__((visibility("default"))) void __tsan_unaligned_read4(const void* at) { __tsan_read4(at); }
__attribute__((visibility("default"))) void __tsan_unaligned_read8(const void* at) { __tsan_read8(at); }
__attribute__((visibility("default"))) void __tsan_unaligned_read16(const void* at) { __tsan_read16(at); }
__attribute__((visibility("default"))) void __tsan_unaligned_write2(const void* at) { __tsan_write2(at); }
__attribute__((visibility("default"))) void __tsan_unaligned_write4(const void* at) { __tsan_write4(at); }
__attribute__((visibility("default"))) void __tsan_unaligned_write8(const void* at) { __tsan_write8(at); }
__attribute__((visibility("default"))) void __tsan_unaligned_write16(const void* at) { __tsan_write16(at); }
__attribute__((visibility("default"))) void __tsan_read_range(const void* at, std::size_t bytes) {
  blink::emulate::touched(at, bytes, false);
}
__attribute__((visibility("default"))) void __tsan_write_range(const void* at, std::size_t bytes) {
  blink::emulate::touched(at, bytes, true);
}
__attribute__((visibility("default"))) void __tsan_func_entry(const void*) {}
__attribute__((visibility("default"))) void __tsan_func_exit() {}
__attribute__((visibility("default"))) void __tsan_init() {}

}  // extern "C"

// Only the atomics of tests: those of the device layer belong to the platform.
#define BLINK_ATOMICS(bits, Type)                                                                                     \
  extern "C" __attribute__((visibility("default"))) Type __tsan_atomic##bits##_load(const volatile Type* at, int) {   \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                                     \
  }                                                                                                                   \
  extern "C" __attribute__((visibility("default"))) Type __tsan_atomic##bits##_fetch_add(volatile Type* at, Type by,  \
                                                                                         int) {                       \
    return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST);                                                              \
  }

BLINK_ATOMICS(32, unsigned)
BLINK_ATOMICS(64, unsigned long)
