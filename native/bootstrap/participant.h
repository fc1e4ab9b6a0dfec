// The common part of the coordinator and its clients: one rank's end of a bootstrap, behind the C interface.
#pragma once

#include <string>
#include <vector>

#include "channel.h"
#include "deadline.h"

namespace blink {

class Participant {
 public:
  Participant(const std::string& token, int rank, int size) : hello_(own_hello(token, rank, size)), size_(size) {}
  virtual ~Participant() = default;

  // These functions are as in blink/bootstrap.h.
  int all_gather(const void* bytes, std::size_t size, const int* descriptors, int count, double grace_s,
                 double deadline_s);
  int step(int timeout_ms);
  void fail(const Cause& cause);
  virtual void leave() {}

  const Cause& cause() const { return cause_; }
  const std::vector<Words>& words() const { return words_; }
  // The descriptors of rank `rank`; available once.
  std::vector<int> take_descriptors(int rank);

 protected:
  // Begins a round with mine_ and files_.
  virtual void begin() = 0;
  // Continues until done() or fail_here(), for at most `timeout_ms`.
  virtual void go_on(int timeout_ms) = 0;
  // Sends cause_ to the others, or gets a better one from them.
  virtual void tell() = 0;
  // Reads a cause that has arrived already, before one of this rank's own counts.
  virtual void look() {}

  // Ends a round; `files` are all ranks' descriptors in the order of ranks.
  void done(std::vector<Words> words, std::vector<int> files);
  // Keeps the first cause only.
  void fail_here(const Cause& cause) {
    if (!cause_.any()) cause_ = cause;
  }
  // A cause on this rank's side.
  Cause own(const std::string& text) const;
  int rank() const { return static_cast<int>(hello_.rank); }

  const Hello hello_;
  const int size_;
  std::string mine_;
  Descriptors files_;
  std::uint32_t round_ = 0;
  Deadline deadline_{0}, grace_{0};
  Cause cause_;

 private:
  bool in_round_ = false, told_ = false;
  std::vector<Words> words_;
  std::vector<Descriptors> all_files_;  // by rank
};

// The name of the socket at which rank `rank` is announced.
std::string announced_name(const std::string& token, int rank);

}  // namespace blink
