// Messages between ranks on a socket: frames of a fixed-size head, which holds the length, and a body. All sockets are
// non-blocking and close-on-exec, no write raises SIGPIPE, and memory per peer is limited.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "blink/bootstrap.h"

namespace blink {

struct Frame {
  enum Type : std::uint32_t {
    kHello = 1,  // client → coordinator, first: a Hello
    kWords,      // client → coordinator: the rank's contribution, with its descriptors
    kVerdict,    // coordinator → client: all contributions, valid only after the commit, with all descriptors
    kAck,        // client → coordinator: the verdict has arrived
    kCommit,     // coordinator → client: it has arrived at all ranks and is valid
    kAbort,      // both ways, at any time: a Cause; the bootstrap has failed
    kLeave,      // client → coordinator: the rank leaves in an orderly way
  };
  Type type = kHello;
  std::uint32_t round = 0;
  std::string body;
};

constexpr std::uint32_t kProtocol = 2;

// A peer's introduction, with the secret that only ranks of this group know. Other protocol versions may append fields,
// so that their ranks still receive the error.
constexpr std::size_t kMostHelloBytes = 1024;
struct Hello {
  std::uint32_t protocol = kProtocol, rank = 0, size = 0, pid = 0;
  char token[BLINK_BOOTSTRAP_TOKEN] = {};
  char host[64] = {};

  std::string who() const;  // "process 4711 on n1"
  std::string packed() const;
  static bool unpack(const std::string& body, Hello* hello);
};
Hello own_hello(const std::string& token, int rank, int size);

// The reason why a bootstrap fails.
struct Cause {
  int status = BLINK_BOOTSTRAP_OK;
  int rank = -1, pid = 0;
  std::vector<std::int32_t> missing;
  std::string text;

  bool any() const { return status != BLINK_BOOTSTRAP_OK; }
  std::string packed() const;
  static bool unpack(const std::string& body, Cause* cause);
};

// "rank 3" or "ranks 3, 5".
std::string ranks_named(const std::vector<std::int32_t>& ranks);

// Open files, closed unless they are taken.
class Descriptors {
 public:
  Descriptors() = default;
  Descriptors(Descriptors&& other) noexcept { files_.swap(other.files_); }
  Descriptors& operator=(Descriptors&& other) noexcept {
    files_.swap(other.files_);
    return *this;
  }
  ~Descriptors() { clear(); }
  // Adds duplicates; false and errno if the limit on open files is reached.
  bool add_copies(const int* descriptors, std::size_t count);
  void add(int descriptor) { files_.push_back(descriptor); }
  void clear();
  std::vector<int> take();
  const std::vector<int>& get() const { return files_; }
  std::size_t size() const { return files_.size(); }

 private:
  std::vector<int> files_;
};

// One rank's contribution to a round.
struct Words {
  std::string bytes;
  std::size_t descriptors = 0;
};

// All ranks' words as the body of a verdict, and back; false if the body is not a verdict of `size` ranks.
std::string packed(const std::vector<Words>& words);
bool unpack(const std::string& body, int size, std::vector<Words>* words);

// A descriptor with an owner. close() also shuts a socket down, since a child forked meanwhile may hold a copy. Such a
// child does not shut it down, since its parent still needs it.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor);
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }
  void close();
  bool open() const { return descriptor_ >= 0; }
  bool ours() const;  // false in a process forked from the owner
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
  pid_t owner_ = 0;
};

// Each returns a closed socket and errno on an error.
Socket listen_at_name(const std::string& name);                  // EADDRINUSE: the name is taken
Socket listen_at_port(const std::string& address, int* port);    // "HOST:PORT"; for other hosts unless HOST is local
// ECONNREFUSED: no listener; EAGAIN: its backlog is full; EACCES: another user listens.
Socket connect_to_name(const std::string& name);
Socket connect_to_port(const std::string& address);  // returns while connecting; an unreachable peer appears as closed
// Accepts a waiting connection of this user (over TCP: of anyone); closed if none waits. Other users' connections are
// dropped and counted in `others`, with the last one's user.
struct Others {
  int count = 0;
  unsigned user = 0;
};
Socket accept_from(const Socket& listener, Others* others);
// True for a socket that may lead to another host and carries no descriptors.
bool is_tcp(int socket);
// The process id of the other end in this PID namespace; 0: unknown (TCP, or another namespace).
int peer_pid(int socket);

// poll(); false if no event has occurred and no signal interrupted it.
bool wait_for(std::vector<pollfd>* set, int timeout_ms);
// Waits without a descriptor.
void pause_ms(int timeout_ms);

// Frames in both directions on one connected socket.
class Channel {
 public:
  // Until trust() it accepts no descriptors, and disconnects a peer that announces a body of more than `most_bytes`.
  Channel(Socket socket, std::size_t most_bytes) : socket_(std::move(socket)), most_bytes_(most_bytes) {}

  void trust(std::size_t most_bytes) {
    most_bytes_ = most_bytes;
    trusted_ = true;
  }
  bool trusted() const { return trusted_; }
  int get() const { return socket_.get(); }
  bool ours() const { return socket_.ours(); }

  // Queues a frame and writes as much as possible. False if the other end has closed. The descriptors are borrowed
  // until the frame is written.
  bool send(Frame::Type type, std::uint32_t round, std::shared_ptr<const std::string> body,
            const std::vector<int>& descriptors = {});
  bool send(Frame::Type type, std::uint32_t round, const std::string& body, const std::vector<int>& descriptors = {}) {
    return send(type, round, std::make_shared<const std::string>(body), descriptors);
  }
  bool flush();
  bool flushed() const { return out_.empty(); }
  // The events to poll for.
  short events() const { return flushed() || crowded_ ? POLLIN : POLLIN | POLLOUT; }
  // True if too many descriptors are in flight. No event reports a lower number, so the caller retries soon.
  bool crowded() const { return crowded_; }

  enum class Got { kNothing, kFrame, kGone };
  // The next frame, if it has arrived in full. kGone: the other end has closed, or its data is not a frame.
  Got take(Frame* frame);
  // True if the other end has sent something that is not a frame.
  bool foreign() const { return foreign_; }
  // The descriptors received since the last call.
  Descriptors take_descriptors() { return std::move(descriptors_); }

 private:
  struct Head {
    std::uint32_t magic, type, round, bytes;
  };
  struct Outgoing {
    Head head;
    std::shared_ptr<const std::string> body;
    std::size_t written;
    std::vector<int> descriptors;
  };
  // Reads up to `bytes` bytes; 0: none available; below 0: closed.
  ssize_t read_some(void* to, std::size_t bytes);

  Socket socket_;
  std::size_t most_bytes_;
  bool trusted_ = false, crowded_ = false, foreign_ = false;
  std::deque<Outgoing> out_;
  Head head_{};
  std::size_t read_ = 0;  // bytes of head and body received
  std::string body_;
  Descriptors descriptors_;
};

}  // namespace blink
