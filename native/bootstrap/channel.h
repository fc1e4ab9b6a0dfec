// Messages between ranks on a socket: frames, a head of fixed size that says the length, then the body. All sockets are
// non-blocking and closed on exec, no write raises SIGPIPE, and nobody gets more memory than a limit.
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
    kWords,      // client → coordinator: what the rank gives; descriptors come along
    kVerdict,    // coordinator → client: what all give; not yet to be acted upon; descriptors come along
    kAck,        // client → coordinator: I have it, and go on if you say so
    kCommit,     // coordinator → client: everybody has it
    kAbort,      // both ways, at any time: a Cause; nothing comes of it
    kLeave,      // client → coordinator: the rank leaves in order
  };
  Type type = kHello;
  std::uint32_t round = 0;
  std::string body;
};

constexpr std::uint32_t kProtocol = 2;

// Who comes, and the secret that only ranks of this group know. Another protocol's may have more behind these, so that
// its ranks are told what is wrong.
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

// Why a group cannot be.
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

// Open files that are closed unless somebody takes them.
class Descriptors {
 public:
  Descriptors() = default;
  Descriptors(Descriptors&& other) noexcept { files_.swap(other.files_); }
  Descriptors& operator=(Descriptors&& other) noexcept {
    files_.swap(other.files_);
    return *this;
  }
  ~Descriptors() { clear(); }
  // Duplicates; false, and errno, if there can be no more open files.
  bool add_copies(const int* descriptors, std::size_t count);
  void add(int descriptor) { files_.push_back(descriptor); }
  void clear();
  std::vector<int> take();
  const std::vector<int>& get() const { return files_; }
  std::size_t size() const { return files_.size(); }

 private:
  std::vector<int> files_;
};

// What one rank gives in a round.
struct Words {
  std::string bytes;
  std::size_t descriptors = 0;
};

// All ranks' words as the body of a verdict, and back; false if it is none for so many ranks.
std::string packed(const std::vector<Words>& words);
bool unpack(const std::string& body, int size, std::vector<Words>* words);

// A descriptor with an owner. A socket is shut down as well when it is closed, since a child that the program has
// forked in between may hold a copy; but not by such a child, whose parent still needs it.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor);
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }
  void close();
  bool open() const { return descriptor_ >= 0; }
  bool ours() const;  // and not those of the process that forked this one
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
  pid_t owner_ = 0;
};

// These are closed, and errno says why, if there can be no such socket.
Socket listen_at_name(const std::string& name);                  // EADDRINUSE: the name is taken
Socket listen_at_port(const std::string& address, int* port);    // "HOST:PORT"; to any host where HOST is not local
// ECONNREFUSED: nobody listens; EAGAIN: too many are waiting there; EACCES: another user listens.
Socket connect_to_name(const std::string& name);
Socket connect_to_port(const std::string& address);  // is on its way: who is not reached turns out to be gone
// Who waits to be accepted and is of this user (over TCP: anybody); closed where nobody is. Others are dropped, and
// counted in `others` with the last one's user.
struct Others {
  int count = 0;
  unsigned user = 0;
};
Socket accept_from(const Socket& listener, Others* others);
// Whether it may lead to another host, and takes no descriptors.
bool is_tcp(int socket);
// The process at the other end, as it is numbered here; 0: unknown (TCP, or another PID namespace).
int peer_pid(int socket);

// poll(), interrupted or not: false only if nothing has happened.
bool wait_for(std::vector<pollfd>* set, int timeout_ms);
// Waits without a descriptor.
void pause_ms(int timeout_ms);

// Frames in both directions on one connected socket.
class Channel {
 public:
  // Takes no descriptors, and cuts off who announces a body of more than `most_bytes`, until trust().
  Channel(Socket socket, std::size_t most_bytes) : socket_(std::move(socket)), most_bytes_(most_bytes) {}

  void trust(std::size_t most_bytes) {
    most_bytes_ = most_bytes;
    trusted_ = true;
  }
  bool trusted() const { return trusted_; }
  int get() const { return socket_.get(); }
  bool ours() const { return socket_.ours(); }

  // Queues a frame and writes as much as goes. False if the other end is gone. The descriptors are borrowed until the
  // frame has been written.
  bool send(Frame::Type type, std::uint32_t round, std::shared_ptr<const std::string> body,
            const std::vector<int>& descriptors = {});
  bool send(Frame::Type type, std::uint32_t round, const std::string& body, const std::vector<int>& descriptors = {}) {
    return send(type, round, std::make_shared<const std::string>(body), descriptors);
  }
  bool flush();
  bool flushed() const { return out_.empty(); }
  // What to poll for.
  short events() const { return flushed() || crowded_ ? POLLIN : POLLIN | POLLOUT; }
  // Too many descriptors are under way: nothing tells when there are fewer, so that one looks again soon.
  bool crowded() const { return crowded_; }

  enum class Got { kNothing, kFrame, kGone };
  // The next frame, as far as it has come. kGone: the other end is closed, or what it sends is no frame.
  Got take(Frame* frame);
  // The descriptors that have come since the last time.
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
  // Reads up to `bytes` bytes; 0: nothing there; below 0: gone.
  ssize_t read_some(void* to, std::size_t bytes);

  Socket socket_;
  std::size_t most_bytes_;
  bool trusted_ = false, crowded_ = false;
  std::deque<Outgoing> out_;
  Head head_{};
  std::size_t read_ = 0;  // bytes of head and body so far
  std::string body_;
  Descriptors descriptors_;
};

}  // namespace blink
