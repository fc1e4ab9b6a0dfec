// The memory of a heap of shared tensors: mapped where huge pages can begin, and taken in huge pages.
//
// Linux gives files of memory huge pages only where an administrator asked for it (shmem_enabled), but since 6.1 it makes
// them out of small ones on request. A page of 2 MiB is one page fault instead of 512, in its owner and in every rank
// that uses it, and one entry of the processor's tables instead of 512.
#include <sys/mman.h>

#include <cstdint>

#include "segment.h"

#if !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25  // newer than some C libraries
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
  // Where there is no page at all there is nothing to make a huge one of.
  for (std::uint64_t at = 0; at < whole; at += kHugePage) static_cast<void>(*static_cast<volatile unsigned char*>(from + at));
  return madvise(from, whole, MADV_COLLAPSE) == 0 ? 1 : 0;
}

extern "C" void blink_heap_give_back(void* memory, uint64_t bytes) { madvise(memory, bytes, MADV_REMOVE); }
