// One rank's part of a Program for one size, as tables, and how it is run.
//
// The loop is the one of blinkccl/schedule/program.py: ticks, and in each tick the rank's roles in order. What is
// fused is only how a firing moves its bytes: all messages of a firing are combined in one pass straight from where
// they lie, and the result is written once to everywhere it has to be.
#pragma once

#include <cstdint>
#include <vector>

#include "comm.h"
#include "kernels.h"

namespace blink {

// Rows of the tables, in int64 each; host_plan.py writes them in this order.
struct Role {
  std::int64_t offset;         // tick of chunk 0
  std::int64_t chunks;
  std::int64_t length;         // elements of the slice
  std::int64_t source;         // byte offset in the input; kNowhere: does not contribute
  std::int64_t target;         // byte offset in the output; kNowhere: does not keep
  std::int64_t divisor;        // > 1: ends an average
  std::int64_t turn;           // messages combined before the own contribution
  std::int64_t first_receive, receives;
  std::int64_t first_send, sends;  // rows of `sends`: indexes of rings
  std::int64_t channel, share, stage;
};

// One message per firing, out of a ring of `rank`.
struct Receive {
  std::int64_t rank;
  std::int64_t line;           // of the ring: messages published
  std::int64_t ack_line;       // messages that this reader is done with
  std::int64_t staging, stride, slots;
  std::int64_t direct;         // kDirect…: the sender's own buffer holds the message, if it is in its heap
  std::int64_t direct_offset;  // there
  std::int64_t pushed;         // 1: the sender writes into this rank's output, if it is in this rank's heap
  std::int64_t queue;          // counts messages
  std::int64_t lodged;         // 0: the ring lies in its sender's area; else in that of rank lodged − 1
  std::int64_t halved;         // as in Ring
};

struct Ring {
  std::int64_t line, staging, stride, slots;
  std::int64_t first_reader, readers;
  std::int64_t direct;         // kDirect…
  std::int64_t drain;          // 1: nothing else tells that the readers are done with this rank's own buffer
  // As in Receive. A reply is written over the message that it answers, in the area of whoever sent that: on lines that
  // are at hand, so that they cross between caches three times instead of four.
  std::int64_t lodged;
  std::int64_t halved;         // 1: where both buffers allow it its one reader takes the even chunks, and is given the odd ones
};

struct Reader {
  std::int64_t rank, ack_line;
  std::int64_t push_offset;    // byte offset in the reader's output; kNowhere: not to be written by others
};

enum Direct : std::int64_t { kDirectNo = 0, kDirectInput = 1, kDirectOutput = 2 };

}  // namespace blink

struct blink_op {
 public:
  // nullptr and comm.error() if the tables make no sense for this communicator.
  static blink_op* create(blink_comm& comm, const blink_tables& tables);
  // Whether its input and its output are of at most `bytes` each.
  bool fits(std::size_t bytes) const {
    const auto most = static_cast<std::int64_t>(bytes);
    return input_bytes_ <= most && output_bytes_ <= most;
  }
  int run(const void* input, void* output, bool scaled, double scale, std::int64_t timeout_us);

 private:
  explicit blink_op(blink_comm& comm) : comm_(comm) {}
  bool fill(const blink_tables& tables);
  std::int64_t lend(const void* buffer, std::int64_t bytes, bool privately) const;
  bool sensible() const;
  bool sensible(const blink::Role& role) const;
  bool sensible(const blink::Receive& receive) const;
  bool sensible(const blink::Ring& ring) const;
  bool sensible(const blink::Reader& reader) const;
  std::int64_t area() const;
  std::int64_t area_unit() const;
  bool is_line(std::int64_t line) const;
  bool is_peer(std::int64_t rank) const;
  std::int64_t item_bytes() const { return static_cast<std::int64_t>(kernel_->itemsize); }
  bool misplaced(const void* buffer) const { return reinterpret_cast<std::uintptr_t>(buffer) % kernel_->itemsize != 0; }
  bool is_ring(std::int64_t at, std::int64_t stride, std::int64_t slots) const;
  bool has_room(const blink::Role& role) const;
  bool countable() const;
  bool halves_well(const blink::Role& role) const;

  struct Chunk {
    std::int64_t index;
    std::size_t bytes_before, elements, bytes;
  };

  int walk();
  int fire(const blink::Role& role, std::int64_t index);
  int fire_inline(const blink::Role& role);
  int fire_stepwise(const blink::Role& role, const Chunk& chunk);
  int drain();

