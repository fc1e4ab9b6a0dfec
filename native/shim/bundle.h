// What the planner decided: the text file `bundle.txt` that blinkccl.nccl writes, read and checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "blink/types.h"

namespace blink::shim {

enum class Collective {
  kBroadcast = BLINK_BROADCAST, kReduce = BLINK_REDUCE, kAllReduce = BLINK_ALLREDUCE, kAllGather = BLINK_ALLGATHER,
  kReduceScatter = BLINK_REDUCE_SCATTER, kGather = BLINK_GATHER, kScatter = BLINK_SCATTER, kAllToAll = BLINK_ALLTOALL,
  kSend = BLINK_SENDRECV, kRecv,  // the ends of a message, which no program runs
};
// As in blinkccl.collectives.spec; "send" and "recv".
const char* name_of(Collective collective);
bool has_root(Collective collective);
inline bool is_message(Collective collective) { return collective >= Collective::kSend; }

struct Bundle {
  struct Connection {
    // Where messages lie: dst, src (pulled), or nranks + the number of a memory. A path of messages between two ranks
    // may have them on a third rank's GPU, whose program need not call anything.
    int src = 0, dst = 0, home = 0;
    bool on_host = false;  // home is a memory
    std::uint64_t ring = 0, lines = 0;  // offsets in home's segment
    std::uint64_t tail = 0, head = 0;   // in those of tail_at() and head_at()
    std::uint64_t src_position = 0, dst_position = 0;  // in src's and dst's
    // For copy engines, where the geometry has slots for them and messages are not pulled: a ring of larger slots, and
    // its counters, in the same segments; and a ring in dst's into which they fetch what is staged.
    std::uint64_t copy_ring = 0, copy_tail = 0, copy_head = 0, copy_landing = 0;
    bool pushed() const { return home == dst; }
    bool copied() const { return home != src; }
    bool staged() const { return on_host; }
    int tail_at() const { return staged() ? home : dst; }
    int head_at() const { return staged() ? home : src; }
  };
  // How messages of some sizes go from a rank to another: in parts side by side, each by a path of its own.
  struct Part {
    std::uint32_t path = 0;  // a connection
    std::uint64_t stop = 0;  // where it ends, in kWhole-ths of the message; it begins where the one before ends
  };
  struct Split {
    int src = 0, dst = 0;
    std::uint64_t least = 0, most = 0;  // bytes of a message
    std::uint32_t chunks = 1;           // of the longest part, and of all others; more where slots are too small for it
    std::vector<Part> parts;
    std::string why;
  };
  static constexpr std::uint64_t kWhole = 1 << 20;
  struct Image {
    std::string arch, file;  // "sm_90", "any", or "host": an object with copy entries; the file with its directory
  };
  struct Program {
    Collective collective = Collective::kAllReduce;
    int root = -1;
    std::uint32_t channels = 0;
    std::vector<int> images;
    std::string kernel[4];  // by Protocol; empty: there is none. The last, for copy engines, may be left out
  };
  // BLINK_PROTOCOL=simple|ll|ll128|copies, read by the planner, makes it choose one wherever it can.
  enum Protocol { kSimple = 0, kLL = 1, kLL128 = 2, kCopies = 3 };
  static constexpr std::array<const char*, 4> kProtocols = {"simple", "ll", "ll128", "copies"};
  struct Way {
    int program = -1;  // −1: NCCL's; for `other`: there is none
    Protocol protocol = kSimple;
    std::uint64_t chunk_bytes = 0;
  };
  struct Choice : Way {
    Collective collective = Collective::kAllReduce;
    int root = -1;  // −1: any
    std::uint64_t least = 0, most = 0;  // bytes of S
    bool search = false;
    Way other;  // is tried in the first calls, and kept where it is faster
    std::string why;
  };

  std::string plan, directory;
  int nranks = 0;
  std::uint32_t parts = 1, slots = 2, threads = 1;
  std::uint64_t slot_bytes = 0, line_bytes = 0;
  std::uint32_t copy_slots = 0;  // 0: nothing is for copy engines
  std::uint64_t copy_slot_bytes = 0;
  std::vector<std::uint64_t> segments;  // bytes, by rank, and then of memories: pinned ones of the host
  std::uint64_t memory_bytes() const;   // of all memories, which lie one behind the other
  std::vector<Connection> connections;  // from first_path on: paths of messages, with a ring for copy engines alone
  std::size_t first_path = 0;
  std::uint32_t path_slots = 0;
  std::uint64_t path_slot_bytes = 0;
  std::vector<Split> splits;
  std::vector<Image> images;
  std::vector<Program> programs;
  std::vector<Choice> choices;

  bool is_path(std::size_t connection) const { return connection >= first_path; }
  // Of the ring for copy engines.
  std::uint32_t slots_of(std::size_t connection) const { return is_path(connection) ? path_slots : copy_slots; }
  std::uint64_t slot_bytes_of(std::size_t connection) const {
    return is_path(connection) ? path_slot_bytes : copy_slot_bytes;
  }

  // How much data a message of one part holds: LL's lines are half flags, LL128's have 8 bytes of flag in 128.
  std::uint64_t capacity(Protocol protocol) const;
};

// False and `why` (file, line, what was expected) for a file that is missing, malformed, of another version, or whose
// numbers contradict each other (ranks out of range, offsets outside a segment, unknown images or programs).
bool read_bundle(const std::string& directory, Bundle* bundle, std::string* why);

}  // namespace blink::shim
