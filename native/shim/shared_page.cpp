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

constexpr std::uint64_t kMagic = 0x3344524f424b4c42ull;  // "BLKBORD3"
constexpr int kMostRanks = 4096;
// The first part is what GPUs are shown: whole pages, on machines with large ones too.
constexpr std::size_t kShownBytes = 64 << 10, kLine = 64;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Everything is zero when fresh but the first line.
struct alignas(kLine) Header {
  std::uint64_t magic;
  std::uint32_t nranks;
  std::uint32_t searches;
  alignas(kLine) std::atomic<std::uint32_t> abort;
};
static_assert(sizeof(Header) <= kShownBytes, "GPUs are shown the abort word");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "processes share them");
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "kernels read the abort word");

// Header · shown to here · Flags × ranks · (shared part, reached × ranks, measured × ranks) × searches
struct Layout {
  explicit Layout(int nranks)
      : ranks(static_cast<std::size_t>(nranks)),
        flags(kShownBytes),
        searches(flags + ranks * kLine),
        stride(sizeof(Agreement::Shared) + 2 * ranks * sizeof(Agreement::Line)),
        bytes((searches + kSearches * stride + kShownBytes - 1) / kShownBytes * kShownBytes) {}
  std::size_t ranks, flags, searches, stride, bytes;
};

std::string failed(const char* what) {
  return std::string("the page of the ranks: ") + what + ": " + std::strerror(errno);
}

// What is behind the descriptor: the memory, or nullptr; and how much lies behind the page.
unsigned char* mapped(int descriptor, const Layout& layout, std::size_t* staging, std::string* why) {
  struct stat about {};
  if (fstat(descriptor, &about) != 0) {
    *why = failed("fstat");
    return nullptr;
  }
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (about.st_size < static_cast<off_t>(layout.bytes) || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    *why = "the page of the ranks: expected at least " + std::to_string(layout.bytes) +
           " bytes that cannot be taken away, got " + std::to_string(about.st_size) + " bytes" +
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

bool is_search(int slot) { return slot >= 0 && slot < kSearches; }

}  // namespace

// What a rank needs no more.
struct alignas(kLine) SharedPage::Flags {
  std::atomic<std::uint32_t> done;
};

SharedPage::~SharedPage() { munmap(memory_, Layout(nranks_).bytes + staging_bytes_); }

volatile std::uint32_t* SharedPage::abort_word() {
  return reinterpret_cast<volatile std::uint32_t*>(&reinterpret_cast<Header*>(memory_)->abort);
}

std::size_t SharedPage::bytes() const { return kShownBytes; }
void* SharedPage::staging() const { return memory_ + Layout(nranks_).bytes; }

void SharedPage::done() { flags(rank_).done.store(1, std::memory_order_release); }

SharedPage::Flags& SharedPage::flags(int rank) const {
  static_assert(sizeof(Flags) == kLine, "as Layout has them");
  return reinterpret_cast<Flags*>(memory_ + Layout(nranks_).flags)[rank];
}

bool SharedPage::all_done() const {
  for (int rank = 0; rank < nranks_; ++rank) {
    if (flags(rank).done.load(std::memory_order_acquire) == 0) return false;
  }
  return true;
}

Agreement SharedPage::agreement(int slot) const {
  const Layout layout(nranks_);
  unsigned char* const at = memory_ + layout.searches + static_cast<std::size_t>(slot) * layout.stride;
  return {reinterpret_cast<Agreement::Shared*>(at), reinterpret_cast<Agreement::Line*>(at + sizeof(Agreement::Shared)),
          nranks_};
}

bool SharedPage::value_for(int slot, std::uint64_t call, std::uint64_t initial, Agreement::Reading* reading) {
  return is_search(slot) && agreement(slot).value_for(rank_, call, initial, reading);
}

std::uint64_t SharedPage::decide(int slot, std::uint64_t value) {
  return rank_ == 0 && is_search(slot) ? agreement(slot).decide(value) : 0;
}

void SharedPage::say(int slot, std::uint64_t number, float measured) {
  if (is_search(slot)) agreement(slot).say(rank_, number, measured);
}

float SharedPage::least_said(int slot, std::uint64_t number) const {
  return is_search(slot) ? agreement(slot).least_said(number) : 0;
}

int SharedPage::create(int nranks, std::uint64_t staging, std::string* why) {
  if (!is_sensible(nranks, why)) return -1;
  const Layout layout(nranks);
  const int descriptor = memory_file("blink-page");
  if (descriptor < 0) {
    *why = failed("memfd_create");
    return -1;
  }
  Header header{};
  header.magic = kMagic;
  header.nranks = static_cast<std::uint32_t>(nranks);
  header.searches = kSearches;
  const auto size = static_cast<ssize_t>(offsetof(Header, abort));
  const std::uint64_t bytes = layout.bytes + (staging + kShownBytes - 1) / kShownBytes * kShownBytes;
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0 ||
      pwrite(descriptor, &header, static_cast<std::size_t>(size), 0) != size ||
      fcntl(descriptor, F_ADD_SEALS, kSeals) != 0) {
    *why = failed("its memory");
    close(descriptor);
    return -1;
  }
  return descriptor;
}

