// How do messages between ranks look on a socket? Frames: a head of fixed size that says the length, then the body. All
// sockets are non-blocking and closed on exec, no write raises SIGPIPE, and nobody gets more memory than a limit.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace blink::shim {

constexpr std::size_t kMostCardBytes = 64 << 10, kMostWhyBytes = 4 << 10;
constexpr int kMostRanks = 4096;

struct Frame {
  enum Type : std::uint32_t {
    kCard = 1,  // rank → hub: an Introduction, then the card
    kGiveUp,    // rank → hub: an Introduction, then why
    kVerdict,   // hub → rank: all cards, or a descriptor; not yet to be acted upon
    kAck,       // rank → hub: I have it, and will go on if you say so
    kCommit,    // hub → rank: everybody has it
    kRefused,   // hub → rank, at any time: 64 digits of the key's hash, then why; nothing comes of it
  };
  Type type = kCard;
  std::uint32_t round = 0;
  std::string body;
};

// What the ranks do together in a round; all must mean the same.
enum class Purpose : std::uint32_t { kCards = 1, kDescriptor = 2 };

constexpr std::size_t kHashDigits = 64;
struct Introduction {
  std::uint32_t rank, nranks;
  Purpose purpose;
  char hash[kHashDigits];  // of the communicator's key: only ranks of it know that
};

std::string introduced(const Introduction& introduction, const std::string& text);
bool split_introduction(const std::string& body, Introduction* introduction, std::string* text);

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
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
  pid_t owner_ = 0;
};

// A listening socket on the abstract name of this rank. Closed, and errno, if the name is taken or there is no socket.
Socket listen_as(const std::string& hash, int rank);
// Connects to that rank. Closed, and errno: ECONNREFUSED if nobody listens there, EAGAIN if too many are waiting there,
// EACCES if another user does.
Socket connect_to(const std::string& hash, int rank);
// Who waits to be accepted and is of this user; closed where nobody is. Others are dropped.
Socket accept_from(const Socket& listener);

// poll(), interrupted or not: false only if nothing has happened.
bool wait_for(std::vector<pollfd>* set, int timeout_ms);
// Waits without a descriptor.
void pause_ms(int timeout_ms);

// Frames in both directions on one connected socket.
class Channel {
 public:
  // `most_bytes`: who announces a longer body is cut off. With `descriptors`, one may come along with a frame.
  Channel(Socket socket, std::size_t most_bytes, bool descriptors);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int get() const { return socket_.get(); }

  // Queues a frame and writes as much as goes. False if the other end is gone. The descriptor is borrowed until the
  // frame has been written.
  bool send(Frame::Type type, std::uint32_t round, std::shared_ptr<const std::string> body, int descriptor = -1);
  bool send(Frame::Type type, std::uint32_t round, const std::string& body) {
    return send(type, round, std::make_shared<const std::string>(body));
  }
  bool flush();
  bool flushed() const { return out_.empty(); }

  enum class Got { kNothing, kFrame, kGone };
  // The next frame, as far as it has come. kGone: the other end is closed, or what it sends is no frame.
  Got take(Frame* frame);
  // The descriptor that came last, to be closed by the caller; −1 without.
  int take_descriptor();

 private:
  struct Head {
    std::uint32_t magic, type, round, bytes;
  };
  struct Outgoing {
    Head head;
    std::shared_ptr<const std::string> body;
    std::size_t written;
    int descriptor;
  };
  // Reads up to `bytes` bytes; 0: nothing there; below 0: gone.
  ssize_t read_some(void* to, std::size_t bytes);

  Socket socket_;
  std::size_t most_bytes_;
  bool descriptors_;
  std::deque<Outgoing> out_;
  Head head_{};
  std::size_t read_ = 0;  // bytes of head and body so far
  std::string body_;
  int descriptor_ = -1;
};

}  // namespace blink::shim
