// Ranks of one segment, as threads on one mapping or as forked processes.
//
// The thread sanitizer detects races only between threads on one mapping; only processes can die. Memory that other
// ranks can write lies between inaccessible pages.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "blink/host.h"
#include "check.h"

namespace blink_test {

constexpr std::uint8_t kToken[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr std::int64_t kPatience = 60'000'000;  // microseconds; a longer wait is a deadlock

// Kills a test that hangs, with its children.
inline void limit_seconds(unsigned seconds) { alarm(seconds); }

[[noreturn]] inline void give_up(const char* what) {
  std::perror(what);
  std::exit(2);
}

// An unnamed file of zeros, mapped between two inaccessible pages.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
    fd_ = memfd_create("blink-test", MFD_CLOEXEC);
    if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) give_up("memfd");
    whole_ = mmap(nullptr, bytes_ + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole_ == MAP_FAILED) give_up("mmap");
    base_ = static_cast<unsigned char*>(whole_) + kPage;
    if (mmap(base_, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0) == MAP_FAILED) give_up("mmap");
  }
  ~Memory() {
    munmap(whole_, bytes_ + 2 * kPage);
    close(fd_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  unsigned char* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  static constexpr std::size_t kPage = 4096;
  std::size_t bytes_;
  int fd_;
  void* whole_;
  unsigned char* base_;
};

// A formatted segment, and a heap for every rank.
class Room {
 public:
  // `cores`: the number that the ranks assume. Fewer than ranks: they yield earlier and sleep later.
  Room(const blink_shape& shape, std::size_t heap_bytes, int cores)
      : shape_(shape), heap_bytes_((heap_bytes + 4095) / 4096 * 4096), segment_(blink_segment_bytes(&shape)),
        heaps_(heap_bytes_ * static_cast<std::size_t>(shape.ranks)) {
    if (!expect(blink_segment_format(segment_.base(), segment_.bytes(), &shape, kToken, cores) == BLINK_OK,
                "the segment cannot be formatted")) {
      std::exit(1);
    }
  }

  int ranks() const { return static_cast<int>(shape_.ranks); }
  const blink_shape& shape() const { return shape_; }
  const Memory& segment() const { return segment_; }
  unsigned char* heap(int rank) const { return heaps_.base() + static_cast<std::size_t>(rank) * heap_bytes_; }
  std::size_t heap_bytes() const { return heap_bytes_; }

  // Joins as `rank`, which then knows all heaps, if there are any.
  blink_comm* attach(int rank, bool as_process, bool with_heaps = true) const {
    blink_error error;
    blink_comm* comm =
        blink_attach(segment_.base(), segment_.bytes(), rank, kToken, as_process ? segment_.fd() : -1, &error);
    if (!expect(comm != nullptr, "rank %d cannot attach: %s", rank, error.text)) std::exit(1);
    for (int r = 0; with_heaps && r < ranks(); ++r) {
      expect(blink_set_heap(comm, r, heap(r), -1, heap_bytes_) == BLINK_OK, "rank %d's heap", r);
    }
    return comm;
  }

 private:
  blink_shape shape_;
  std::size_t heap_bytes_;
  Memory segment_;
  Memory heaps_;
};

// Whether this system lets a process copy from another's memory that is not its child.
inline bool may_cross() {
  const Room room({1, 1, 64, 4160, 64}, 4096, 1);
  blink_comm* comm = room.attach(0, false);
  bool may = blink_can_cross(comm) != 0;
  blink_detach(comm);
  if (std::FILE* scope = std::fopen("/proc/sys/kernel/yama/ptrace_scope", "r")) {
    may = may && std::fgetc(scope) == '0';
    std::fclose(scope);
  }
  return may;
}

// Runs body(comm, rank) for all ranks in parallel, each as a thread. The communicators close together: the end of a
// rank is no error here.
template <class Body>
void as_threads(const Room& room, Body body) {
  std::vector<blink_comm*> comms;
  for (int r = 0; r < room.ranks(); ++r) comms.push_back(room.attach(r, false));
  std::vector<std::thread> threads;
  for (int r = 0; r < room.ranks(); ++r) {
    threads.emplace_back([&, r] { body(comms[static_cast<std::size_t>(r)], r); });
  }
  for (std::thread& thread : threads) thread.join();
  for (blink_comm* comm : comms) blink_detach(comm);
}

// A forked child that runs body() and exits with 0 if no check failed. It dies with its parent.
template <class Body>
pid_t forked(Body body) {
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) give_up("fork");
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(3);
  failures = 0;  // without those of the parent
  body();
  std::exit(failures == 0 ? 0 : 1);
}

// Waits for the child; returns its status as waitpid() does.
inline int ended(pid_t child) {
  int status = -1;
  if (waitpid(child, &status, 0) != child) give_up("waitpid");
  return status;
}

// Runs body(comm, rank) for all ranks in parallel, each as a process.
template <class Body>
void as_processes(const Room& room, Body body) {
  std::vector<pid_t> children;
  for (int r = 0; r < room.ranks(); ++r) {
    children.push_back(forked([&] {
      blink_comm* comm = room.attach(r, true);
      body(comm, r);
      blink_detach(comm);
    }));
  }
  for (int r = 0; r < room.ranks(); ++r) {
    const int status = ended(children[static_cast<std::size_t>(r)]);
    expect(status == 0, "the process of rank %d ended with status %d", r, status);
  }
}

}  // namespace blink_test
