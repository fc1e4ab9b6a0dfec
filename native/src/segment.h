// The layout of the shared segment, and the writer of each part.
//
//   Header · RankBlock × ranks · lines: [bank][rank][line] · staging: [bank][rank] · inline: [bank][rank] · streams
//   · variants of operations: lines, and times: [line][rank]
//
// Fresh memory is all zeros. Calls are numbered from 1, equally on every rank; call s uses bank s mod 2. A rank begins
// call s only after every peer has begun call s − 1, and so has finished s − 2, the bank's last user. No other clean-up
// between calls is needed: every control word contains its call's number, so that old data never looks new.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "blink/host.h"

namespace blink {

constexpr std::uint64_t kMagic = 0x31304b4e494c42ull;  // "BLINK01"
constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kPage = 4096;
constexpr int kBanks = 2;
constexpr std::int64_t kNowhere = BLINK_NOWHERE;

// A control word holds the call's number and, in the lower bits, a message count. Data of an earlier call must never
// look new, so the number must not wrap around: 2^40 calls are a month of the shortest ones without a pause.
constexpr int kCountBits = 24;
constexpr std::int64_t kMostMessages = (std::int64_t{1} << kCountBits) - 1;
constexpr std::uint64_t kMostCalls = std::uint64_t{1} << (64 - kCountBits);

// A counter in its own cache line, written by one rank only.
struct alignas(kLineBytes) Line {
  std::atomic<std::uint64_t> value;
};

// A small message is sent in blocks; a rank that sees a block's flag may read its payload. A payload of at most
// kTinyBytes shares the flag's line, so that the block is one cache line. Longer payloads begin on the next line, as
// vector loads need.
constexpr std::size_t kTinyBytes = kLineBytes - sizeof(std::uint64_t);
constexpr std::size_t kPayloadBytes = BLINK_PAYLOAD_BYTES;
struct alignas(kLineBytes) Block {
  std::atomic<std::uint64_t> flag;
  unsigned char tiny[kTinyBytes];
  unsigned char payload[kPayloadBytes];

  // The address of the payload in a message of `total` bytes.
  unsigned char* data(std::size_t total) { return total <= kTinyBytes ? tiny : payload; }
  const unsigned char* data(std::size_t total) const { return total <= kTinyBytes ? tiny : payload; }
};
static_assert(sizeof(Block) == BLINK_BLOCK_BYTES, "blocks lie one after another");

// A buffer of a rank. `at` is its offset in the rank's heap; or kNowhere: other ranks must not access it; or a smaller
// number, kNowhere − address: in the rank's own memory, for cross-memory copies.
struct Lent {
  std::atomic<std::int64_t> at, bytes;
};

inline std::int64_t private_place(const void* memory) {
  return kNowhere - static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(memory));
}
inline bool is_private(std::int64_t place) { return place < kNowhere; }
inline bool is_shared(std::int64_t place) { return place > kNowhere; }

// The data that a rank publishes when it begins a call. Written before `sequence`.
struct alignas(kLineBytes) Entry {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> signature;
  std::atomic<std::uint64_t> what;
  std::atomic<std::int64_t> count;
  Lent input, output;
};
static_assert(sizeof(Entry) == kLineBytes, "one line");

struct alignas(kLineBytes) Bell {
  std::atomic<std::uint32_t> sleeping;
  std::atomic<std::uint32_t> rings;  // the futex;
  std::atomic<std::int32_t> awaited; // 1 + the only rank that must wake it; 0: any rank;
  std::atomic<std::int32_t> cpu;     // 1 + the core of the rank's last long wait; 0: none
};

// The reason for a rank's wait, for monitoring. Read without a lock; readers may see a mixture of two states.
struct alignas(kLineBytes) Waiting {
  std::atomic<std::int32_t> waits, peer, channel, share, stage;
  std::atomic<std::int64_t> chunk, since_us;
};

// A joining rank does not hold its lock yet: the others must not consider it dead.
constexpr std::uint32_t kAbsent = 0, kJoining = 1, kJoined = 2, kRemote = 3;  // kRemote: on another host

