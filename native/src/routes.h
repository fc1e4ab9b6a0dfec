// Places of a call's messages: in a ring; in the sender's buffer, where receivers read them; in the receiver's buffer,
// into which the sender writes; or, for a split transfer, in both buffers by turns. Both ends of a queue choose the
// same place, from the rows and from the buffers that both ranks lend.
#pragma once

#include <cstdint>

#include "comm.h"
#include "tables.h"

namespace blink {

// A chunk of a slice. All chunks but the last have the role's `chunk_elements`.
struct Chunk {
  std::int64_t index;
  std::size_t bytes_before, elements, bytes;
};

class Routes {
 public:
  Routes(const blink_comm& comm, const Tables& tables) : comm_(comm), tables_(tables) {}

  // The place of this rank's buffer as published to peers, which may access it in shared memory, or `privately`.
  std::int64_t place_to_lend(const void* buffer, std::int64_t bytes, bool privately) const;
  // Sets the places that this rank has published for the call that begins.
  void begin(std::int64_t input, std::int64_t output) {
    my_input_ = input;
    my_output_ = output;
  }

  // Whether readers read the ring's messages in this rank's own buffer.
  bool exports(const blink_ring& ring) const;
  // Whether this rank writes the message of `chunk` into the reader's output.
  bool writes(const blink_ring& ring, const blink_reader& reader, std::int64_t chunk) const;
  std::int64_t place_of_output(const blink_reader& reader) const;

  // Whether the sender writes the message of `chunk` into this rank's output.
  bool is_written(const blink_receive& receive, std::int64_t chunk) const;
  // Whether this rank reads the chunk in the sender's buffer; and whether that buffer is private memory.
  bool reads_direct(const blink_receive& receive, std::int64_t chunk) const;
  bool reads_private(const blink_receive& receive, std::int64_t chunk) const;
  bool output_is_private() const { return is_private(my_output_); }
  // The sender's buffer that contains its messages.
  const Lent& lent(const blink_receive& receive) const;

  // The address of message number `count` of a queue or ring; nullptr if it is outside the lent buffer, or unmapped.
  const void* message(const blink_receive& receive, const Chunk& chunk, std::uint64_t count) const;
  unsigned char* slot(const blink_ring& ring, std::uint64_t count) const {
    return area(ring.reply_to, comm_.rank()) + ring.staging + offset(count, ring.slots, ring.stride);
  }
  Block& block(const blink_ring& ring, std::size_t number) const {
    return blocks(comm_.rank(), ring.staging)[number];
  }
  const Block& block(const blink_receive& receive, std::size_t number) const {
    return blocks(static_cast<int>(receive.rank), receive.staging)[number];
  }

 private:
  bool splits(const blink_receive& receive) const;
  static std::int64_t offset(std::uint64_t count, std::int64_t slots, std::int64_t stride) {
    return static_cast<std::int64_t>(count % static_cast<std::uint64_t>(slots)) * stride;
  }
  unsigned char* area(std::int64_t reply_to, int sender) const {
    return comm_.segment().staging(comm_.bank(), reply_to == 0 ? sender : static_cast<int>(reply_to - 1)) + shift();
  }
  Block* blocks(int sender, std::int64_t at) const {
    return reinterpret_cast<Block*>(comm_.segment().inline_area(comm_.bank(), sender) + shift() + at);
  }
  // Lines that a peer has just read are slow to write again, so successive small calls move on through the area.
  std::int64_t shift() const {
    const std::uint64_t calls = comm_.sequence() / kBanks;
    return static_cast<std::int64_t>(calls % static_cast<std::uint64_t>(tables_.numbers.shifts)) * tables_.numbers.shift_bytes;
  }

  const blink_comm& comm_;
  const Tables& tables_;
  std::int64_t my_input_ = kNowhere, my_output_ = kNowhere;
};

}  // namespace blink
