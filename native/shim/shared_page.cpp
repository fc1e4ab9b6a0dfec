#include "shared_page.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "deadline.h"
#include "memory_file.h"

namespace blink::shim {
namespace {

constexpr int kMostRanks = 4096;
// The first part is registered with GPUs: whole pages, on machines with large ones, too.
constexpr std::size_t kShownBytes = 64 << 10, kLine = 64;

constexpr std::uint64_t kSealed = std::uint64_t{1} << 63;
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "processes share them");
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "kernels read the abort word");

// All zero at first: the abort word · end of the registered part · a line with `done` per rank · per search: Decision ×
// kDecisions, measured × ranks
struct Layout {
  explicit Layout(int nranks)
      : ranks(static_cast<std::size_t>(nranks)),
        searches(kShownBytes + ranks * kLine),
        stride(Agreement::kDecisions * sizeof(Agreement::Decision) +
               (ranks * sizeof(std::uint64_t) + kLine - 1) / kLine * kLine),
        bytes((searches + kSearches * stride + kShownBytes - 1) / kShownBytes * kShownBytes) {}
  std::size_t ranks, searches, stride, bytes;
};

std::string failed(const char* what) {
  return std::string("the page of the ranks: ") + what + ": " + std::strerror(errno);
}

// Maps the descriptor's memory, or nullptr; `staging`: the bytes behind the page.
unsigned char* mapped(int descriptor, const Layout& layout, std::size_t* staging, std::string* why) {
  struct stat about {};
  if (fstat(descriptor, &about) != 0) {
    *why = failed("fstat");
    return nullptr;
  }
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (about.st_size < static_cast<off_t>(layout.bytes) || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    *why = "the page of the ranks: expected at least " + std::to_string(layout.bytes) +
           " bytes sealed against shrinking, got " + std::to_string(about.st_size) + " bytes" +
           (seals < 0 ? " of another kind of file" : "");
    return nullptr;
  }
  const auto size = static_cast<std::size_t>(about.st_size);
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    *why = failed("mmap");
    return nullptr;
  }
  *staging = size - layout.bytes;
  return static_cast<unsigned char*>(memory);
}

bool is_sensible(int nranks, std::string* why) {
  if (nranks >= 1 && nranks <= kMostRanks) return true;
  *why = "a page for " + std::to_string(nranks) + " ranks; expected 1 to " + std::to_string(kMostRanks);
  return false;
}

}  // namespace

SharedPage::~SharedPage() { munmap(memory_, Layout(nranks_).bytes + staging_bytes_); }

volatile std::uint32_t* SharedPage::abort_word() {
  return reinterpret_cast<volatile std::uint32_t*>(memory_);
}

std::size_t SharedPage::bytes() const { return kShownBytes; }
void* SharedPage::staging() const { return memory_ + Layout(nranks_).bytes; }

void SharedPage::done() { done_of(rank_).store(1, std::memory_order_release); }

std::atomic<std::uint32_t>& SharedPage::done_of(int rank) const {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_ + kShownBytes + static_cast<std::size_t>(rank) * kLine);
}

bool SharedPage::all_done() const {
  for (int rank = 0; rank < nranks_; ++rank) {
    if (done_of(rank).load(std::memory_order_acquire) == 0) return false;
  }
  return true;
}

Agreement SharedPage::agreement(int slot) const {
  const Layout layout(nranks_);
  unsigned char* const at = memory_ + layout.searches + static_cast<std::size_t>(slot) * layout.stride;
  auto* const decisions = reinterpret_cast<Agreement::Decision*>(at);
  return {decisions, reinterpret_cast<std::atomic<std::uint64_t>*>(decisions + Agreement::kDecisions), nranks_};
}

int SharedPage::create(int nranks, std::uint64_t staging, std::string* why) {
  if (!is_sensible(nranks, why)) return -1;
  const Layout layout(nranks);
  const std::uint64_t bytes = layout.bytes + (staging + kShownBytes - 1) / kShownBytes * kShownBytes;
  const int descriptor = shared_file("blink-page", bytes);
  if (descriptor < 0) *why = failed("its memory");
  return descriptor;
}

std::unique_ptr<SharedPage> SharedPage::map(int descriptor, int nranks, int rank, std::string* why) {
  unsigned char* memory = nullptr;
  std::size_t staging = 0;
  if (rank < 0 || rank >= nranks) {
    *why = "rank " + std::to_string(rank) + " of a page for " + std::to_string(nranks) + " ranks";
  } else if (is_sensible(nranks, why)) {
    memory = mapped(descriptor, Layout(nranks), &staging, why);
  }
  if (descriptor >= 0) close(descriptor);
  return std::unique_ptr<SharedPage>(memory == nullptr ? nullptr : new SharedPage(memory, nranks, rank, staging));
}

Agreement::Reading Agreement::value_for(std::uint64_t call, std::uint64_t initial) {
  Reading reading{initial, 0};
  for (std::uint64_t i = 0; i < kDecisions; ++i) {
    std::atomic<std::uint64_t>& shared = decisions_[i].word;
    std::uint64_t word = shared.load(std::memory_order_acquire);
    while (word < call + 1 && !shared.compare_exchange_weak(word, call + 1, std::memory_order_acquire)) {
    }
    if ((word & kSealed) == 0 || (word & ~kSealed) > call) break;
    reading = {decisions_[i].value.load(std::memory_order_relaxed), i + 1};
  }
  return reading;
}

std::int64_t Agreement::decide(std::uint64_t value) {
  std::uint64_t before = 0;
  for (std::uint64_t i = 0; i < kDecisions; ++i) {
    std::uint64_t word = decisions_[i].word.load(std::memory_order_relaxed);
    if ((word & kSealed) != 0) {
      before = word & ~kSealed;
      continue;
    }
    decisions_[i].value.store(value, std::memory_order_relaxed);
    while (!decisions_[i].word.compare_exchange_weak(word, std::max(word, before) | kSealed, std::memory_order_release,
                                                     std::memory_order_relaxed)) {
    }
    return static_cast<std::int64_t>(std::max(word, before));
  }
  return -1;
}

// Decision and rate share one word, so that no reader sees one without the other.
void Agreement::say(int rank, std::uint64_t number, float measured) {
  std::uint32_t bits = 0;
  static_assert(sizeof bits == sizeof measured, "a float is half of a word");
  std::memcpy(&bits, &measured, sizeof bits);
  measured_[rank].store((number + 1) << 32 | bits);
}

float Agreement::least_said(std::uint64_t number) const {
  float least = 0;
  for (int rank = 0; rank < nranks_; ++rank) {
    const std::uint64_t word = measured_[rank].load();
    if (word >> 32 != number + 1) return 0;
    const auto bits = static_cast<std::uint32_t>(word);
    float measured = 0;
    std::memcpy(&measured, &bits, sizeof bits);
    least = rank == 0 ? measured : std::min(least, measured);
  }
  return least;
}

}  // namespace blink::shim