  bool available(const blink::Receive& receive) const;
  int holder_of_slots(const blink::Role& role) const;
  bool has_slots(const blink::Role& role) const { return holder_of_slots(role) < 0; }
  // Who has not yet read the message that lies where the next one goes; -1: there is room.
  int holder_of_slot(const blink::Ring& ring, std::uint64_t sent) const;
  int collect_targets(const blink::Role& role, const Chunk& chunk);
  int move(const blink::Role& role, const Chunk& chunk, std::int32_t own);
  int take(const blink::Role& role, const Chunk& chunk);
  int take_and_combine(const blink::Role& role, const Chunk& chunk, std::int32_t own);
  int read_private(const blink::Role& role, const blink::Receive& receive, const Chunk& chunk, std::size_t from,
                   void* into, std::size_t bytes);
  unsigned char* room(std::size_t bytes);
  void copy_result(void* target, const void* source, std::size_t bytes) const;
  int not_lent(const blink::Role& role, int peer, std::int64_t chunk);
  void combine(const blink::Role& role, const std::vector<const void*>& sources, const std::vector<void*>& targets,
               std::size_t bytes, std::int32_t own);
  void settle(const blink::Role& role, const Chunk& chunk, std::int64_t done);
  int meet_readers(const blink::Role& role);
  const void* message(const blink::Receive& receive, const Chunk& chunk) const;
  void accept(const blink::Receive& receive, const Chunk& chunk);
  unsigned char* area_of(std::int64_t lodged, int sender) const;
  bool collect_pushed(const blink::Reader& reader, const Chunk& chunk);
  std::int64_t place_of_output(const blink::Reader& reader) const;
  const blink::Lent& lent(const blink::Receive& receive) const;
  bool halves(const blink::Receive& receive) const;
  bool reads_direct(const blink::Receive& receive, std::int64_t chunk) const;
  bool reads_private(const blink::Receive& receive, std::int64_t chunk) const;
  bool is_pushed(const blink::Receive& receive, std::int64_t chunk) const;
  bool pushes(const blink::Ring& ring, const blink::Reader& reader, std::int64_t chunk) const;
  bool exports(const blink::Ring& ring) const;
  blink::Site site(std::int32_t waits, const blink::Role& role, int peer, std::int64_t chunk) const;

  const void* block_of(const blink::Role& role, const blink::Receive& receive, std::size_t number, int& code);
  blink::Block& my_block(const blink::Role& role, std::int64_t send, std::size_t number) const;
  void wake_readers(const blink::Role& role);

  // Control words: the call's number, and below it how many of its messages, or what it is.
  // Lines that a peer has just read are slow to write again: small calls move on through the area.
  std::int64_t shift() const {
    return static_cast<std::int64_t>(comm_.sequence() / blink::kBanks % static_cast<std::uint64_t>(shifts_)) * shift_bytes_;
  }
  std::uint64_t stamp(std::uint64_t count) const { return comm_.sequence() << blink::kCountBits | count; }
  std::uint64_t flag() const {
    return comm_.sequence() << blink::kCountBits | (signature_ & static_cast<std::uint64_t>(blink::kMostMessages));
  }

  blink_comm& comm_;
  std::uint64_t signature_ = 0, what_ = 0;
  std::int64_t count_ = 0;
  const blink::Kernel* kernel_ = nullptr;
  std::int64_t chunk_elements_ = 0;
  std::int64_t shift_bytes_ = 0, shifts_ = 1;
  bool inline_messages_ = false, direct_in_place_ = false, push_in_place_ = false;
  bool lends_input_ = false, lends_output_ = false;  // also where it is private memory
  std::int64_t input_bytes_ = 0, output_bytes_ = 0;
  std::int64_t first_tick_ = 0, last_tick_ = 0;
  std::vector<blink::Role> roles_;
  std::vector<blink::Receive> receives_;
  std::vector<std::int64_t> sends_;
  std::vector<blink::Ring> rings_;
  std::vector<blink::Reader> readers_;

  // Of the call that runs.
  const unsigned char* input_ = nullptr;
  unsigned char* output_ = nullptr;
  std::int64_t my_input_ = 0, my_output_ = 0;
  bool scaled_ = false;
  double scale_ = 1.0;
  bool past_caches_ = false;  // copies of results
  std::vector<std::uint64_t> received_;  // per queue
  std::vector<std::uint64_t> sent_;      // per ring
  std::vector<const void*> sources_;
  struct Taken {
    std::size_t source;  // index in sources_, where the address is missing: it is in the sender's own memory
    const blink::Receive* receive;
  };
  std::vector<Taken> taken_;
  std::vector<const void*> piece_sources_;
  std::vector<void*> targets_, piece_targets_;
  bool writes_others_ = false;  // some of the targets, or gifts, are in buffers of others
  struct Gift {
    int peer;
    std::uint64_t into;  // in the peer's own memory
  };
  std::vector<Gift> gifts_;
  std::vector<unsigned char> scratch_;
};
