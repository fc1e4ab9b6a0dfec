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
constexpr std::size_t kSpreadPiece = kWindow / 16;  // where routes are several: a rank forwards whole pieces
constexpr std::uint64_t kReport = kWindow / 2;      // a reader reports after reading this much
constexpr std::int64_t kPollUs = 50, kSleepUs = 20'000;
// A piece on another than the direct route is reported when it arrives: nothing orders it and the end of a connection.
constexpr std::uint32_t kBytes = 0, kRouted = 1, kTaken = 2, kGreeting = 3;

}  // namespace

struct RemoteStreams::Sent {
  RemoteStreams* streams;
  Worker* worker;
  std::size_t* sending;
  Header header;
  Piece piece;
};

std::unique_ptr<RemoteStreams> RemoteStreams::open(const std::shared_ptr<UcxContext>& context, blink_error& why) {
  std::unique_ptr<RemoteStreams> made(new RemoteStreams);
  made->bell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!made->add_rail(0, context, why)) return nullptr;
  return made;
}

bool RemoteStreams::add_rail(std::size_t rail, const std::shared_ptr<UcxContext>& context, blink_error& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Worker> worker = Worker::open(context, on_message, this, why);
  if (worker == nullptr) return false;
  events_.push_back(worker->events());
  if (rails_.size() <= rail) rails_.resize(rail + 1);
  rails_[rail] = std::move(worker);
  return true;
}

RemoteStreams::~RemoteStreams() {
  if (bell_ >= 0) close(bell_);
  const auto leaving = [this] {
    return passing_ != 0 || std::any_of(peers_.begin(), peers_.end(), [](const auto& one) { return one.second.sending != 0; });
  };
  const std::int64_t until = now_us() + 1'000'000;
  while (leaving() && now_us() < until) move();
  for (const auto& worker : rails_) {
    if (worker != nullptr) worker->close(true);
  }
}

void RemoteStreams::give_up() {
  for (const auto& worker : rails_) {
    if (worker == nullptr || !worker->close(false)) continue;
    passing_ = 0;
    for (auto& [rank, peer] : peers_) peer.sending = 0;
  }
}

ucx::Status RemoteStreams::on_message(void* context, const void* header, std::size_t header_bytes, void* data,
                                      std::size_t bytes, const ucx::ReceiveAttributes* attributes) {
  auto& streams = *static_cast<RemoteStreams*>(context);
  Header read{};
  if (header_bytes != sizeof read || (attributes->attributes & ucx::kIsOffer) != 0) return ucx::kOk;
  std::memcpy(&read, header, sizeof read);
  Piece piece{Data(bytes == 0 ? nullptr : new unsigned char[bytes]), bytes};
  if (bytes > 0) std::memcpy(piece.data.get(), data, bytes);
  streams.take(read, std::move(piece));
  return ucx::kOk;
}

// A callback of UCX sends nothing: move() does it afterwards.
void RemoteStreams::take(const Header& header, Piece piece) {
  if (header.hops > 0) {
    if (header.hops > BLINK_MOST_HOPS) return;
    Header rest = header;
    --rest.hops;
    std::copy(header.hop.begin() + 1, header.hop.end(), rest.hop.begin());
    forward_.push_back({header.hop[0], rest, std::move(piece)});
    return;
  }
  Peer& peer = peers_[header.sender];
  if (header.kind == kGreeting) {
    ++peer.met;
    return;
  }
  if (header.kind == kTaken) {
    peer.taken = std::max(peer.taken, header.at);
    while (!peer.kept.empty() && peer.kept.begin()->first < header.arrived) peer.kept.erase(peer.kept.begin());
    return;
  }
  if (header.kind == kRouted || peer.owes) owed_.push_back(header.sender);
  if (header.at < peer.read) return;  // a repeated piece
  peer.pieces.emplace(header.at, std::move(piece));
}

void RemoteStreams::connect(int peer, std::size_t rail, const void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Peer& to = peers_[peer];
  rails_[rail]->connect(peer, address);
  ++to.rails;
  if (to.direct == 0) to.direct = rail;
  send(peer, header_of(kGreeting, 0), {}, {{static_cast<std::int32_t>(rail), peer}});
}

