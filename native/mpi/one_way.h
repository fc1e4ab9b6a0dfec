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

  // The next call, which all ranks make. 0, or the code of what ended the communicator before.
  int begin(std::int32_t collective, std::int32_t root, std::int64_t timeout_us);
  // `bytes` to `peer`, who receives as many in the same call. 0 or a code. Nothing is sent of nothing.
  int send(int peer, const void* data, std::int64_t bytes);
  int receive(int peer, void* data, std::int64_t bytes);
  // Where a message of at most kChunkBytes lies until it is released; null and a code.
  const void* look(int peer, std::int64_t bytes, int* code);
  void release(int peer, std::int64_t bytes);
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

  int send_part(int peer, const unsigned char* data, std::int64_t bytes, std::int64_t rest);
  int await_room(End& to, int peer, bool chunk);
  const unsigned char* await_part(int peer, std::int64_t rest, int* code);
  void release_part(int peer, bool chunk);

  blink_comm* comm_ = nullptr;
  std::vector<End> to_, from_;  // by peer
  std::uint64_t calls_ = 0, call_ = 0;
};

}  // namespace blink::mpi
