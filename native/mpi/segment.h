// The shared memory of a communicator's ranks: rank 0 creates it and passes its descriptor, and all ranks join.
#pragma once

#include <cstdint>
#include <string>

#include "blink/bootstrap.h"
#include "blink/host.h"

namespace blink::mpi {

constexpr int kSecretBytes = 16;

// Rank 0's message to the others: the address of the meeting and its secrets.
struct Meeting {
  char address[160] = {}, token[BLINK_BOOTSTRAP_TOKEN + 1] = {};
  std::uint8_t secret[kSecretBytes] = {};
};

class SharedSegment {
 public:
  SharedSegment() = default;
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // Rank 0 only, before the others know: opens the meeting and describes it. False and `why` on an error.
  bool open_meeting(int size, Meeting* meeting, std::string* why);
  // All ranks; `cores` is their total number. False and `why` on all of them, unless one dies during the call.
  bool join(const Meeting& meeting, int rank, int size, const blink_shape& shape, int cores, std::string* why);
  blink_comm* comm() const { return comm_; }

 private:
  bool exchange(int descriptor, std::string* why);
  bool map(int file);
  std::string no_room(int rank) const;
  bool fail(const std::string& what, std::string* why);

  blink_bootstrap* bootstrap_ = nullptr;
  int file_ = -1;
  void* memory_ = nullptr;
  std::uint64_t bytes_ = 0;
  blink_comm* comm_ = nullptr;
};

}  // namespace blink::mpi
