// A bundle: the file with all plans of a host. Only the plans that are used are read.
//
// The file is never mapped: a process that truncated it would kill this one. Each plan that is read is also checked.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "comm.h"
#include "kernels.h"
#include "op.h"
#include "plan.h"

namespace {

using blink::refuse;

constexpr std::int64_t kMostRows = 1 << 20;
constexpr std::int64_t kMostBlocks = 1 << 12, kMostElements = std::int64_t{1} << 40;  // so that no product overflows
constexpr std::int64_t kMostWords = std::int64_t{1} << 27;  // 1 GiB
constexpr std::int64_t kWord = sizeof(std::int64_t);
constexpr std::int64_t kLine = blink::kLineBytes;

bool read_all(int file, void* into, std::size_t bytes, std::int64_t at) {
  auto* to = static_cast<unsigned char*>(into);
  while (bytes > 0) {
    const ssize_t got = pread(file, to, bytes, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool is_this_version(const blink_bundle_header& h) {
  char package[sizeof h.package] = {};
  std::strncpy(package, blink_host_version(), sizeof package - 1);
  return h.magic == BLINK_BUNDLE_MAGIC && h.version == BLINK_BUNDLE_VERSION && h.abi == blink_abi_version() &&
         std::memcmp(package, h.package, sizeof package) == 0;
}

}  // namespace

struct blink_bundle {
 public:
  explicit blink_bundle(int file) : file_(file) {}
  ~blink_bundle() { close(file_); }
  blink_bundle(const blink_bundle&) = delete;
  blink_bundle& operator=(const blink_bundle&) = delete;

  bool read(std::int64_t bytes, std::int32_t ranks, blink_error& why);
  blink_op* op(blink_comm& comm, const blink_request& request, const blink_blocks* blocks, blink_error& why);
  int check(blink_error& why);
  const blink_bundle_header& header() const { return header_; }

 private:
  std::vector<const blink_bundle_choice*> choice(const blink_request& request, std::int64_t item) const;
  blink_op* bound(blink_comm& comm, const blink_request& request, const blink_blocks* blocks,
                  const blink_bundle_choice& row, std::int64_t item, blink_error& why);
  const blink_bundle_choice* choice_of_blocks(const blink_request& request) const;
  const blink_plan* plan(std::size_t number, blink_error& why);
  bool rows_are_right() const;

  int file_;
  blink_bundle_header header_{};
  std::vector<blink_bundle_choice> choices_;
  std::vector<blink_bundle_plan> rows_;
  std::vector<std::unique_ptr<const blink_plan>> plans_;  // null for plans not read yet;
  std::mutex mutex_;                                      // of plans_
};

bool blink_bundle::read(std::int64_t bytes, std::int32_t ranks, blink_error& why) {
  blink_bundle_header& h = header_;
  const auto wrong = [&why](const char* what) {
    refuse(why, BLINK_INVALID, "%s; python -m blinkccl.runtime.host_bundle RANKS writes a new one", what);
    return false;
  };
  if (bytes < static_cast<std::int64_t>(sizeof h) || bytes % kWord != 0 || !read_all(file_, &h, sizeof h, 0)) {
    return wrong("the file is not a bundle, or is cut off");
  }
  if (!is_this_version(h)) return wrong("the bundle was written by another version of blink-ccl");
  if (h.words != bytes / kWord || h.words > kMostWords) return wrong("the bundle is cut off");
  if (h.choice_count < 0 || h.choice_count > kMostRows || h.plan_count < 0 || h.plan_count > kMostRows) {
    return wrong("the bundle is damaged: its header is invalid");
  }
  choices_.resize(static_cast<std::size_t>(h.choice_count));
  rows_.resize(static_cast<std::size_t>(h.plan_count));
  const std::size_t choice_bytes = choices_.size() * sizeof choices_[0], row_bytes = rows_.size() * sizeof rows_[0];
  constexpr std::size_t kSummed = offsetof(blink_bundle_header, checksum) + kWord;
  std::vector<unsigned char> summed(sizeof h - kSummed + choice_bytes + row_bytes);
  if (!read_all(file_, summed.data(), summed.size(), kSummed)) return wrong("the bundle is cut off");
  if (blink::checksum(summed.data(), summed.size() / kWord) != h.checksum) {
    return wrong("the bundle is damaged: its checksum differs");
  }
  const unsigned char* rows = summed.data() + sizeof h - kSummed;
  if (choice_bytes > 0) std::memcpy(choices_.data(), rows, choice_bytes);
  if (row_bytes > 0) std::memcpy(rows_.data(), rows + choice_bytes, row_bytes);
  if (!rows_are_right()) return wrong("the bundle is damaged: its rows are invalid");
  blink_shape shape;
  blink_bundle_shape(this, &shape);
  if (h.ranks != ranks || blink_segment_bytes(&shape) == 0) return wrong("the bundle is for another number of ranks");
  plans_.resize(rows_.size());
  return true;
}

bool blink_bundle::rows_are_right() const {
  const auto places = [this](const blink_bundle_plan& row) {
    return row.first >= 0 && row.words >= 0 && row.words <= header_.words && row.first <= header_.words - row.words;
  };
  const auto numbers = [](const blink_bundle_choice& row) {
    return row.blocks >= 1 && (row.variant != 0 || row.cross_memory == 0) && row.blocks <= kMostBlocks && row.chunk_bytes >= 1 && row.parts >= 0 && row.parts <= kMostRows;
  };
  return std::all_of(rows_.begin(), rows_.end(), places) && std::all_of(choices_.begin(), choices_.end(), numbers);
}

// Returns the row that serves a request, and its variants.
std::vector<const blink_bundle_choice*> blink_bundle::choice(const blink_request& request, std::int64_t item) const {
  const bool crosses = request.crosses != 0 && (request.op & BLINK_SCALES) == 0;  // scaled data is in no buffer
  std::vector<const blink_bundle_choice*> serving;
  for (const blink_bundle_choice& row : choices_) {
    if (row.collective != request.collective) continue;
    if (row.variant == 0 && !serving.empty()) break;
    const bool serves = row.variant == 0 ? request.count * item * row.blocks < row.below : !serving.empty();
    if (serves && (row.cross_memory == 0 || crosses)) serving.push_back(&row);
  }
  return serving;
}

// The row for the largest sizes; nullptr if no row supports blocks of different lengths.
const blink_bundle_choice* blink_bundle::choice_of_blocks(const blink_request& request) const {
  const auto last = std::find_if(choices_.rbegin(), choices_.rend(), [&](const blink_bundle_choice& row) {
    return row.collective == request.collective && row.inline_messages == 0 && row.variant == 0;
  });
  return last == choices_.rend() ? nullptr : &*last;
}

const blink_plan* blink_bundle::plan(std::size_t number, blink_error& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (plans_[number] == nullptr) {
    const blink_bundle_plan& row = rows_[number];
    std::vector<std::int64_t> words(static_cast<std::size_t>(row.words));
    if (!read_all(file_, words.data(), words.size() * kWord, row.first * kWord)) {
      return refuse(why, BLINK_INVALID,
                    "the bundle is cut off; python -m blinkccl.runtime.host_bundle RANKS writes a new one");
    }
    auto read = blink::read_plan(words.data(), words.size() * kWord, why);
    if (read == nullptr) return nullptr;
    const blink_plan_header& h = read->header;
    if (h.collective != row.collective || h.root != row.root || h.rank_count != header_.ranks) {
      return refuse(why, BLINK_INVALID, "the bundle is damaged: plan %zu is not the one that its row describes", number);
    }
    plans_[number] = std::move(read);
  }
  return plans_[number].get();
}

blink_op* blink_bundle::op(blink_comm& comm, const blink_request& request, const blink_blocks* blocks,
                           blink_error& why) {
  const blink::Kernel* kernel = blink::find_kernel(request.dtype, request.op & ~std::uint32_t{BLINK_AVERAGES | BLINK_SCALES});
  if (kernel == nullptr || request.count < 0 || request.count > kMostElements) {
    return refuse(why, BLINK_INVALID, "no call has type %u, operation %u and %lld elements", request.dtype,
                  request.op, static_cast<long long>(request.count));
  }
  const auto item = static_cast<std::int64_t>(kernel->itemsize);
  std::vector<const blink_bundle_choice*> rows;
  if (blocks == nullptr) {
    rows = choice(request, item);
  } else if (const blink_bundle_choice* row = choice_of_blocks(request)) {
    rows.push_back(row);
  }
  if (rows.empty()) {
    return refuse(why, BLINK_UNSUPPORTED, "no plan in the bundle serves collective %d", request.collective);
  }
  std::unique_ptr<blink_op> made;
  for (const blink_bundle_choice* row : rows) {
    std::unique_ptr<blink_op> op(bound(comm, request, blocks, *row, item, why));
    if (op == nullptr) return nullptr;
    if (made == nullptr) {
      made = std::move(op);
    } else if (blink_op_add_variant(made.get(), op.get()) == BLINK_OK) {
      op.release();
    }
  }
  return made.release();
}

blink_op* blink_bundle::bound(blink_comm& comm, const blink_request& request, const blink_blocks* blocks,
                              const blink_bundle_choice& choice, std::int64_t item, blink_error& why) {
  const blink_bundle_choice* row = &choice;
  const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const blink_bundle_plan& p) {
    return p.collective == request.collective && p.root == request.root && p.algorithm == row->algorithm &&
           p.inline_messages == row->inline_messages;
  });
  if (found == rows_.end()) {
    return refuse(why, BLINK_UNSUPPORTED, "the bundle has no plan of collective %d with root %d", request.collective,
                  request.root);
  }
  const blink_plan* chosen = plan(static_cast<std::size_t>(found - rows_.begin()), why);
  if (chosen == nullptr) return nullptr;
  std::int64_t chunk = row->chunk_bytes;
  if (row->parts > 0 && blocks == nullptr) {
    const std::int64_t size = request.count * item * row->blocks;
    const std::int64_t lines = (size + kLine * row->parts - 1) / (kLine * row->parts);
    chunk = std::max<std::int64_t>(1, std::min(chunk, lines * kLine));
  }
  const blink_binding binding{request.count, request.dtype, request.op, chunk, row->cross_memory};
  return blink::bind_op(comm, *chosen, binding, blocks, why);
}

int blink_bundle::check(blink_error& why) {
  for (std::size_t number = 0; number < rows_.size(); ++number) {
    if (plan(number, why) == nullptr) return why.code;
  }
  return BLINK_OK;
}

extern "C" {

blink_bundle* blink_bundle_open(const char* path, int32_t ranks, blink_error* error) {
  const int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return refuse(*error, BLINK_SYSTEM, "the bundle cannot be opened: %s", std::strerror(errno));
  auto made = std::make_unique<blink_bundle>(file);
  struct stat about {};
  if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode) || (about.st_uid != geteuid() && about.st_uid != 0) ||
      (about.st_mode & 022) != 0) {
    return refuse(*error, BLINK_SYSTEM,
                  "the bundle must be a regular file of this user or root that no other user can write");
  }
  return made->read(about.st_size, ranks, *error) ? made.release() : nullptr;
}

void blink_bundle_close(blink_bundle* bundle) { delete bundle; }

int blink_bundle_check(blink_bundle* bundle, blink_error* error) { return bundle->check(*error); }

void blink_bundle_shape(const blink_bundle* bundle, blink_shape* shape) {
  const blink_bundle_header& h = bundle->header();
  *shape = {h.ranks, h.lines, h.staging_bytes, h.inline_bytes, h.stream_bytes};
}

blink_op* blink_bundle_op(blink_bundle* bundle, blink_comm* comm, const blink_request* request, blink_error* error) {
  return bundle->op(*comm, *request, nullptr, *error);
}

blink_op* blink_bundle_op_of_blocks(blink_bundle* bundle, blink_comm* comm, const blink_request* request,
                                    const blink_blocks* blocks, blink_error* error) {
  return bundle->op(*comm, *request, blocks, *error);
}

}  // extern "C"
