// Byte streams to and from ranks on other hosts, over a second worker of UCX; stream.cpp has those inside a host.
//
// Several threads of a rank use them, one per peer and direction. One of the waiting threads sleeps on the worker for all.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "worker.h"

namespace blink {

class RemoteStreams {
 public:
  static std::unique_ptr<RemoteStreams> open(const std::shared_ptr<UcxContext>& context, blink_error& why);
  ~RemoteStreams();
  RemoteStreams(const RemoteStreams&) = delete;
  RemoteStreams& operator=(const RemoteStreams&) = delete;

  Worker& worker() { return *worker_; }
  // Ends all connections after a failure; no thread uses them any more.
  void give_up();
  void set_rank(int rank) { rank_ = rank; }
  // Greets a peer. UCX needs both ends to connect: flush() waits for the peer's greeting, so later writes need no answer.
  void connect(int peer, const void* address);

  // Moves 1 to `bytes` bytes, or 0 at the timeout; kLost after a broken connection. A wait ends early if `ended` is true.
  static constexpr std::int64_t kLost = -1;
  using Ended = std::function<bool()>;
  std::int64_t write(int peer, const void* data, std::size_t bytes, std::int64_t wait_us, const Ended& ended);
  std::int64_t read(int peer, void* data, std::size_t bytes, std::int64_t wait_us, const Ended& ended);
  // 1 if the peer receives all written bytes even if this rank leaves now, 0 at the timeout, or kLost.
  std::int64_t flush(int peer, std::int64_t wait_us, const Ended& ended);

 private:
  struct Piece {
    std::unique_ptr<unsigned char[]> data;
    std::size_t bytes;
  };
  struct Peer {
    bool met = false;                       // its greeting has come
    std::uint64_t written = 0, taken = 0;   // bytes written here, and read by the peer as far as it has reported;
    std::uint64_t read = 0, reported = 0;   // bytes read here, and reported to the peer;
    std::map<std::uint64_t, Piece> pieces;  // unread bytes, by their place in the stream
  };
  struct Sent;

  RemoteStreams() = default;
  static ucx::Status on_message(void* context, const void* header, std::size_t header_bytes, void* data,
                                std::size_t bytes, const ucx::ReceiveAttributes* attributes);
  static void on_sent(void* request, ucx::Status status, void* user_data);
  void send(int peer, std::uint32_t kind, std::uint64_t at, const void* data, std::size_t bytes);
  bool has_next(const Peer& peer) const { return !peer.pieces.empty() && next(peer)->first <= peer.read; }
  static std::map<std::uint64_t, Piece>::const_iterator next(const Peer& peer) { return peer.pieces.begin(); }
  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock, int peer, std::int64_t wait_us, const Ended& ended, Ready ready);

  void progress();

  std::mutex mutex_;
  std::condition_variable moved_;
  bool someone_sleeps_ = false;
  int bell_ = -1;  // wakes the sleeping thread
  std::unique_ptr<Worker> worker_;
  int rank_ = 0;
  std::unordered_map<int, Peer> peers_;
  std::size_t sending_ = 0;
};

}  // namespace blink