bool RemoteStreams::add_route(int peer, double share, const std::vector<Hop>& hops) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (hops.empty() || hops.size() > BLINK_MOST_HOPS || share <= 0 || hops.back().rank != peer) return false;
  if (worker_of(hops[0]) == nullptr) return false;
  peers_[peer].routes.push_back({share, hops, 0});
  return true;
}

void RemoteStreams::on_sent(void* request, ucx::Status, void* user_data) {
  const std::unique_ptr<Sent> sent(static_cast<Sent*>(user_data));
  --*sent->sending;
  sent->worker->ucp().request_free(request);
}

void RemoteStreams::send(int peer, Header header, Piece piece, const std::vector<Hop>& hops) {
  if (hops.size() > 1) {
    header.hops = static_cast<std::uint32_t>(hops.size() - 1);
    std::copy(hops.begin() + 1, hops.end(), header.hop.begin());
  }
  const Hop first = hops.empty() ? Hop{static_cast<std::int32_t>(peers_[peer].direct), peer} : hops[0];
  pass(first, header, std::move(piece));
}

void RemoteStreams::pass(const Hop& hop, const Header& header, Piece piece) {
  Worker* worker = worker_of(hop);
  if (worker == nullptr) return;
  std::size_t* sending = header.sender == rank_ ? &peers_[hop.rank].sending : &passing_;
  std::unique_ptr<Sent> sent(new Sent{this, worker, sending, header, std::move(piece)});
  ucx::RequestParameters parameters{};
  parameters.mask = ucx::kCallback | ucx::kUserData | ucx::kFlags;
  parameters.flags = ucx::kEager;
  parameters.user_data = sent.get();
  parameters.done.send = on_sent;
  ++*sending;
  if (worker->send(hop.rank, &sent->header, sizeof sent->header, sent->piece.data.get(), sent->piece.bytes, parameters)) {
    --*sending;
  } else {
    sent.release();  // on_sent has it
  }
}

bool RemoteStreams::move() {
  bool moved = false;
  for (const auto& worker : rails_) moved = (worker != nullptr && worker->progress()) || moved;
  for (; !forward_.empty(); forward_.pop_front()) pass(forward_.front().hop, forward_.front().header, std::move(forward_.front().piece));
  for (; !owed_.empty(); owed_.pop_back()) report(owed_.back());
  return moved;
}

Worker* RemoteStreams::worker_of(const Hop& hop) const {
  const auto rail = static_cast<std::size_t>(hop.rail);
  return rail < rails_.size() && rails_[rail] != nullptr && rails_[rail]->reaches(hop.rank) ? rails_[rail].get() : nullptr;
}

bool RemoteStreams::arm() {
  return std::all_of(rails_.begin(), rails_.end(), [](const auto& worker) { return worker == nullptr || worker->arm(); });
}

bool RemoteStreams::is_broken(int peer) const {
  const auto place = peers_.find(peer);
  return place != peers_.end() && rails_[place->second.direct]->is_broken(peer);
}

bool RemoteStreams::has_lost(const std::vector<Hop>& hops) const {
  return worker_of(hops[0])->is_broken(hops[0].rank) ||
         std::any_of(hops.begin(), hops.end() - 1, [this](const Hop& hop) { return is_broken(hop.rank); });
}

void RemoteStreams::mend(int peer) {
  Peer& to = peers_[peer];
  const auto lost = [this](const Route& route) { return has_lost(route.hops); };
  const auto end = std::remove_if(to.routes.begin(), to.routes.end(), lost);
  if (end == to.routes.end()) return;
  to.routes.erase(end, to.routes.end());
  for (auto kept = to.kept.begin(); kept != to.kept.end();) {
    if (has_lost(kept->second.hops)) {
      send(peer, header_of(kBytes, kept->first), kept->second.piece);
      kept = to.kept.erase(kept);
    } else {
      ++kept;
    }
  }
}

void RemoteStreams::report(int peer) {
  Peer& from = peers_[peer];
  from.reported = from.read;
  Header header = header_of(kTaken, from.read);
  header.arrived = from.read;
  from.owes = false;
  for (const auto& [place, piece] : from.pieces) {
    from.owes = place > header.arrived;
    if (from.owes) break;
    header.arrived = place + piece.bytes;
  }
  send(peer, header, {});
}

