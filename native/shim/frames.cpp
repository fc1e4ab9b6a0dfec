#include "frames.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace blink::shim {
namespace {

constexpr std::uint32_t kFrameMagic = 0x314b4c42;  // "BLK1"
constexpr int kBacklog = kMostRanks + 64;
constexpr std::size_t kAtOnce = 64 << 10;  // a body grows as it comes, whatever length its head announces
constexpr int kMostDescriptors = 4;        // what is sent along unasked is closed

Socket new_socket() { return Socket(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

// An abstract name: a zero byte first, no terminator, and its length says where it ends.
socklen_t address_of(const std::string& hash, int rank, sockaddr_un* address) {
  constexpr std::size_t kNameDigits = 40;
  const std::string name = "blink-" + hash.substr(0, kNameDigits) + "-" + std::to_string(rank);
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace

std::string introduced(const Introduction& introduction, const std::string& text) {
  return std::string(reinterpret_cast<const char*>(&introduction), sizeof introduction) + text;
}

bool split_introduction(const std::string& body, Introduction* introduction, std::string* text) {
  if (body.size() < sizeof *introduction) return false;
  std::memcpy(introduction, body.data(), sizeof *introduction);
  *text = body.substr(sizeof *introduction);
  return true;
}

Socket::Socket(int descriptor) : descriptor_(descriptor), owner_(getpid()) {}

Socket::Socket(Socket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), owner_(other.owner_) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
    owner_ = other.owner_;
  }
  return *this;
}

void Socket::close() {
  if (descriptor_ < 0) return;
  if (owner_ == getpid()) shutdown(descriptor_, SHUT_RDWR);
  ::close(descriptor_);
  descriptor_ = -1;
}

Socket listen_as(const std::string& hash, int rank) {
  sockaddr_un address;
  const socklen_t size = address_of(hash, rank, &address);
  Socket listener = new_socket();
  if (!listener.open() || bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    const int error = errno;
    listener.close();
    errno = error;
  }
  return listener;
}

Socket connect_to(const std::string& hash, int rank) {
  sockaddr_un address;
  const socklen_t size = address_of(hash, rank, &address);
  Socket connection = new_socket();
  if (!connection.open()) return connection;
  int error = connect(connection.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 ? 0 : errno;
  if (error == EINTR) error = EAGAIN;  // try again on a fresh socket
  if (error == 0 && !is_same_user(connection.get())) error = EACCES;
  if (error != 0) {
    connection.close();
    errno = error;
  }
  return connection;
}

Socket accept_from(const Socket& listener) {
  while (listener.open()) {
    Socket connection(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!connection.open() && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!connection.open() || is_same_user(connection.get())) return connection;
  }
  errno = EBADF;
  return Socket();
}

bool wait_for(std::vector<pollfd>* set, int timeout_ms) {
  const int ready = poll(set->data(), set->size(), timeout_ms);
  if (ready > 0) return true;
  for (pollfd& entry : *set) entry.revents = 0;
  return ready < 0 && errno == EINTR;
}

void pause_ms(int timeout_ms) { poll(nullptr, 0, timeout_ms); }

Channel::Channel(Socket socket, std::size_t most_bytes, bool descriptors)
    : socket_(std::move(socket)), most_bytes_(most_bytes), descriptors_(descriptors) {}

Channel::~Channel() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool Channel::send(Frame::Type type, std::uint32_t round, std::shared_ptr<const std::string> body, int descriptor) {
  const Head head{kFrameMagic, type, round, static_cast<std::uint32_t>(body->size())};
  out_.push_back({head, std::move(body), 0, descriptor});
  return flush();
}

bool Channel::flush() {
  while (!out_.empty()) {
    Outgoing& frame = out_.front();
    iovec parts[2];
    std::size_t count = 0;
    if (frame.written < sizeof frame.head) {
      parts[count++] = {reinterpret_cast<char*>(&frame.head) + frame.written, sizeof frame.head - frame.written};
    }
    const std::size_t of_body = frame.written < sizeof frame.head ? 0 : frame.written - sizeof frame.head;
    if (of_body < frame.body->size()) {
      parts[count++] = {const_cast<char*>(frame.body->data()) + of_body, frame.body->size() - of_body};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (frame.descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const along = CMSG_FIRSTHDR(&message);
      along->cmsg_level = SOL_SOCKET;
      along->cmsg_type = SCM_RIGHTS;
      along->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(along), &frame.descriptor, sizeof(int));
    }
    const ssize_t written = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    frame.descriptor = -1;  // it went with the first byte
    frame.written += static_cast<std::size_t>(written);
    if (frame.written == sizeof frame.head + frame.body->size()) out_.pop_front();
  }
  return true;
}

ssize_t Channel::read_some(void* to, std::size_t bytes) {
  iovec part{to, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
  if (descriptors_) {  // else the kernel throws them away
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  ssize_t got;
  do {
    got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  for (cmsghdr* along = descriptors_ ? CMSG_FIRSTHDR(&message) : nullptr; along != nullptr;
       along = CMSG_NXTHDR(&message, along)) {
    if (along->cmsg_level != SOL_SOCKET || along->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (along->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor;
      std::memcpy(&descriptor, CMSG_DATA(along) + i * sizeof(int), sizeof(int));
      if (descriptor_ >= 0) ::close(descriptor_);
      descriptor_ = descriptor;
    }
  }
  return got == 0 ? -1 : got;
}

Channel::Got Channel::take(Frame* frame) {
  for (;;) {
    if (read_ < sizeof head_) {
      const ssize_t got = read_some(reinterpret_cast<char*>(&head_) + read_, sizeof head_ - read_);
      if (got <= 0) return got == 0 ? Got::kNothing : Got::kGone;
      read_ += static_cast<std::size_t>(got);
      if (read_ < sizeof head_) continue;
      if (head_.magic != kFrameMagic || head_.type < Frame::kCard || head_.type > Frame::kRefused ||
          head_.bytes > most_bytes_) {
        read_ = 0;
        return Got::kGone;
      }
    }
    const std::size_t had = read_ - sizeof head_;
    if (had == head_.bytes) {
      *frame = {static_cast<Frame::Type>(head_.type), head_.round, std::move(body_)};
      body_.clear();
      read_ = 0;
      return Got::kFrame;
    }
    body_.resize(had + std::min(kAtOnce, head_.bytes - had));
    const ssize_t got = read_some(&body_[had], body_.size() - had);
    body_.resize(had + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got <= 0) return got == 0 ? Got::kNothing : Got::kGone;
    read_ += static_cast<std::size_t>(got);
  }
}

int Channel::take_descriptor() { return std::exchange(descriptor_, -1); }

}  // namespace blink::shim
