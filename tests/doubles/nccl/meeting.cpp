#include "meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "journal.h"

namespace nccl_double {

struct Meeting::Header {
  std::atomic<std::int32_t> ranks;
  std::atomic<std::int32_t> joined;
};

namespace {

struct Open {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Meeting>> by_key;  // ranks of one process share a mapping
};

Open& open_meetings() {
  static Open& only = *new Open;
  return only;
}

// The header of each message.
struct Head { std::uint64_t mark, bytes; };
constexpr std::size_t kHeaderBytes = 4096;
constexpr std::uint64_t kMark = 0x62756f64206c6363ull;

// Adds bytes to a stream, as many as fit.
std::size_t put(Stream& stream, const char* data, std::size_t bytes) {
  const std::uint64_t written = stream.written.load(std::memory_order_relaxed);
  const std::uint64_t room = kStreamBytes - (written - stream.read.load(std::memory_order_acquire));
  const std::size_t now = std::min<std::size_t>(bytes, room), at = written % kStreamBytes;
  const std::size_t first = std::min(now, kStreamBytes - at);
  std::memcpy(stream.data + at, data, first);
  std::memcpy(stream.data, data + first, now - first);
  stream.written.store(written + now, std::memory_order_release);
  return now;
}

std::size_t take(Stream& stream, char* data, std::size_t bytes) {
  const std::uint64_t read = stream.read.load(std::memory_order_relaxed);
  const std::uint64_t there = stream.written.load(std::memory_order_acquire) - read;
  const std::size_t now = std::min<std::size_t>(bytes, there), at = read % kStreamBytes;
  const std::size_t first = std::min(now, kStreamBytes - at);
  std::memcpy(data, stream.data + at, first);
  std::memcpy(data + first, stream.data, now - first);
  stream.read.store(read + now, std::memory_order_release);
  return now;
}

struct Moving {
  Message message;
  Head head{kMark, 0};
  std::size_t head_done = 0, done = 0;
};

typedef std::map<int, std::deque<Moving>> MovingByPeer;

// Progresses the first message with each peer. `move` puts or takes the bytes that are possible now, and returns their
// number.
template <class Move>
ncclResult_t advance(MovingByPeer* all, const Move& move, int rank, std::size_t* left, std::size_t* moved) {
  for (auto& entry : *all) {
    if (entry.second.empty()) continue;
    Moving& one = entry.second.front();
    const std::size_t before = one.head_done + one.done;
    char* const head = reinterpret_cast<char*>(&one.head);
    one.head_done += move(entry.first, head + one.head_done, sizeof(Head) - one.head_done);
    if (one.head_done == sizeof(Head)) {
      if (one.head.mark != kMark || one.head.bytes != one.message.bytes) {
        return fail(ncclInternalError, "rank %d expected %zu bytes from rank %d, which sent %zu", rank,
                    one.message.bytes, entry.first, static_cast<std::size_t>(one.head.bytes));
      }
      one.done += move(entry.first, one.message.data + one.done, one.message.bytes - one.done);
    }
    *moved += one.head_done + one.done - before;
    if (one.head_done == sizeof(Head) && one.done == one.message.bytes) {
      entry.second.pop_front();
      --*left;
    }
  }
  return ncclSuccess;
}

// True if the process has ended, or is a zombie.
bool is_dead(int process) {
  char path[32], text[256] = "";
  std::snprintf(path, sizeof path, "/proc/%d/stat", process);
  std::FILE* const file = std::fopen(path, "r");
  if (!file) return true;
  const std::size_t bytes = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[bytes] = 0;
  const char* const state = std::strrchr(text, ')');
  return state && (state[2] == 'Z' || state[2] == 'X');
}

void rest(int* idle) {
  if (++*idle < 20) std::this_thread::yield();
  else std::this_thread::sleep_for(std::chrono::microseconds(*idle < 200 ? 30 : 300));
}

}  // namespace

ncclResult_t Meeting::join(const std::string& key, int ranks, int rank, const Stop& stop,
                           std::shared_ptr<Meeting>* out) {
  std::shared_ptr<Meeting> meeting;
  {
    std::lock_guard<std::mutex> lock(open_meetings().mutex);
    meeting = open_meetings().by_key[key].lock();
    if (!meeting) {
      meeting = std::make_shared<Meeting>();
      meeting->path_ = "/dev/shm/test-double-nccl-" + key;
      meeting->ranks_ = ranks;
      meeting->bytes_ = kHeaderBytes + sizeof(Seat) * static_cast<std::size_t>(ranks) +
                        sizeof(Stream) * 2 * static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
      const int file = ::open(meeting->path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      if (file < 0) return fail(ncclSystemError, "%s: %s", meeting->path_.c_str(), std::strerror(errno));
      const off_t there = lseek(file, 0, SEEK_END);
      const bool sized = there >= static_cast<off_t>(meeting->bytes_) ||
                         ftruncate(file, static_cast<off_t>(meeting->bytes_)) == 0;
      void* const memory = sized ? mmap(nullptr, meeting->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                                 : MAP_FAILED;
      ::close(file);
      if (memory == MAP_FAILED) return fail(ncclSystemError, "no shared memory of %zu bytes", meeting->bytes_);
      meeting->header_ = static_cast<Header*>(memory);
      meeting->seats_ = reinterpret_cast<Seat*>(static_cast<char*>(memory) + kHeaderBytes);
      meeting->streams_ = reinterpret_cast<Stream*>(meeting->seats_ + ranks);
      open_meetings().by_key[key] = meeting;
    }
  }
  std::int32_t expected = 0;
  if (!meeting->header_->ranks.compare_exchange_strong(expected, ranks) && expected != ranks) {
    return fail(ncclInvalidArgument, "ranks of one id disagree on their number: %d and %d", expected, ranks);
  }
  Seat& seat = meeting->seats_[rank];
  std::uint32_t free_seat = 0;
  if (!seat.taken.compare_exchange_strong(free_seat, 1)) {
    return fail(ncclInvalidUsage, "rank %d has joined twice", rank);
  }
  seat.process = getpid();
  meeting->header_->joined.fetch_add(1);
  Header& header = *meeting->header_;
  const ncclResult_t met = meeting->wait([&] { return header.joined.load() == ranks; }, stop);
  unlink(meeting->path_.c_str());  // all ranks have it open, or it will not be needed
  *out = meeting;
  return met;
}

Meeting::~Meeting() {
  if (header_) munmap(header_, bytes_);
}

bool Meeting::somebody_died() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const int process = seats_[rank].process.load();
    if (process && is_dead(process)) return true;
  }
  return false;
}

ncclResult_t Meeting::wait(const std::function<bool()>& met, const Stop& stop) const {
  for (int idle = 0; !met();) {
    if (stop()) return fail(ncclInternalError, "aborted");
    rest(&idle);
    if (idle % 1000 == 0 && somebody_died() && !met()) return fail(ncclRemoteError, "a rank has died");
  }
  return ncclSuccess;
}

ncclResult_t Meeting::tell_all(int rank, std::uint64_t* number, const std::string& words, const Stop& stop,
                               std::vector<std::string>* said) {
  const std::uint64_t now = ++*number;
  Seat& own = seats_[rank];
  std::memset(own.notice[now % 2], 0, kNoticeBytes);
  std::memcpy(own.notice[now % 2], words.data(), std::min(words.size(), kNoticeBytes));
  own.notices.store(now, std::memory_order_release);
  said->clear();
  for (int peer = 0; peer < ranks_; ++peer) {
    Seat& seat = seats_[peer];
    if (ncclResult_t error = wait([&] { return seat.notices.load(std::memory_order_acquire) >= now; }, stop)) {
      return error;
    }
    said->emplace_back(seat.notice[now % 2], kNoticeBytes);
  }
  return ncclSuccess;
}

ncclResult_t Meeting::exchange(Channel channel, int rank, const std::vector<Message>& sends,
                               const std::vector<Message>& receives, const Stop& stop) {
  MovingByPeer out, in;
  for (const Message& message : sends) out[message.peer].push_back({message, {kMark, message.bytes}, 0, 0});
  for (const Message& message : receives) in[message.peer].push_back({message, {}, 0, 0});
  const auto put_to = [&](int peer, char* data, std::size_t bytes) {
    return put(stream(channel, rank, peer), data, bytes);
  };
  const auto take_from = [&](int peer, char* data, std::size_t bytes) {
    return take(stream(channel, peer, rank), data, bytes);
  };
  std::size_t left = sends.size() + receives.size();
  for (int idle = 0; left;) {
    std::size_t moved = 0;
    if (ncclResult_t error = advance(&out, put_to, rank, &left, &moved)) return error;
    if (ncclResult_t error = advance(&in, take_from, rank, &left, &moved)) return error;
    if (moved) {
      idle = 0;
      continue;
    }
    if (!left) break;
    if (stop()) return fail(ncclInternalError, "aborted");
    rest(&idle);
    if (idle % 1000 == 0 && somebody_died()) return fail(ncclRemoteError, "a rank has died");
  }
  return ncclSuccess;
}

}  // namespace nccl_double