void RemoteStreams::progress() {
  if (!move()) return;
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
      moved_.wait_for(lock, std::chrono::microseconds(std::clamp<std::int64_t>(began + wait_us - now, 1, kSleepUs)));
    } else {
      if (move()) {
        moved = now_us();
        moved_.notify_all();
      }
      if (ready()) return true;
      if (now - moved >= kPollUs && arm()) {
        someone_sleeps_ = true;
        lock.unlock();
        sleep_on(events_, bell_, std::min(kSleepUs, std::max<std::int64_t>(1, began + wait_us - now)));
        lock.lock();
        someone_sleeps_ = false;
        moved_.notify_all();
      }
    }
    now = now_us();
    if (is_broken(peer) || ended() || now - began >= wait_us) return ready();
  }
}

std::int64_t RemoteStreams::write(int peer, const void* data, std::size_t bytes, bool large, std::int64_t wait_us,
                                  const Ended& ended) {
  std::unique_lock<std::mutex> lock(mutex_);
  Peer& to = peers_[peer];
  const auto room = [&] {
    mend(peer);
    return to.written - to.taken < kWindow;
  };
  const bool ready = wait(lock, peer, wait_us, ended, room);
  if (is_broken(peer)) return kLost;
  if (!ready) return 0;
  const bool spread = large && !to.routes.empty();
  const std::size_t moved =
      std::min({bytes, spread ? kSpreadPiece : kPiece, static_cast<std::size_t>(kWindow - (to.written - to.taken))});
  const Piece piece{Data(new unsigned char[moved]), moved};
  std::memcpy(piece.data.get(), data, moved);
  if (spread) {
    const auto later = [&](const Route& a, const Route& b) {
      return static_cast<double>(a.sent + moved) / a.share < static_cast<double>(b.sent + moved) / b.share;
    };
    Route& route = *std::min_element(to.routes.begin(), to.routes.end(), later);
    route.sent += moved;
    const bool direct = static_cast<std::size_t>(route.hops[0].rail) == to.direct && route.hops.size() == 1;
    if (!direct) to.kept.emplace(to.written, Kept{piece, route.hops});
    send(peer, header_of(direct ? kBytes : kRouted, to.written), piece, route.hops);
  } else {
    send(peer, header_of(kBytes, to.written), piece);
  }
  to.written += moved;
  progress();
  return static_cast<std::int64_t>(moved);
}

std::int64_t RemoteStreams::read(int peer, void* data, std::size_t bytes, std::int64_t wait_us, const Ended& ended) {
  std::unique_lock<std::mutex> lock(mutex_);
  Peer& from = peers_[peer];
  if (!wait(lock, peer, wait_us, ended, [&] { return has_next(from); })) return is_broken(peer) ? kLost : 0;
  const auto piece = from.pieces.begin();
  const auto skipped = static_cast<std::size_t>(from.read - piece->first);
  const std::size_t moved = std::min(bytes, piece->second.bytes - skipped);
  std::memcpy(data, piece->second.data.get() + skipped, moved);
  from.read += moved;
  if (skipped + moved == piece->second.bytes) from.pieces.erase(piece);
  if (from.read - from.reported >= kReport) {
    report(peer);
    progress();
  }
  return static_cast<std::int64_t>(moved);
}

std::int64_t RemoteStreams::flush(int peer, std::int64_t wait_us, const Ended& ended) {
  std::unique_lock<std::mutex> lock(mutex_);
  const Peer& to = peers_[peer];
  // Fewer unread bytes cause no report. A report to a rank that has left would reset its connection, and so lose them.
  const auto safe = [&] {
    mend(peer);
    return to.met >= to.rails && to.sending == 0 && to.kept.empty() && to.written - to.taken < kReport;
  };
  if (wait(lock, peer, wait_us, ended, safe)) return 1;
  return is_broken(peer) ? kLost : 0;
}

void RemoteStreams::serve(std::int64_t wait_us, const Ended& ended) {
  std::unique_lock<std::mutex> lock(mutex_);
  wait(lock, -1, wait_us, ended, [] { return false; });
}

}  // namespace blink
