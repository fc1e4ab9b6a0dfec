#include "remote_streams.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "clock.h"

namespace blink {
namespace {

// Most unread bytes of a stream; a message has at most a quarter of it.
constexpr std::uint64_t kWindow = 1 << 20;
constexpr std::size_t kPiece = kWindow / 4;
constexpr std::uint64_t kReport = kWindow / 2;  // a reader reports after reading this much
constexpr std::int64_t kPollUs = 50, kSleepUs = 20'000;
constexpr std::uint32_t kBytes = 0, kTaken = 1;

struct StreamHeader {
  std::uint64_t at;    // the place of the first byte; for kTaken: the number of bytes read
  std::uint32_t kind;
  std::int32_t sender;
};

}  // namespace

struct RemoteStreams::Sent {
  RemoteStreams* streams;
  StreamHeader header;
  std::unique_ptr<unsigned char[]> data;
};

std::unique_ptr<RemoteStreams> RemoteStreams::open(const std::shared_ptr<UcxContext>& context, blink_error& why) {
  std::unique_ptr<RemoteStreams> made(new RemoteStreams);
  made->bell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  made->worker_ = Worker::open(context, on_message, made.get(), why);
  if (made->worker_ == nullptr) return nullptr;
  return made;
}

RemoteStreams::~RemoteStreams() {
  if (bell_ >= 0) close(bell_);
  if (worker_ == nullptr) return;
  const std::int64_t until = now_us() + 1'000'000;
  while (sending_ != 0 && now_us() < until) worker_->progress();
  worker_->close(true);
}

void RemoteStreams::give_up() {
  if (worker_->close(false)) sending_ = 0;
}

ucx::Status RemoteStreams::on_message(void* context, const void* header, std::size_t header_bytes, void* data,
                                      std::size_t bytes, const ucx::ReceiveAttributes* attributes) {
  auto& streams = *static_cast<RemoteStreams*>(context);
  StreamHeader read{};
  if (header_bytes != sizeof read || (attributes->attributes & ucx::kIsOffer) != 0) return ucx::kOk;
  std::memcpy(&read, header, sizeof read);
  Peer& peer = streams.peers_[read.sender];
  peer.met = true;
  if (read.kind == kTaken) {
    peer.taken = std::max(peer.taken, read.at);
    return ucx::kOk;
  }
  Piece piece{std::unique_ptr<unsigned char[]>(new unsigned char[bytes]), bytes};
  std::memcpy(piece.data.get(), data, bytes);
  peer.pieces.emplace(read.at, std::move(piece));
  return ucx::kOk;
}

void RemoteStreams::connect(int peer, const void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  worker_->connect(peer, address);
  send(peer, kTaken, 0, nullptr, 0);
}

void RemoteStreams::on_sent(void* request, ucx::Status, void* user_data) {
  const std::unique_ptr<Sent> sent(static_cast<Sent*>(user_data));
  --sent->streams->sending_;
  sent->streams->worker_->ucp().request_free(request);
}

void RemoteStreams::send(int peer, std::uint32_t kind, std::uint64_t at, const void* data, std::size_t bytes) {
  std::unique_ptr<Sent> sent(new Sent{this, {at, kind, rank_}, nullptr});
  if (bytes > 0) {
    sent->data.reset(new unsigned char[bytes]);
    std::memcpy(sent->data.get(), data, bytes);
  }
  ucx::RequestParameters parameters{};
  parameters.mask = ucx::kCallback | ucx::kUserData | ucx::kFlags;
  parameters.flags = ucx::kEager;
  parameters.user_data = sent.get();
  parameters.done.send = on_sent;
  ++sending_;
  if (worker_->send(peer, &sent->header, sizeof sent->header, sent->data.get(), bytes, parameters)) {
    --sending_;
  } else {
    sent.release();  // on_sent has it
  }
}

void RemoteStreams::progress() {
  if (!worker_->progress()) return;
  moved_.notify_all();
  if (someone_sleeps_ && bell_ >= 0) eventfd_write(bell_, 1);
}

// False at the timeout, after the end, or with a broken connection.
template <class Ready>
bool RemoteStreams::wait(std::unique_lock<std::mutex>& lock, int peer, std::int64_t wait_us, const Ended& ended,
                         Ready ready) {
  const std::int64_t began = now_us();
  std::int64_t moved = began, now = began;
  while (true) {
    if (someone_sleeps_) {
      if (ready()) return true;
      moved_.wait_for(lock, std::chrono::microseconds(kPollUs));
    } else {
      if (worker_->progress()) {
        moved = now_us();
        moved_.notify_all();
      }
      if (ready()) return true;
      if (now - moved >= kPollUs && worker_->arm()) {
        someone_sleeps_ = true;
        lock.unlock();
        sleep_on({worker_->events()}, bell_, std::min(kSleepUs, std::max<std::int64_t>(1, began + wait_us - now)));
        lock.lock();
        someone_sleeps_ = false;
        moved_.notify_all();
      }
    }
    now = now_us();
    if (worker_->is_broken(peer) || ended() || now - began >= wait_us) return ready();
  }
}

std::int64_t RemoteStreams::write(int peer, const void* data, std::size_t bytes, std::int64_t wait_us,
                                  const Ended& ended) {
  std::unique_lock<std::mutex> lock(mutex_);
  Peer& to = peers_[peer];
  const bool room = wait(lock, peer, wait_us, ended, [&] { return to.written - to.taken < kWindow; });
  if (worker_->is_broken(peer)) return kLost;
  if (!room) return 0;
  const std::size_t moved = std::min({bytes, kPiece, static_cast<std::size_t>(kWindow - (to.written - to.taken))});
  send(peer, kBytes, to.written, data, moved);
  to.written += moved;
  progress();
  return static_cast<std::int64_t>(moved);
}

std::int64_t RemoteStreams::read(int peer, void* data, std::size_t bytes, std::int64_t wait_us, const Ended& ended) {
  std::unique_lock<std::mutex> lock(mutex_);
  Peer& from = peers_[peer];
  if (!wait(lock, peer, wait_us, ended, [&] { return has_next(from); })) return worker_->is_broken(peer) ? kLost : 0;
  const auto piece = from.pieces.begin();
  const auto skipped = static_cast<std::size_t>(from.read - piece->first);
  const std::size_t moved = std::min(bytes, piece->second.bytes - skipped);
  std::memcpy(data, piece->second.data.get() + skipped, moved);
  from.read += moved;
  if (skipped + moved == piece->second.bytes) from.pieces.erase(piece);
  if (from.read - from.reported >= kReport) {
    from.reported = from.read;
    send(peer, kTaken, from.read, nullptr, 0);
    progress();
  }
  return static_cast<std::int64_t>(moved);
}

std::int64_t RemoteStreams::flush(int peer, std::int64_t wait_us, const Ended& ended) {
  std::unique_lock<std::mutex> lock(mutex_);
  const Peer& to = peers_[peer];
  // Fewer unread bytes cause no report. A report to a rank that has left would reset its connection, and so lose them.
  const auto safe = [&] { return to.met && sending_ == 0 && to.written - to.taken < kReport; };
  if (wait(lock, peer, wait_us, ended, safe)) return 1;
  return worker_->is_broken(peer) ? kLost : 0;
}

}  // namespace blink
