#include "segment.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "log.h"
#include "memory_file.h"

namespace blink::mpi {
namespace {

constexpr double kMeetS = 30;
constexpr int kStepMs = 1000;

}  // namespace

SharedSegment::~SharedSegment() {
  blink_detach(comm_);
  if (memory_ != nullptr) munmap(memory_, bytes_);
  if (file_ >= 0) close(file_);
  if (bootstrap_ != nullptr) blink_bootstrap_leave(bootstrap_);
}

bool SharedSegment::open_meeting(int size, Meeting* meeting, std::string* why) {
  std::uint8_t random[BLINK_BOOTSTRAP_TOKEN / 2];
  if (getrandom(random, sizeof random, 0) != sizeof random ||
      getrandom(meeting->secret, sizeof meeting->secret, 0) != sizeof meeting->secret) {
    return fail("getrandom failed", why);
  }
  std::strncpy(meeting->token, shim::hex(random, sizeof random).c_str(), BLINK_BOOTSTRAP_TOKEN);
  blink_bootstrap_reason reason{};
  bootstrap_ = blink_bootstrap_listen(nullptr, meeting->token, size, &reason);
  if (bootstrap_ == nullptr) return fail(reason.text, why);
  const std::string address = blink_bootstrap_address(bootstrap_);
  if (address.size() >= sizeof meeting->address) return fail("the address is too long", why);
  std::memcpy(meeting->address, address.c_str(), address.size() + 1);
  return true;
}

bool SharedSegment::join(const Meeting& meeting, int rank, int size, const blink_shape& shape, int cores,
                         std::string* why) {
  blink_bootstrap_reason reason{};
  if (rank != 0) bootstrap_ = blink_bootstrap_connect(meeting.address, meeting.token, rank, size, &reason);
  if (bootstrap_ == nullptr) return fail(reason.text, why);
  bytes_ = blink_segment_bytes(&shape);
  const int file = rank == 0 ? shim::shared_file("blink-segment", bytes_) : -1;
  if (rank == 0 && file < 0) return fail(std::string("rank 0 has no shared memory: ") + std::strerror(errno), why);
  if (rank == 0 && (!map(file) || blink_segment_format(memory_, bytes_, &shape, meeting.secret, cores) != BLINK_OK)) {
    close(file);
    return fail(no_room(rank), why);
  }
  const bool exchanged = exchange(file, why);
  if (file >= 0) close(file);  // before locking: closing a second descriptor of a file releases the process's locks
  if (!exchanged) return false;
  if (rank != 0 && !map(file_)) return fail(no_room(rank), why);
  blink_error error{};
  comm_ = blink_attach(memory_, bytes_, rank, meeting.secret, file_, &error);
  if (comm_ == nullptr) return fail(error.text, why);
  // Until here a rank's connection shows that it is alive, from here on its lock on the segment.
  if (!exchange(-1, why)) return false;
  blink_bootstrap_leave(bootstrap_);
  bootstrap_ = nullptr;
  return true;
}

bool SharedSegment::map(int file) {
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (memory_ == MAP_FAILED) memory_ = nullptr;
  return memory_ != nullptr;
}

std::string SharedSegment::no_room(int rank) const {
  return "rank " + std::to_string(rank) + " cannot map the " + std::to_string(bytes_) +
         " bytes that its communicator shares; is the limit on address space (ulimit -v) too low?";
}

// A round of all ranks, in which rank 0 may pass a descriptor.
bool SharedSegment::exchange(int descriptor, std::string* why) {
  int status = blink_bootstrap_all_gather(bootstrap_, "", 0, &descriptor, descriptor >= 0 ? 1 : 0, kMeetS, kMeetS);
  while (status == BLINK_BOOTSTRAP_AGAIN) status = blink_bootstrap_step(bootstrap_, kStepMs);
  if (status != BLINK_BOOTSTRAP_OK) {
    blink_bootstrap_reason reason{};
    blink_bootstrap_cause(bootstrap_, &reason);
    *why = reason.text;
    return false;
  }
  int given = -1;
  if (blink_bootstrap_descriptors(bootstrap_, 0, &given, 1) > 0) file_ = given;
  return true;
}

bool SharedSegment::fail(const std::string& what, std::string* why) {
  *why = what;
  if (bootstrap_ == nullptr) return false;
  blink_bootstrap_reason reason{};
  reason.status = BLINK_BOOTSTRAP_FAILED;
  reason.rank = -1;
  std::strncpy(reason.text, what.c_str(), sizeof reason.text - 1);
  blink_bootstrap_fail(bootstrap_, &reason);
  *why = reason.text;
  return false;
}

}  // namespace blink::mpi