std::unique_ptr<SharedPage> SharedPage::map(int descriptor, int nranks, int rank, std::string* why) {
  std::unique_ptr<SharedPage> page;
  unsigned char* memory = nullptr;
  std::size_t staging = 0;
  if (rank < 0 || rank >= nranks) {
    *why = "rank " + std::to_string(rank) + " of a page for " + std::to_string(nranks) + " ranks";
  } else if (is_sensible(nranks, why)) {
    memory = mapped(descriptor, Layout(nranks), &staging, why);
  }
  if (descriptor >= 0) close(descriptor);
  if (memory == nullptr) return nullptr;
  page.reset(new SharedPage(memory, nranks, rank, staging));
  const auto* header = reinterpret_cast<const Header*>(memory);
  if (header->magic == kMagic && header->nranks == static_cast<std::uint32_t>(nranks) &&
      header->searches == kSearches) {
    return page;
  }
  *why = "the page of the ranks is not one for " + std::to_string(nranks) + " ranks of this version of Blink";
  return nullptr;
}

bool Agreement::value_for(int rank, std::uint64_t call, std::uint64_t initial, Reading* reading) {
  Line& mine = reached_[rank];
  if (mine.value.load(std::memory_order_relaxed) < call + 1) mine.value.store(call + 1);
  const auto is_open = [this, call] {
    const std::uint64_t from = shared_.proposed.value.load();
    return from != 0 && from <= call;
  };
  if (is_open()) {
    const Deadline patience(kPatienceS);
    while (is_open()) {
      if (patience.passed()) return false;
      sched_yield();  // rank 0 may need this core for its verdict
    }
  }
  const std::uint64_t decided = shared_.decided.value.load();
  *reading = {initial, 0};
  for (std::uint64_t i = decided; i > 0 && i + kHistory > decided; --i) {
    const Decision& decision = shared_.decisions[(i - 1) % kHistory];
    if (decision.from.load(std::memory_order_relaxed) > call) continue;
    *reading = {decision.value.load(std::memory_order_relaxed), i};
    break;
  }
  return true;
}

std::uint64_t Agreement::decide(std::uint64_t value, void (*pause)()) {
  const auto between = [pause] {
    if (pause != nullptr) pause();
  };
  const std::uint64_t from = pick();
  if (from == 0) return 0;
  between();
  propose(from);
  between();
  if (passed(from)) {
    withdraw();
    return 0;
  }
  between();
  commit(from, value);
  return from;
}

std::uint64_t Agreement::pick() const {
  std::uint64_t least = ~std::uint64_t{0}, most = 0;
  for (int rank = 0; rank < nranks_; ++rank) {
    const std::uint64_t reached = reached_[rank].value.load();
    least = std::min(least, reached);
    most = std::max(most, reached);
  }
  const std::uint64_t decided = shared_.decided.value.load(std::memory_order_relaxed);
  if (decided >= kHistory) {
    // The place of number decided − kHistory is due; the one after it must do for everybody.
    const std::uint64_t next = shared_.decisions[(decided + 1) % kHistory].from.load(std::memory_order_relaxed);
    if (least <= next) return 0;
  }
  return most + 2;
}

bool Agreement::passed(std::uint64_t from) const {
  const auto is_there = [from](const Line& line) { return line.value.load() > from; };
  return std::any_of(reached_, reached_ + nranks_, is_there);
}

void Agreement::commit(std::uint64_t from, std::uint64_t value) {
  const std::uint64_t decided = shared_.decided.value.load(std::memory_order_relaxed);
  Decision& decision = shared_.decisions[decided % kHistory];
  decision.from.store(from, std::memory_order_relaxed);
  decision.value.store(value, std::memory_order_relaxed);
  shared_.decided.value.store(decided + 1);
  shared_.proposed.value.store(0);
}

// Both are one word, so that nobody sees one without the other.
void Agreement::say(int rank, std::uint64_t number, float measured) {
  std::uint32_t bits = 0;
  static_assert(sizeof bits == sizeof measured, "a float is half of a word");
  std::memcpy(&bits, &measured, sizeof bits);
  measured_[rank].value.store((number + 1) << 32 | bits);
}

float Agreement::least_said(std::uint64_t number) const {
  float least = 0;
  for (int rank = 0; rank < nranks_; ++rank) {
    const std::uint64_t said = measured_[rank].value.load();
    if (said >> 32 != number + 1) return 0;
    const auto bits = static_cast<std::uint32_t>(said);
    float measured = 0;
    std::memcpy(&measured, &bits, sizeof bits);
    least = rank == 0 ? measured : std::min(least, measured);
  }
  return least;
}

}  // namespace blink::shim
