// The memory of a heap of shared tensors: mapped at an address where huge pages can begin, and allocated in huge pages.
//
// Linux uses huge pages for memory files only if an administrator enabled it (shmem_enabled). Since 6.1 it also merges
// small pages into huge ones on request. A huge page of 2 MiB needs one page fault instead of 512, in each rank
// that uses it, and one page table entry instead of 512.
#include <sys/mman.h>

#include <cstdint>

#include "segment.h"

#if !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25  // some C libraries do not define it yet
#endif

namespace {

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

unsigned char* huge_page_up(void* at) {
  const auto beyond = reinterpret_cast<std::uintptr_t>(at) % kHugePage;
  return static_cast<unsigned char*>(at) + (beyond == 0 ? 0 : kHugePage - beyond);
}

}  // namespace

extern "C" void* blink_heap_map(int fd, uint64_t bytes) {
  const std::uint64_t whole = (bytes + blink::kPage - 1) / blink::kPage * blink::kPage;
  void* const room =
      mmap(nullptr, whole + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  unsigned char* const from = huge_page_up(room);
  if (mmap(from, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0) == MAP_FAILED) {
    munmap(room, whole + kHugePage);
    return nullptr;
  }
  const auto before = static_cast<std::uint64_t>(from - static_cast<unsigned char*>(room));
  if (before > 0) munmap(room, before);
  if (before < kHugePage) munmap(from + whole, kHugePage - before);
  return from;
}

extern "C" void blink_heap_unmap(void* heap, uint64_t bytes) { munmap(heap, bytes); }

extern "C" int blink_heap_take(void* memory, uint64_t bytes) {
  unsigned char* const from = huge_page_up(memory);
  unsigned char* const end = static_cast<unsigned char*>(memory) + bytes;
  if (end < from + kHugePage) return 0;
  const std::uint64_t whole = static_cast<std::uint64_t>(end - from) / kHugePage * kHugePage;
  // Touches each huge page first, because the system cannot collapse a range without any page.
  for (std::uint64_t at = 0; at < whole; at += kHugePage) static_cast<void>(*static_cast<volatile unsigned char*>(from + at));
  return madvise(from, whole, MADV_COLLAPSE) == 0 ? 1 : 0;
}

extern "C" void blink_heap_give_back(void* memory, uint64_t bytes) { madvise(memory, bytes, MADV_REMOVE); }