struct alignas(kLineBytes) Life {
  std::atomic<std::int64_t> pid;
  std::atomic<std::uint32_t> joined, left;
  std::atomic<std::uint64_t> finished;
  std::atomic<std::uint64_t> own;  // calls that the group made for itself, before the user's first;
  // 1 while the rank writes into other ranks' buffers. A rank whose call has failed waits for the end of such writes,
  // up to a second, before it returns its buffers to its caller.
  std::atomic<std::uint32_t> writing;
  std::atomic<std::uint64_t> secret_at;  // address of a secret that only this process has; see can_cross();
  std::atomic<std::uint64_t> processes;  // inode of the PID namespace of `pid`; 0: unknown
};

struct alignas(kLineBytes) RankBlock {
  Entry entry[kBanks];
  Bell bell;
  Waiting waiting, streaming;  // in a collective; in point to point
  Life life;
};

// The current variant of one operation (variants.h). Rank 0 writes both words.
struct alignas(kLineBytes) VariantLine {
  std::atomic<std::uint64_t> key;  // of the operation; 0: the line is free
  std::atomic<std::uint64_t> decision;
};
constexpr std::size_t kVariantLines = 256;

// The times at which a rank began and ended some of its last calls of the operation.
struct VariantTime {
  std::atomic<std::uint64_t> sequence;  // 0: being written
  std::atomic<std::int64_t> began_ns, ended_ns;
};
constexpr std::size_t kVariantTimes = 4;
struct alignas(kLineBytes) VariantTimes {
  VariantTime time[kVariantTimes];
};

// One byte stream: the sender writes `written`, the receiver `read`.
struct alignas(kLineBytes) Stream {
  Line written, read;
};

struct alignas(kPage) Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t cores;
  std::uint8_t token[16];
  blink_shape shape;
  std::uint64_t bytes;
  // The first failure: 0 none, 1 being written, 2 complete.
  alignas(kLineBytes) std::atomic<std::uint32_t> failed;
  std::atomic<std::int64_t> failed_at_us;
  blink_error failure;
};

// Addresses in one rank's mapping of a segment.
class Segment {
 public:
  Segment() = default;
  // False if the memory is not a segment of this version, token and size.
  bool open(void* memory, std::uint64_t bytes, const std::uint8_t* token);
  static std::uint64_t bytes_needed(const blink_shape& shape);

  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  RankBlock& rank(int r) const { return ranks_[r]; }
  Line& line(int bank, int rank, std::int64_t index) const {
    return lines_[(static_cast<std::int64_t>(bank) * ranks() + rank) * shape_.lines + index];
  }
  unsigned char* staging(int bank, int rank) const {
    return staging_ + (static_cast<std::int64_t>(bank) * ranks() + rank) * shape_.staging_bytes;
  }
  unsigned char* inline_area(int bank, int rank) const {
    return inline_ + (static_cast<std::int64_t>(bank) * ranks() + rank) * shape_.inline_bytes;
  }
  Stream& stream(int from, int to) const { return streams_[from * ranks() + to]; }
  unsigned char* stream_data(int from, int to) const {
    return stream_data_ + (static_cast<std::int64_t>(from) * ranks() + to) * shape_.stream_bytes;
  }
  VariantLine& variant(std::size_t line) const { return variants_[line]; }
  VariantTimes& variant_times(std::size_t line, int rank) const {
    return variant_times_[line * static_cast<std::size_t>(ranks()) + static_cast<std::size_t>(rank)];
  }
  int ranks() const { return static_cast<int>(shape_.ranks); }
  const blink_shape& shape() const { return shape_; }

 private:
  unsigned char* base_ = nullptr;
  blink_shape shape_{};
  RankBlock* ranks_ = nullptr;
  Line* lines_ = nullptr;
  unsigned char* staging_ = nullptr;
  unsigned char* inline_ = nullptr;
  Stream* streams_ = nullptr;
  unsigned char* stream_data_ = nullptr;
  VariantLine* variants_ = nullptr;
  VariantTimes* variant_times_ = nullptr;
};

}  // namespace blink
