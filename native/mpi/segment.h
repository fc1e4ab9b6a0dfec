// The memory that the ranks of a communicator share: made by rank 0, handed over as a descriptor, and joined by all.
#pragma once

#include <cstdint>
#include <string>

#include "blink/bootstrap.h"
#include "blink/host.h"

namespace blink::mpi {

constexpr int kSecretBytes = 16;

// How the ranks meet: what rank 0 says to the others.
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

  // On rank 0, before the others hear of it: where they find it. False and `why`.
  bool open_meeting(int size, Meeting* meeting, std::string* why);
  // All ranks; `cores` is how many they have together. False and `why`, on all of them unless one dies right now.
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
