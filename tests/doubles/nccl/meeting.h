// The meeting place of one communicator's ranks, threads or processes: a file of shared memory named by the unique id.
// It has a seat per rank, and two byte streams per ordered pair, one for collectives and one for send and recv.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nccl_types.h"

namespace nccl_double {

constexpr std::size_t kStreamBytes = 16384, kNoticeBytes = 64;
constexpr int kMostRanks = 64;

struct alignas(64) Seat {
  std::atomic<std::uint32_t> taken;
  std::atomic<std::int32_t> process;
  std::atomic<std::uint64_t> notices;
  char notice[2][kNoticeBytes];
};

struct alignas(64) Stream {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  alignas(64) char data[kStreamBytes];
};

enum Channel { kCollective = 0, kPointToPoint = 1 };

// One message between this rank and a peer.
struct Message { int peer; char* data; std::size_t bytes; };

typedef std::function<bool()> Stop;

class Meeting {
 public:
  // Takes the rank's seat, and waits for all others.
  static ncclResult_t join(const std::string& key, int ranks, int rank, const Stop& stop,
                           std::shared_ptr<Meeting>* out);
  ~Meeting();

  // Exchanges the ranks' texts, by rank; at most kNoticeBytes each.
  ncclResult_t tell_all(int rank, std::uint64_t* number, const std::string& words, const Stop& stop,
                        std::vector<std::string>* said);
  // Sends and receives all messages in parallel; those between the same two ranks in order.
  ncclResult_t exchange(Channel channel, int rank, const std::vector<Message>& sends,
                        const std::vector<Message>& receives, const Stop& stop);

 private:
  struct Header;
  Stream& stream(Channel channel, int from, int to) const {
    return streams_[(static_cast<int>(channel) * ranks_ + from) * ranks_ + to];
  }
  ncclResult_t wait(const std::function<bool()>& met, const Stop& stop) const;
  bool somebody_died() const;

  int ranks_ = 0;
  std::size_t bytes_ = 0;
  std::string path_;
  Header* header_ = nullptr;
  Seat* seats_ = nullptr;
  Stream* streams_ = nullptr;
};

}  // namespace nccl_double
