#include "channel.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace blink {
namespace {

constexpr std::uint32_t kFrameMagic = 0x324b4c42;  // "BLK2" in all versions, which differ in kProtocol
constexpr int kBacklog = BLINK_BOOTSTRAP_RANKS + 64;
constexpr std::size_t kAtOnce = 64 << 10;  // the body's buffer grows with the received bytes, at any announced length

// An abstract name: a leading zero byte, no terminator, and a length.
socklen_t address_of(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const std::size_t size = std::min(name.size(), sizeof address->sun_path - 1);
  std::memcpy(address->sun_path + 1, name.data(), size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

bool peer_of(int socket, ucred* peer) {
  socklen_t size = sizeof *peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, peer, &size) == 0;
}

void prepare_tcp(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  // A dead host or a cut network answers nothing; these options then end the connection, which reports the failure.
  const unsigned silent_ms = 10'000;
  const int idle_s = 4, between_s = 2;
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Splits "HOST:PORT"; a host with colons may stand in brackets.
bool split_address(const std::string& address, std::string* host, std::string* port) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  *host = address.substr(0, colon);
  *port = address.substr(colon + 1);
  if (host->size() > 2 && host->front() == '[' && host->back() == ']') *host = host->substr(1, host->size() - 2);
  const bool number = !port->empty() && port->size() <= 5 && port->find_first_not_of("0123456789") == std::string::npos;
  return !host->empty() && number && std::stoi(*port) <= 65535;
}

Addresses resolve(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &list) != 0) list = nullptr;
  if (list == nullptr) errno = EADDRNOTAVAIL;
  return Addresses(list);
}

