// Byte streams to and from ranks on other hosts, over workers of UCX of their own; stream.cpp has those inside a host.
//
// A stream is cut into pieces, each with its place in the stream, so pieces may take different routes. A route has one hop
// or more. The ranks between the hops forward its pieces, and need a thread in serve(). If such a rank leaves, the sender
// drops the route and sends the pieces that may be lost again, on the direct route.
//
// Several threads of a rank use them, one per peer and direction. One of the waiting threads sleeps on the workers for all.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
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

  // Adds a worker on the interfaces of a rail.
  bool add_rail(std::size_t rail, const std::shared_ptr<UcxContext>& context, blink_error& why);
  Worker& worker(std::size_t rail = 0) { return *rails_[rail]; }
  // Ends all connections after a failure; no thread uses them any more.
  void give_up();
  void set_rank(int rank) { rank_ = rank; }
  // Greets a peer. UCX needs both ends to connect: flush() waits for the peer's greetings, so later writes need no answer.
  // The direct route to a peer is the first rail above 0 that connects it, else rail 0.
  void connect(int peer, std::size_t rail, const void* address);

  struct Hop {
    std::int32_t rail, rank;
  };
  // Adds a route by which large messages to `peer` take `share` of their bytes. False for hops that cannot be.
  bool add_route(int peer, double share, const std::vector<Hop>& hops);

  // Moves 1 to `bytes` bytes, or 0 at the timeout; kLost after a broken connection. A wait ends early if `ended` is true.
  // Bytes of a `large` message take all routes.
  static constexpr std::int64_t kLost = -1;
  using Ended = std::function<bool()>;
  std::int64_t write(int peer, const void* data, std::size_t bytes, bool large, std::int64_t wait_us, const Ended& ended);
  std::int64_t read(int peer, void* data, std::size_t bytes, std::int64_t wait_us, const Ended& ended);
  // 1 if the peer receives all written bytes even if this rank leaves now, 0 at the timeout, or kLost.
  std::int64_t flush(int peer, std::int64_t wait_us, const Ended& ended);
  // Forwards pieces of other ranks for `wait_us`.
  void serve(std::int64_t wait_us, const Ended& ended);

 private:
  struct Header {
    std::uint64_t at;       // the place of the first byte; of a report, the number of bytes read
    std::uint64_t arrived;  // of a report: all bytes before this place have arrived
    std::uint32_t kind;
    std::int32_t sender;
    std::uint32_t hops;  // that remain
    std::array<Hop, BLINK_MOST_HOPS> hop;
  };
  using Data = std::shared_ptr<unsigned char[]>;
  struct Piece {
    Data data;
    std::size_t bytes;
  };
  struct Route {
    double share;
    std::vector<Hop> hops;
    std::uint64_t sent;  // bytes
  };
  struct Kept {
    Piece piece;
    std::vector<Hop> hops;
  };
  struct Peer {
    int rails = 0, met = 0;                 // connections, and greetings that have come
    std::uint64_t written = 0, taken = 0;   // bytes written here, and read by the peer as far as it has reported;
    std::uint64_t read = 0, reported = 0;   // bytes read here, and reported to the peer;
    std::map<std::uint64_t, Piece> pieces;  // unread bytes, by their place in the stream
    bool owes = false;                      // routed pieces behind a gap are not reported
    std::size_t sending = 0;                // messages that have not left
    std::size_t direct = 0;                 // its rail
    std::vector<Route> routes;              // of large messages; empty: only the direct one
    std::map<std::uint64_t, Kept> kept;     // pieces on other routes that may not have arrived, by their place
  };
  struct Sent;

  RemoteStreams() = default;
  static ucx::Status on_message(void* context, const void* header, std::size_t header_bytes, void* data,
                                std::size_t bytes, const ucx::ReceiveAttributes* attributes);
  static void on_sent(void* request, ucx::Status status, void* user_data);
  void take(const Header& header, Piece piece);
  // Tells `peer` the number of bytes read, and the place before which all have arrived.
  void report(int peer);
  // Sends to `peer`, over the direct rail or the given hops.
  void send(int peer, Header header, Piece piece, const std::vector<Hop>& hops = {});
  Header header_of(std::uint32_t kind, std::uint64_t at) const { return {at, 0, kind, rank_, 0, {}}; }
  void pass(const Hop& hop, const Header& header, Piece piece);
  bool has_next(const Peer& peer) const { return !peer.pieces.empty() && peer.pieces.begin()->first <= peer.read; }
  // The worker with a connection for a hop; nullptr: none.
  Worker* worker_of(const Hop& hop) const;
  // Moves messages of all workers; true if any moved.
  bool move();
  void progress();
  bool arm();
  // True if the direct connection to `peer` is broken. What it carried before has arrived.
  bool is_broken(int peer) const;
  bool has_lost(const std::vector<Hop>& hops) const;
  // Drops the routes to `peer` that have lost a connection or a rank, and repeats their pieces.
  void mend(int peer);
  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock, int peer, std::int64_t wait_us, const Ended& ended, Ready ready);

  std::mutex mutex_;
  std::condition_variable moved_;
  bool someone_sleeps_ = false;
  int bell_ = -1;  // wakes the sleeping thread
  std::vector<std::unique_ptr<Worker>> rails_;  // by number; null for a rail of other hosts
  std::vector<int> events_;                     // of all workers
  int rank_ = 0;
  std::unordered_map<int, Peer> peers_;  // nodes stay where they are
  std::size_t passing_ = 0;              // messages of other ranks that have not left
  struct Passed {
    Hop hop;
    Header header;
    Piece piece;
  };
  std::deque<Passed> forward_;  // arrived in this progress()
  std::vector<int> owed_;       // peers that wait for a report
};

}  // namespace blink
