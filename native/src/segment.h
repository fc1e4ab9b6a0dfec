// What lies where in the shared segment, and who may write it.
//
//   Header · RankBlock × ranks · lines: [bank][rank][line] · staging: [bank][rank] · inline: [bank][rank] · streams
//   · variants of operations: lines, and times: [line][rank]
//
// Everything is zero when fresh. Calls are numbered from 1 on every rank alike; call s uses bank s mod 2. A rank
// begins call s only when every peer has begun call s − 1, and so has finished s − 2, the bank's last user: no other
// clean-up between calls is needed, and what an earlier call left behind never looks new, since every control word
// carries its call's number.
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

// A control word is the call's number and, in the lower bits, how many of its messages. What a slot holds of an earlier
// call must never look new, so the number must not come round: 2^40 calls are a month of nothing but the shortest ones.
constexpr int kCountBits = 24;
constexpr std::int64_t kMostMessages = (std::int64_t{1} << kCountBits) - 1;
constexpr std::uint64_t kMostCalls = std::uint64_t{1} << (64 - kCountBits);

// A counter of its own cache line, written by one rank only.
struct alignas(kLineBytes) Line {
  std::atomic<std::uint64_t> value;
};

// A small message travels in blocks; whoever sees a block's flag may read its payload. What fits shares the flag's
// line, and is one cache line in all; longer payloads begin on the next, where vector loads want them.
constexpr std::size_t kTinyBytes = kLineBytes - sizeof(std::uint64_t);
constexpr std::size_t kPayloadBytes = BLINK_PAYLOAD_BYTES;
struct alignas(kLineBytes) Block {
  std::atomic<std::uint64_t> flag;
  unsigned char tiny[kTinyBytes];
  unsigned char payload[kPayloadBytes];

  // Where the bytes of a message of `total` bytes are.
  unsigned char* data(std::size_t total) { return total <= kTinyBytes ? tiny : payload; }
  const unsigned char* data(std::size_t total) const { return total <= kTinyBytes ? tiny : payload; }
};
static_assert(sizeof(Block) == BLINK_BLOCK_BYTES, "blocks lie one after another");

// A buffer of a rank: where in its heap; or kNowhere: not for others to touch; or below that, its address counted down
// from there (kNowhere − address): in the rank's own memory, for cross-memory copies.
struct Lent {
  std::atomic<std::int64_t> at, bytes;
};

inline std::int64_t private_place(const void* memory) {
  return kNowhere - static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(memory));
}
inline bool is_private(std::int64_t place) { return place < kNowhere; }
inline bool is_shared(std::int64_t place) { return place > kNowhere; }

// What a rank tells the others about a call, when it begins it. Written before `sequence`.
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
  std::atomic<std::uint32_t> rings;  // the futex
  std::atomic<std::int32_t> awaited; // 1 + the only rank that need wake it; 0: any
  std::atomic<std::int32_t> cpu;     // 1 + where the rank was when it last waited for long; 0: it never has
};

// For people: what the rank waits for. Read without a lock; a torn picture is only a torn picture.
struct alignas(kLineBytes) Waiting {
  std::atomic<std::int32_t> waits, peer, channel, share, stage;
  std::atomic<std::int64_t> chunk, since_us;
};

// A rank that is joining has not got its lock yet: the others must not take it for dead.
constexpr std::uint32_t kAbsent = 0, kJoining = 1, kJoined = 2;

struct alignas(kLineBytes) Life {
  std::atomic<std::int64_t> pid;
  std::atomic<std::uint32_t> joined, left;
  std::atomic<std::uint64_t> finished;
  std::atomic<std::uint64_t> own;  // calls that the group made for itself, before its user's first
  // 1 while the rank writes into buffers of others. Whoever's call has failed waits for that to end, up to a second,
  // before it gives its buffers back to its caller.
  std::atomic<std::uint32_t> writing;
  std::atomic<std::uint64_t> secret_at;  // the address of what only this process can show; see can_cross()
  std::atomic<std::uint64_t> processes;  // inode of the PID namespace in which `pid` is its number; 0: unknown
};

struct alignas(kLineBytes) RankBlock {
  Entry entry[kBanks];
  Bell bell;
  Waiting waiting, streaming;  // in a call; for a message
  Life life;
};

// Which variant of one operation runs (variants.h). Both words are rank 0's.
struct alignas(kLineBytes) VariantLine {
  std::atomic<std::uint64_t> key;  // of the operation; 0: nobody's yet
  std::atomic<std::uint64_t> decision;
};
constexpr std::size_t kVariantLines = 256;

// When a rank began and ended some of its last calls of it.
struct VariantTime {
  std::atomic<std::uint64_t> sequence;  // 0: being written
  std::atomic<std::int64_t> began_ns, ended_ns;
};
constexpr std::size_t kVariantTimes = 4;
struct alignas(kLineBytes) VariantTimes {
  VariantTime time[kVariantTimes];
};

// One byte stream: `written` belongs to the sender, `read` to the receiver.
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
  // The first failure: 0 none, 1 being written, 2 there to read.
  alignas(kLineBytes) std::atomic<std::uint32_t> failed;
  std::atomic<std::int64_t> failed_at_us;
  blink_error failure;
};

// Addresses inside one rank's mapping of a segment.
class Segment {
 public:
  Segment() = default;
  // False if the memory is no segment of this version, token and size.
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