Socket new_socket(int family) { return Socket(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

// Closes a socket on an error, and sets errno.
Socket unless(int error, Socket socket) {
  if (error != 0) socket.close();
  errno = error;
  return socket;
}

template <class Head>
std::string packed_head(const Head& head) {
  return std::string(reinterpret_cast<const char*>(&head), sizeof head);
}

template <class Head>
bool unpack_head(const std::string& body, std::size_t* at, Head* head) {
  if (body.size() - *at < sizeof *head) return false;
  std::memcpy(head, body.data() + *at, sizeof *head);
  *at += sizeof *head;
  return true;
}

struct WordsHead {
  std::uint32_t bytes, descriptors;
};
struct CauseHead {
  std::int32_t status, rank, pid;
  std::uint32_t missing;
};

}  // namespace

std::string Hello::who() const {
  return "process " + std::to_string(pid) + " on " + std::string(host, strnlen(host, sizeof host));
}

std::string Hello::packed() const { return packed_head(*this); }

bool Hello::unpack(const std::string& body, Hello* hello) {
  std::size_t at = 0;
  return unpack_head(body, &at, hello) && (at == body.size() || hello->protocol != kProtocol);
}

Hello own_hello(const std::string& token, int rank, int size) {
  Hello hello;
  hello.rank = static_cast<std::uint32_t>(rank);
  hello.size = static_cast<std::uint32_t>(size);
  hello.pid = static_cast<std::uint32_t>(getpid());
  std::memcpy(hello.token, token.data(), std::min(token.size(), sizeof hello.token));
  if (gethostname(hello.host, sizeof hello.host) != 0) hello.host[0] = '\0';
  hello.host[sizeof hello.host - 1] = '\0';
  return hello;
}

std::string Cause::packed() const {
  const CauseHead head{status, rank, pid, static_cast<std::uint32_t>(missing.size())};
  std::string body = packed_head(head);
  for (const std::int32_t each : missing) body += packed_head(each);
  return body + text.substr(0, BLINK_BOOTSTRAP_TEXT - 1);
}

bool Cause::unpack(const std::string& body, Cause* cause) {
  std::size_t at = 0;
  CauseHead head;
  if (!unpack_head(body, &at, &head) || head.missing > BLINK_BOOTSTRAP_RANKS || head.status < BLINK_BOOTSTRAP_TIMEOUT ||
      head.status > BLINK_BOOTSTRAP_FAILED) {
    return false;
  }
  cause->status = head.status;
  cause->rank = head.rank;
  cause->pid = head.pid;
  cause->missing.resize(head.missing);
  for (std::int32_t& each : cause->missing) {
    if (!unpack_head(body, &at, &each)) return false;
  }
  cause->text = body.substr(at);
  return true;
}

std::string ranks_named(const std::vector<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

bool Descriptors::add_copies(const int* descriptors, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const int copy = fcntl(descriptors[i], F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return false;
    files_.push_back(copy);
  }
  return true;
}

void Descriptors::clear() {
  for (const int file : files_) close(file);
  files_.clear();
}

std::vector<int> Descriptors::take() { return std::exchange(files_, {}); }

std::string packed(const std::vector<Words>& words) {
  std::string body;
  for (const Words& each : words) {
    const WordsHead head{static_cast<std::uint32_t>(each.bytes.size()), static_cast<std::uint32_t>(each.descriptors)};
    body += packed_head(head) + each.bytes;
  }
  return body;
}

bool unpack(const std::string& body, int size, std::vector<Words>* words) {
  words->clear();
  std::size_t at = 0;
  for (int rank = 0; rank < size; ++rank) {
    WordsHead head;
    if (!unpack_head(body, &at, &head) || head.bytes > BLINK_BOOTSTRAP_BYTES || body.size() - at < head.bytes) {
      return false;
    }
    words->push_back({body.substr(at, head.bytes), head.descriptors});
    at += head.bytes;
  }
  return at == body.size();
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

bool Socket::ours() const { return owner_ == getpid(); }

Socket listen_at_name(const std::string& name) {
  sockaddr_un address;
  const socklen_t size = address_of(name, &address);
  Socket listener = new_socket(AF_UNIX);
  const bool good = listener.open() && bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                    listen(listener.get(), kBacklog) == 0;
  return unless(good ? 0 : errno, std::move(listener));
}

Socket listen_at_port(const std::string& address, int* port) {
  std::string host, service;
  if (!split_address(address, &host, &service)) return unless(EINVAL, Socket());
  const Addresses addresses = resolve(host, service);
  if (addresses == nullptr) return Socket();
  // Not only at the host's own address, since many hosts' files map their name to 127.0.1.1.
  const bool local = host == "localhost" || host == "::1" || host.compare(0, 4, "127.") == 0;
  sockaddr_storage place{};
  std::memcpy(&place, addresses->ai_addr, addresses->ai_addrlen);
  if (!local && place.ss_family == AF_INET) reinterpret_cast<sockaddr_in*>(&place)->sin_addr.s_addr = INADDR_ANY;
  if (!local && place.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(&place)->sin6_addr = in6addr_any;
  Socket listener = new_socket(place.ss_family);
  const int on = 1;
  if (listener.open()) setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  socklen_t size = addresses->ai_addrlen;
  const bool good = listener.open() && bind(listener.get(), reinterpret_cast<sockaddr*>(&place), size) == 0 &&
                    listen(listener.get(), kBacklog) == 0 &&
                    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&place), &size) == 0;
  if (good) {
    *port = ntohs(place.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&place)->sin_port
                                             : reinterpret_cast<sockaddr_in6*>(&place)->sin6_port);
  }
  return unless(good ? 0 : errno, std::move(listener));
}

Socket connect_to_name(const std::string& name) {
  sockaddr_un address;
  const socklen_t size = address_of(name, &address);
  Socket connection = new_socket(AF_UNIX);
  if (!connection.open()) return connection;
  int error = connect(connection.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 ? 0 : errno;
  if (error == EINTR) error = EAGAIN;  // try again on a fresh socket
  ucred peer{};
  if (error == 0 && (!peer_of(connection.get(), &peer) || peer.uid != geteuid())) error = EACCES;
  return unless(error, std::move(connection));
}

Socket connect_to_port(const std::string& address) {
  std::string host, service;
  if (!split_address(address, &host, &service)) return unless(EINVAL, Socket());
  const Addresses addresses = resolve(host, service);
  if (addresses == nullptr) return Socket();
  Socket connection = new_socket(addresses->ai_family);
  if (!connection.open()) return connection;
  prepare_tcp(connection.get());
  const bool good = connect(connection.get(), addresses->ai_addr, addresses->ai_addrlen) == 0 || errno == EINPROGRESS;
  return unless(good ? 0 : errno, std::move(connection));
}

Socket accept_from(const Socket& listener, Others* others) {
  while (listener.open()) {
    Socket connection(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!connection.open() && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!connection.open()) return connection;
    if (is_tcp(connection.get())) {
      prepare_tcp(connection.get());
      return connection;
    }
    ucred peer{};
    if (peer_of(connection.get(), &peer) && peer.uid == geteuid()) return connection;
    ++others->count;
    others->user = peer.uid;
  }
  errno = EBADF;
  return Socket();
}

bool is_tcp(int socket) {
  int domain = AF_UNSPEC;
  socklen_t size = sizeof domain;
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain != AF_UNIX;
}

int peer_pid(int socket) {
  ucred peer{};
  return !is_tcp(socket) && peer_of(socket, &peer) ? peer.pid : 0;
}

bool wait_for(std::vector<pollfd>* set, int timeout_ms) {
  const int ready = poll(set->data(), set->size(), timeout_ms);
  if (ready > 0) return true;
  for (pollfd& entry : *set) entry.revents = 0;
  return ready < 0 && errno == EINTR;
}

void pause_ms(int timeout_ms) { poll(nullptr, 0, timeout_ms); }

bool Channel::send(Frame::Type type, std::uint32_t round, std::shared_ptr<const std::string> body,
                   const std::vector<int>& descriptors) {
  const Head head{kFrameMagic, type, round, static_cast<std::uint32_t>(body->size())};
  out_.push_back({head, std::move(body), 0, descriptors});
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
    alignas(cmsghdr) char control[CMSG_SPACE(BLINK_BOOTSTRAP_DESCRIPTORS * sizeof(int))] = {};
    if (!frame.descriptors.empty()) {
      const std::size_t bytes = frame.descriptors.size() * sizeof(int);
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(bytes);
      cmsghdr* const along = CMSG_FIRSTHDR(&message);
      along->cmsg_level = SOL_SOCKET;
      along->cmsg_type = SCM_RIGHTS;
      along->cmsg_len = CMSG_LEN(bytes);
      std::memcpy(CMSG_DATA(along), frame.descriptors.data(), bytes);
    }
    const ssize_t written = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno == EINTR) continue;
    // ETOOMANYREFS: this user has too many descriptors in flight; the number falls as ranks receive theirs.
    crowded_ = written < 0 && errno == ETOOMANYREFS;
    if (written < 0) return crowded_ || errno == EAGAIN || errno == EWOULDBLOCK;
    frame.descriptors.clear();  // sent with the first byte
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
  alignas(cmsghdr) char control[CMSG_SPACE(BLINK_BOOTSTRAP_DESCRIPTORS * sizeof(int))];
  if (trusted_) {  // otherwise the kernel discards them
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  ssize_t got;
  do {
    got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  for (cmsghdr* along = trusted_ ? CMSG_FIRSTHDR(&message) : nullptr; along != nullptr;
       along = CMSG_NXTHDR(&message, along)) {
    if (along->cmsg_level != SOL_SOCKET || along->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (along->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor;
      std::memcpy(&descriptor, CMSG_DATA(along) + i * sizeof(int), sizeof(int));
      descriptors_.add(descriptor);
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
      if (head_.magic != kFrameMagic || head_.type < Frame::kHello || head_.type > Frame::kLeave ||
          head_.bytes > most_bytes_) {
        foreign_ = true;
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

}  // namespace blink
