// Messages from rank to rank for collectives that go one way: whoever sends goes on at once, and may be calls ahead of
// whoever receives.
//
// The host engine begins a call only when all ranks have begun the one before, since they share its memory by turns. That
// is right for large blocks, and where results come back anyway. A root that sends a few bytes each time would wait for
// its readers, though, and where ranks are more than cores every call would cost a change of process per rank. Here each
// ordered pair of ranks has a ring of its own, and both ends know how long a message is.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "comm.h"

namespace blink::mpi {

class OneWay {
 public:
  // One message carries so much; longer ones go in several.
  static constexpr std::int64_t kChunkBytes = 64 << 10;

  // Of fresh zeroed memory, which all ranks map.
  static std::uint64_t bytes_needed(int ranks);
  void open(blink_comm* comm, void* memory);

  // A block from or to this rank's memory, whoever of the two ends sends it: nothing is sent of nothing.
  struct Part {
    int peer;
    const unsigned char* from;  // null: it is received
    unsigned char* to;
    std::int64_t bytes, done;
    bool past_caches = false;  // what is received is long gone from there before anybody reads it
  };

  // The next call, which all ranks make, by its word (calls_shown.h). 0, or the code of what ended the communicator before.
  int begin(std::uint64_t word, std::int64_t timeout_us);
  // What is left of a block, whose other end has as many bytes in the same call. 0 or a code; where the communicator
  // polls, BLINK_AGAIN, to be called again.
  int move(Part& part) { return part.from != nullptr ? send(part) : receive(part); }
  // Of several ones as much as can be moved now, where the communicator polls; and all, by turns, however long they are.
  int move(std::vector<Part>& parts);
  int finish(std::vector<Part>& parts);
  // Where a message of at most kChunkBytes lies until it is released; null and a code.
  const void* look(int peer, std::int64_t bytes, int* code);
  void release(int peer, std::int64_t bytes);
  // Whom this rank waits for in its call, and still does; -1: nobody.
  int awaited() const;
  // Ends the communicator for all ranks.
  int fail(int peer, const char* text);

 private:
  static constexpr std::uint64_t kSlots = 64, kChunks = 8;
  static constexpr std::int64_t kTinyBytes = 40, kPayloadBytes = 512;
  static constexpr std::uint64_t kReturned = 16;  // slots, at once

  // What is tiny shares the line of the number; what is longer than the payload lies in a chunk.
  struct alignas(kLineBytes) Slot {
    std::atomic<std::uint64_t> number;  // of the message: who sees it may read the rest
    std::uint64_t call;
    std::int64_t bytes;                 // from here to the end of what is sent
    unsigned char tiny[kTinyBytes], payload[kPayloadBytes];
  };
  struct Ring {
    Line received, emptied;  // by the receiver: messages, chunks
    Slot slot[kSlots];
    unsigned char chunk[kChunks][kChunkBytes];
  };
  // One rank's end of a ring.
  struct End {
    Ring* ring = nullptr;
    std::uint64_t messages = 0, chunks = 0;  // until now
    std::uint64_t received = 0, emptied = 0;  // of the sender's: what it has seen of the receiver
  };

  int send(Part& part);
  int receive(Part& part);
  int send_next(Part& part);
  int receive_next(Part& part);
  bool has_slot(End& to) const;
  bool has_chunk(End& to) const;
  bool is_ready(const Part& part);
  int await_room(End& to, int peer, bool chunk);
  template <class Ready>
  int wait(Ready ready, std::int32_t waits, int peer);
  const unsigned char* await_part(int peer, std::int64_t rest, int* code);
  void release_part(int peer, bool chunk);

  blink_comm* comm_ = nullptr;
  std::vector<End> to_, from_;  // by peer
  std::uint64_t call_ = 0;
  Site waits_;  // where this call waits, or has found nothing yet
};

}  // namespace blink::mpi
