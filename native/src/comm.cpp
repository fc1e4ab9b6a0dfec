#include "comm.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <string>

#include "clock.h"
#include "kernels.h"

using blink::now_us;

namespace {

constexpr std::int64_t kSleepUs = 20'000;       // longest sleep, and so the delay until a death is noticed;
constexpr std::int64_t kLookAroundUs = 50'000;  // interval of a waiting rank's checks for dead peers;
constexpr std::int64_t kSwitchUs = 1;           // a shorter yield did not give the core to another thread;
constexpr std::int64_t kSpreadUs = 200;         // least interval between a rank's searches for a free core;
constexpr std::int64_t kIdleUs = 50;            // first interval between calls of the idle function in a wait;
constexpr std::int64_t kIdleMostUs = 1'000;     // longest interval, when the idle function has nothing to do;
constexpr std::int64_t kIdleWorkUs = 3;         // an idle function that runs longer has done some work;
constexpr int kSpins = 4'000;                   // some 100 µs
constexpr int kSpinsCrowded = 16;
constexpr std::int64_t kStreamYieldUs = 50;
constexpr int kSpinsNetwork = 2;               // each spin moves messages
constexpr std::int64_t kPollNetworkUs = 50;    // polling after the last message; longer polling starves network threads of the kernel
constexpr std::int64_t kLostUs = 1'000;        // a longer yield gave the core to a program that computes;
constexpr std::int64_t kMostBusyUs = 200'000;  // for at most this time the rank then sleeps in place of yielding
constexpr std::int64_t kPollBusyUs = 20;       // less, because a rank that sleeps and wakes takes precedence
constexpr std::int64_t kHalfSaidUs = 1'000'000;
constexpr std::int64_t kDyingUs = 1'000'000;    // within this time a dying process has released its locks

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::int64_t us) {
  timespec t{us / 1'000'000, (us % 1'000'000) * 1000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &t, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void* page_of(void* address) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address) / blink::kPage * blink::kPage);
}

struct flock rank_lock(int rank) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

// The number of a call as the rank's user counts calls.
std::uint64_t shown(const blink::RankBlock& block, std::uint64_t sequence) {
  return sequence - std::min(sequence, block.life.own.load(std::memory_order_relaxed));
}

// One per thread, because streams and collectives may fail on different threads.
thread_local blink_error last_error{};

// Copies between this process's memory and another's by one system call (Linux's cross-memory attach). A ring copies
// twice, through memory that both processes map. This copies once, but costs a system call and a walk through the page
// table. The faster one depends on the machine and on the pages (variants.h); the system's settings may forbid it.
using Copy = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

bool copy_all(Copy copy, std::int64_t pid, std::uint64_t here, std::uint64_t there, std::size_t bytes) {
  while (bytes > 0) {
    const iovec own{reinterpret_cast<void*>(here), bytes};
    const iovec others{reinterpret_cast<void*>(there), bytes};
    const ssize_t done = copy(static_cast<pid_t>(pid), &own, 1, &others, 1, 0);
    if (done <= 0) return false;
    here += static_cast<std::uint64_t>(done);
    there += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

bool read_other(std::int64_t pid, void* into, std::uint64_t from, std::size_t bytes) {
  return copy_all(process_vm_readv, pid, reinterpret_cast<std::uint64_t>(into), from, bytes);
}

bool write_other(std::int64_t pid, std::uint64_t into, const void* from, std::size_t bytes) {
  return copy_all(process_vm_writev, pid, reinterpret_cast<std::uint64_t>(from), into, bytes);
}

// The PID namespace of this process; 0: unknown.
std::uint64_t own_processes() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? static_cast<std::uint64_t>(about.st_ino) : 0;
}

void say(blink_error& error, const char* text) {
  std::snprintf(error.text, sizeof error.text, "%s", text);
}

}  // namespace

cpu_set_t blink::freer_cores(const std::vector<int>& cores, int rank, const cpu_set_t& allowed) {
  cpu_set_t freer;
  CPU_ZERO(&freer);
  const auto ranks_on = [&](int core) { return std::count(cores.begin(), cores.end(), core); };
  const int core = cores[static_cast<std::size_t>(rank)];
  const bool highest = std::find(cores.begin() + rank + 1, cores.end(), core) == cores.end();
  if (core < 0 || !highest) return freer;
  for (int other = 0; other < CPU_SETSIZE; ++other) {
    if (CPU_ISSET(static_cast<std::size_t>(other), &allowed) && ranks_on(other) + 2 <= ranks_on(core))
      CPU_SET(static_cast<std::size_t>(other), &freer);
  }
  return freer;
}

blink_comm::blink_comm(const blink::Segment& segment, int rank, int fd)
    : segment_(segment), rank_(rank), fd_(fd), begun_(static_cast<std::size_t>(segment.ranks()), 0),
      heaps_(static_cast<std::size_t>(segment.ranks())), bells_(static_cast<std::size_t>(segment.ranks()), -1) {
  // With a core for every rank a wait is short and worth spinning for: a rank that yields to another program loses the
  // core for a time slice of some milliseconds. With fewer cores the awaited rank may need this core. So yield it at
  // once, and sleep late, because a wake-up costs more than ten yields.
  roomy_ = segment.ranks() <= segment.header().cores;
  usual_spins_ = spins_ = roomy_ ? kSpins : kSpinsCrowded;
  yield_us_ = roomy_ ? 200 : 2'000;
}

blink_comm::~blink_comm() {
  if (network_ != nullptr && has_failed()) {
    network_->shut(false);
    streams_->give_up();
  }
  for (Heap& heap : heaps_) {
    if (heap.mapped_here) blink_heap_unmap(heap.base, heap.bytes);
  }
  if (fd_ >= 0) {
    struct flock lock = rank_lock(rank_);
    lock.l_type = F_UNLCK;
    fcntl(fd_, F_SETLK, &lock);
  }
}

// Maps the memory of small calls through rings at the first of them; otherwise each of them would take page faults. Calls
// with flags inside their messages touch a few pages, and many groups make no others.
void blink_comm::populate() {
  if (populated_ || fd_ < 0) return;
  populated_ = true;
#if defined(MADV_POPULATE_WRITE)
  const blink_shape& shape = segment_.shape();
  const auto small = static_cast<std::size_t>(std::min<std::int64_t>(shape.staging_bytes, BLINK_SMALL_CALLS_BYTES));
  for (int bank = 0; bank < blink::kBanks; ++bank) {
    for (int r = 0; r < size(); ++r) {
      if (is_remote(r)) continue;
      madvise(page_of(segment_.staging(bank, r)), small, MADV_POPULATE_WRITE);
    }
  }
#endif
}

// A POSIX lock lives exactly as long as its process: children do not inherit it, and `kill -9` releases it.
bool blink_comm::lock_rank() {
  if (fd_ < 0) return true;
  struct flock lock = rank_lock(rank_);
  return fcntl(fd_, F_SETLK, &lock) == 0;
}

void blink_comm::set_network(std::unique_ptr<blink::Network> network, std::unique_ptr<blink::RemoteStreams> streams,
                             int bell) {
  network_ = std::move(network);
  streams_ = std::move(streams);
  streams_->set_rank(rank_);
  bells_[static_cast<std::size_t>(rank_)] = bell;
  spins_ = usual_spins_ = kSpinsNetwork;
}

void blink_comm::connect(int peer, const void* address, const void* stream_address) {
  for (blink::Entry& entry : segment_.rank(peer).entry) {  // its buffers are not in this host's memory
    entry.input.at.store(blink::kNowhere, std::memory_order_relaxed);
    entry.output.at.store(blink::kNowhere, std::memory_order_relaxed);
  }
  segment_.rank(peer).life.joined.store(blink::kRemote, std::memory_order_relaxed);
  network_->worker().connect(peer, address);
  streams_->connect(peer, 0, stream_address);
}

int blink_comm::stream_end(int peer) {
  if (const int code = ended_elsewhere()) return code;
  return fail(BLINK_PEER_LOST, blink::Site{BLINK_WAITS_STREAM, peer}, peer, "");
}

int blink_comm::check_network(int awaited) {
  if (const blink::MessageHeader* stranger = network_->stranger()) {
    blink::Entry& theirs = segment_.rank(stranger->sender).entry[stranger->sequence % blink::kBanks];
    theirs.what.store(stranger->what, std::memory_order_relaxed);
    theirs.count.store(stranger->count, std::memory_order_relaxed);
    return mismatch(stranger->sender, stranger->sequence);
  }
  if (awaited < 0 || !network_->is_broken(awaited)) return BLINK_OK;
  return fail(BLINK_PEER_LOST, blink::Site{BLINK_WAITS_MESSAGE, awaited}, awaited, "");
}

int blink_comm::begin(const blink::Call& call) {
  const std::uint64_t before = sequence();
  sequence_.store(before + 1, std::memory_order_relaxed);
  what_.store(call.what, std::memory_order_relaxed);
  count_.store(call.count, std::memory_order_relaxed);
  if (const int code = ended_elsewhere()) return code;
  if (before + 1 >= blink::kMostCalls)
    return fail(BLINK_INVALID, blink::Site{}, -1, "the communicator has no call numbers left; create a new one");
  const std::size_t old = static_cast<std::size_t>(before % blink::kBanks);
  for (int peer = 0; peer < size() && before != 0; ++peer) {
    auto& begun = begun_[static_cast<std::size_t>(peer)];
    if (peer == rank_ || begun >= before || is_remote(peer)) continue;
    const blink::Entry& entry = segment_.rank(peer).entry[old];
    const int code = wait([&] { return entry.sequence.load(std::memory_order_acquire) >= before; },
                          blink::Site{BLINK_WAITS_ENTRY, peer});
    if (code == BLINK_AGAIN) sequence_.store(before, std::memory_order_relaxed);
    if (code != BLINK_OK) return code;
    if (entry.signature.load(std::memory_order_relaxed) != signatures_[old]) return mismatch(peer, before);
    begun = before;
  }
  blink::Entry& mine = segment_.rank(rank_).entry[bank()];
  mine.signature.store(call.signature, std::memory_order_relaxed);
  mine.what.store(call.what, std::memory_order_relaxed);
  mine.count.store(call.count, std::memory_order_relaxed);
  mine.input.at.store(call.input, std::memory_order_relaxed);
  mine.input.bytes.store(call.input_bytes, std::memory_order_relaxed);
  mine.output.at.store(call.output, std::memory_order_relaxed);
  mine.output.bytes.store(call.output_bytes, std::memory_order_relaxed);
  mine.sequence.store(sequence(), std::memory_order_release);
  signatures_[bank()] = call.signature;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) wake_unfenced(peer);
  }
  ++stats_.calls;
  return BLINK_OK;
}

void blink_comm::finish() {
  segment_.rank(rank_).life.finished.store(sequence(), std::memory_order_relaxed);
  if (network_ != nullptr) spread(now_us());  // a rank that runs after another on one core never has to wait
}

int blink_comm::await_entry(int peer) {
  auto& begun = begun_[static_cast<std::size_t>(peer)];
  if (begun >= sequence() || peer == rank_ || is_remote(peer)) return BLINK_OK;
  const blink::Entry& theirs = entry(peer);
  const int code = wait([&] { return theirs.sequence.load(std::memory_order_acquire) >= sequence(); },
                        blink::Site{BLINK_WAITS_ENTRY, peer});
  if (code != BLINK_OK) return code;
  if (theirs.signature.load(std::memory_order_relaxed) != signatures_[bank()]) return mismatch(peer, sequence());
  begun = sequence();
  return BLINK_OK;
}

int blink_comm::mismatch(int peer, std::uint64_t sequence) {
  mismatched_ = sequence;
  return fail(BLINK_MISMATCH, blink::Site{BLINK_WAITS_ENTRY, peer}, peer, "");
}

void blink_comm::ring(int peer) {
  blink::Bell& bell = segment_.rank(peer).bell;
  bell.rings.fetch_add(1, std::memory_order_release);
  futex_wake_all(bell.rings);
  const int events = bells_[static_cast<std::size_t>(peer)];
  if (events >= 0) eventfd_write(events, 1);
}

void blink_comm::show(blink::Waiting& shown, const blink::Site& site, std::int64_t since_us) {
  const auto relaxed = std::memory_order_relaxed;
  shown.peer.store(site.peer, relaxed);
  shown.channel.store(site.channel, relaxed);
  shown.share.store(site.share, relaxed);
  shown.stage.store(site.stage, relaxed);
  shown.chunk.store(site.chunk, relaxed);
  shown.since_us.store(since_us, relaxed);
  shown.waits.store(site.waits, std::memory_order_release);
}

void blink_comm::show_stream(int peer, std::int64_t tag, std::int64_t since_us) {
  blink::Site site{since_us == 0 ? BLINK_WAITS_NOT : BLINK_WAITS_STREAM, peer};
  site.chunk = tag;
  show(segment_.rank(rank_).streaming, site, since_us);
}

// Ranks on one core wait until the others yield it. All of them are always runnable, so the system may leave two on one
// core for long while another core is idle, or an uneven three and one.
void blink_comm::spread(std::int64_t now) {
  const int cpu = sched_getcpu();
  std::atomic<std::int32_t>& mine = segment_.rank(rank_).bell.cpu;
  if (mine.load(std::memory_order_relaxed) != cpu + 1) mine.store(cpu + 1, std::memory_order_relaxed);
  if (now - spread_us_ < kSpreadUs) return;
  spread_us_ = now;
  std::vector<int> cores(static_cast<std::size_t>(size()), -1);
  for (int peer = 0; peer < size(); ++peer) {
    int& core = cores[static_cast<std::size_t>(peer)];
    if (is_remote(peer)) {
      core = network_->core_of(peer);
      continue;
    }
    const blink::Bell& theirs = segment_.rank(peer).bell;
    if (theirs.sleeping.load(std::memory_order_relaxed) != 0) continue;
    core = theirs.cpu.load(std::memory_order_relaxed) - 1;
  }
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const cpu_set_t freer = blink::freer_cores(cores, rank_, allowed);
  // A temporary mask moves the thread; then the allowed cores are restored.
  if (CPU_COUNT(&freer) > 0 && sched_setaffinity(0, sizeof freer, &freer) == 0)
    sched_setaffinity(0, sizeof allowed, &allowed);
}

// Whether another rank that is not asleep shares this rank's core. Yielding to it may have no effect: Linux first
// divides a core among sessions (autogroup), so ranks with a session each yield only to themselves.
bool blink_comm::crowded() const {
  if (roomy_) return false;
  const std::int32_t here = segment_.rank(rank_).bell.cpu.load(std::memory_order_relaxed);
  for (int peer = 0; peer < size(); ++peer) {
    const blink::Bell& theirs = segment_.rank(peer).bell;
    if (peer != rank_ && theirs.cpu.load(std::memory_order_relaxed) == here &&
        theirs.sleeping.load(std::memory_order_relaxed) == 0) {
      return true;
    }
  }
  return false;
}

// Lets a rank that polls on the same core go on. A program that computes keeps a yielded core for milliseconds: from the
// second time on, the rank then stops yielding, longer each time. One long yield may be chance.
std::int64_t blink_comm::yield_to_ranks(std::int64_t now) {
  sched_yield();
  ++stats_.yields;
  const std::int64_t after = now_us();
  const bool lost = after - now > kLostUs;
  busy_us_ = lost ? std::min(kMostBusyUs, 2 * busy_us_ + kLostUs) : busy_us_ / 2;
  if (lost && busy_us_ > kLostUs) busy_until_us_ = after + busy_us_;
  return after;
}

int blink_comm::wait_long(Condition ready, void* context, const blink::Site& site) {
  if (polling_) return not_yet(ready, context, site);
  const std::int64_t began = now_us();
  show(segment_.rank(rank_).waiting, site, began);
  spread(began);
  if (started_us_.load(std::memory_order_relaxed) == 0) started_us_.store(began, std::memory_order_relaxed);
  const std::int64_t until = started_us_.load(std::memory_order_relaxed) + timeout_us_;
  std::int64_t now = began, looked = began, moved = began, counted = began;
  int code = BLINK_OK;
  impatient_ = false;
  bool in_vain = false;
  std::int64_t pause_us = idle_.call == nullptr ? kSleepUs : kIdleUs;
  for (unsigned round = 0; !ready(context); ++round) {
    if ((code = ended_elsewhere()) != BLINK_OK) break;
    if (idle_.call != nullptr && now - began >= kIdleUs) pause_us = let_others_go_on(pause_us);
    if (network_ != nullptr) {
      if ((code = check_network(site.peer)) != BLINK_OK) break;
      if (network_->progress()) moved = now_us();
      now = now_us();
      const bool shares = shares_core(now);
      if (now - moved < (shares ? kPollBusyUs : kPollNetworkUs)) {
        if (!shares) yield_to_ranks(now);
        continue;
      }
    } else if (now - began < yield_us_ && !in_vain && !shares_core(now)) {
      now = yield_to_ranks(now);
      if (round % 8 != 7) continue;
      in_vain = now - counted < 8 * kSwitchUs && crowded();
      counted = now;
      continue;
    }
    impatient_ = true;
    sleep(ready, context, site.peer, std::max<std::int64_t>(1, std::min(pause_us, until - now)));
    ++stats_.sleeps;
    now = now_us();
    if (now - looked >= kLookAroundUs) {
      looked = now;
      if ((code = look_around(ready, context, site)) != BLINK_OK || ready(context)) break;
      if (interrupted()) {
        fail(BLINK_ABORTED, site, -1, "a signal interrupted the call");
        code = BLINK_INTERRUPTED;
        break;
      }
    }
    if (now > until && !ready(context)) {
      code = fail(BLINK_DEADLINE, site, site.peer, "");
      break;
    }
  }
  impatient_ = false;
  segment_.rank(rank_).waiting.waits.store(BLINK_WAITS_NOT, std::memory_order_relaxed);
  return code;
}

// Checks for dead peers and for peers that made a different call.
int blink_comm::look_around(Condition ready, void* context, const blink::Site& site) {
  const int lost = lost_peer(site.peer);
  if (ready(context)) return BLINK_OK;
  return lost >= 0 ? fail(BLINK_PEER_LOST, site, lost, "") : check_signatures();
}

// The polling form of a wait: it never blocks.
int blink_comm::not_yet(Condition ready, void* context, const blink::Site& site) {
  if (const int code = ended_elsewhere()) return code;
  const std::int64_t now = now_us();
  if (started_us_.load(std::memory_order_relaxed) == 0) started_us_.store(now, std::memory_order_relaxed);
  if (now - started_us_.load(std::memory_order_relaxed) > timeout_us_) return fail(BLINK_DEADLINE, site, site.peer, "");
  if (now - polled_us_ < kLookAroundUs) return BLINK_AGAIN;
  polled_us_ = now;
  const int code = look_around(ready, context, site);
  return code == BLINK_OK && !ready(context) ? BLINK_AGAIN : code;
}

// A peer that made a different call will never send the data that this rank waits for.
int blink_comm::check_signatures() {
  for (int peer = 0; peer < size(); ++peer) {
    const blink::Entry& theirs = entry(peer);
    if (peer != rank_ && theirs.sequence.load(std::memory_order_acquire) == sequence() && sequence() != 0 &&
        segment_.rank(rank_).entry[bank()].sequence.load(std::memory_order_relaxed) == sequence() &&
        theirs.signature.load(std::memory_order_relaxed) != signatures_[bank()]) {
      return mismatch(peer, sequence());
    }
  }
  return BLINK_OK;
}

// The rank of a process that has ended, or -1. A rank that left in order counts only if it is `awaited`.
int blink_comm::lost_peer(int awaited) const {
  if (fd_ < 0) return -1;
  for (int peer = 0; peer < size(); ++peer) {
    const blink::Life& life = segment_.rank(peer).life;
    if (peer == rank_ || life.joined.load(std::memory_order_acquire) != blink::kJoined) continue;
    if (life.left.load(std::memory_order_acquire) != 0) {
      if (peer == awaited) return peer;
      continue;
    }
    if (is_gone(peer) && life.left.load(std::memory_order_acquire) == 0) return peer;
  }
  return -1;
}

// Whether the peer's lock is free: its process has ended, or it has left.
bool blink_comm::is_gone(int peer) const {
  if (fd_ < 0) return false;
  struct flock lock = rank_lock(peer);
  return fcntl(fd_, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

// Sleeps until ready, woken, or the timeout; at most kSleepUs, so that deaths are noticed.
void blink_comm::sleep(Condition ready, void* context, int awaited, std::int64_t us, bool streams) {
  blink::Bell& bell = segment_.rank(rank_).bell;
  const std::uint32_t seen = bell.rings.load(std::memory_order_acquire);
  // Another thread of this rank may sleep on the same bell. If both set this at once, one of them misses its wake-up,
  // but sleeps no longer than kSleepUs.
  const bool alone = bell.sleeping.load(std::memory_order_relaxed) == 0;
  bell.awaited.store(alone ? awaited + 1 : 0, std::memory_order_relaxed);
  bell.sleeping.fetch_add(1, std::memory_order_seq_cst);
  // Pairs with the fence in wake(): either the waker sees the sleeper, or the sleeper sees the store.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!ready(context)) {
    if (network_ != nullptr && !streams) {
      network_->sleep(bells_[static_cast<std::size_t>(rank_)], std::min(kSleepUs, us));
    } else {
      futex_wait(bell.rings, seen, std::min(kSleepUs, us));
    }
  }
  bell.sleeping.fetch_sub(1, std::memory_order_relaxed);
}

int blink_comm::wait_stream_long(Condition ready, void* context, int peer, std::int64_t wait_us) {
  const std::int64_t began = now_us();
  std::int64_t now = began, looked = began;
  while (!ready(context)) {
    if (const int code = ended_elsewhere()) return code;
    if (now - began >= wait_us) return BLINK_OK;
    if (now - began < kStreamYieldUs) {
      sched_yield();
    } else {
      sleep(ready, context, -1, wait_us - (now - began), true);
    }
    now = now_us();
    if (now - looked < kLookAroundUs) continue;
    looked = now;
    const int lost = lost_peer(peer);
    if (lost < 0 || ready(context)) continue;
    return has_left(lost) ? lost_to_stream(lost)
                          : fail(BLINK_PEER_LOST, blink::Site{BLINK_WAITS_STREAM, peer}, lost, "");
  }
  return BLINK_OK;
}

int blink_comm::lost_to_stream(int peer) {
  if (const int code = ended_elsewhere()) return code;  // the reason why it left
  return keep(failure(BLINK_PEER_LOST, blink::Site{BLINK_WAITS_STREAM, peer}, peer, ""));
}

int blink_comm::keep(const blink_error& error) {
  last_error = error;
  return error.code;
}

// Keeps the error that ended the communicator. A root may be in its next call when the others detect that the last one
// failed. The first call that fails reports their error; later calls report that the communicator had ended before.
int blink_comm::keep_end(blink_error error) {
  const std::uint64_t call = sequence() + 1;
  std::uint64_t first = 0;
  end_heard_in_.compare_exchange_strong(first, call, std::memory_order_relaxed);
  error.earlier = shown(segment_.rank(rank_), sequence()) > error.sequence ? 1 : 0;
  error.heard = first != 0 && first < call ? 1 : 0;
  return keep(error);
}

// Runs pending signal handlers, which only Python's main thread does; true if one raised.
bool blink_comm::interrupted() {
  if (python_.ensure == nullptr) return false;
  const int state = python_.ensure();
  *python_.handling = static_cast<std::uint64_t>(pthread_self());
  const bool raised = python_.check_signals() != 0;
  *python_.handling = 0;
  if (raised) python_.fetch(&raised_[0], &raised_[1], &raised_[2]);
  python_.release(state);
  return raised;
}

// Calls the idle function. Returns the time that this rank may sleep then: very short while that function has work.
std::int64_t blink_comm::let_others_go_on(std::int64_t pause_us) {
  const std::int64_t before = now_us();
  idle_.call(idle_.context);
  return now_us() - before >= kIdleWorkUs ? 1 : std::clamp(2 * pause_us, kIdleUs, kIdleMostUs);
}

void blink_comm::take_raised(void* raised[3]) {
  for (int i = 0; i < 3; ++i) {
    raised[i] = raised_[i];
    raised_[i] = nullptr;
  }
}

int blink_comm::failed_elsewhere() {
  const blink::Header& header = segment_.header();
  if (header.failed.load(std::memory_order_acquire) == 2) {
    return keep_end(header.failure);
  }
  // 0: the failing rank has begun to write its error, but not yet the time.
  const std::int64_t since = header.failed_at_us.load(std::memory_order_relaxed);
  if (since == 0 || now_us() - since < kHalfSaidUs) return BLINK_OK;
  blink_error error{};
  error.code = BLINK_ABORTED;
  error.rank = rank_;
  error.peer = -1;
  error.sequence = shown(segment_.rank(rank_), sequence());
  say(error, "a rank failed and died before it could report the reason");
  return keep(error);
}

blink_error blink_comm::failure(int code, const blink::Site& site, int peer, const char* text) const {
  blink_error error{};
  error.code = code;
  error.rank = rank_;
  error.peer = peer;
  error.waits = site.waits;
  error.channel = site.channel;
  error.share = site.share;
  error.stage = site.stage;
  error.chunk = site.chunk;
  error.sequence = shown(segment_.rank(rank_), sequence());
  const std::int64_t started = started_us_.load(std::memory_order_relaxed);
  error.seconds_us = started == 0 ? 0 : now_us() - started;
  error.left = peer >= 0 && has_left(peer) ? 1 : 0;
  error.what[0] = error.sequence == 0 ? 0 : what_.load(std::memory_order_relaxed);
  error.count[0] = count_.load(std::memory_order_relaxed);
  if (code == BLINK_MISMATCH) {
    error.sequence = shown(segment_.rank(rank_), mismatched_);
    for (int side = 0; side < 2; ++side) {
      const blink::Entry& entry = segment_.rank(side == 0 ? rank_ : peer).entry[mismatched_ % blink::kBanks];
      error.what[side] = entry.what.load(std::memory_order_relaxed);
      error.count[side] = entry.count.load(std::memory_order_relaxed);
    }
  }
  say(error, text);
  return error;
}

int blink_comm::refuse(const char* text) { return keep(failure(BLINK_REFUSED, blink::Site{}, -1, text)); }

int blink_comm::fail(int code, const blink::Site& site, int peer, const char* text) {
  const blink_error error = failure(code, site, peer, text);
  blink::Header& header = segment_.header();
  std::uint32_t none = 0;
  if (header.failed.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) {
    header.failed_at_us.store(now_us(), std::memory_order_relaxed);
    header.failure = error;
    header.failed.store(2, std::memory_order_release);
    for (int other = 0; other < size(); ++other) ring(other);
    return keep_end(error);
  }
  // Another rank failed first: its failure is the cause, this one a consequence.
  const std::int64_t until = now_us() + kHalfSaidUs;
  while (header.failed.load(std::memory_order_acquire) != 2 && now_us() < until) sched_yield();
  return keep_end(header.failed.load(std::memory_order_acquire) == 2 ? header.failure : error);
}

int blink_comm::set_heap(int rank, void* base, int fd, std::uint64_t bytes) {
  if (rank < 0 || rank >= size()) return BLINK_INVALID;
  Heap& heap = heaps_[static_cast<std::size_t>(rank)];
  heap.base = static_cast<unsigned char*>(base);
  heap.bytes = bytes;
  if (base == nullptr) {
    heap.base = static_cast<unsigned char*>(blink_heap_map(fd, bytes));
    if (heap.base == nullptr) return BLINK_SYSTEM;
    heap.mapped_here = true;
  }
  return BLINK_OK;
}

std::uint64_t blink_comm::private_address(const blink::Lent& buffer, std::int64_t offset, std::size_t bytes) {
  const std::int64_t at = buffer.at.load(std::memory_order_relaxed);
  const std::int64_t size = buffer.bytes.load(std::memory_order_relaxed);
  const auto wanted = static_cast<std::int64_t>(bytes);
  if (!blink::is_private(at) || offset < 0 || wanted < 0 || wanted > size || offset > size - wanted) return 0;
  return static_cast<std::uint64_t>(blink::kNowhere - at) + static_cast<std::uint64_t>(offset);
}

// A copy of the segment's token in this rank's own memory, changed by the rank: a peer that reads it there reads the
// right process.
void blink_comm::show_secret() {
  std::memcpy(secret_, segment_.header().token, sizeof secret_);
  secret_[0] = static_cast<std::uint8_t>(secret_[0] + rank_);
  secret_[1] = static_cast<std::uint8_t>(secret_[1] + rank_ / 256);
  life().secret_at.store(reinterpret_cast<std::uint64_t>(secret_), std::memory_order_release);
}

bool blink_comm::can_cross() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (is_remote(peer)) continue;
    const blink::Life& theirs = segment_.rank(peer).life;
    // In another PID namespace the number belongs to another process, which must not be read.
    if (theirs.processes.load(std::memory_order_relaxed) != life().processes.load(std::memory_order_relaxed)) return false;
    std::uint8_t seen[sizeof secret_] = {}, wanted[sizeof secret_];
    std::memcpy(wanted, segment_.header().token, sizeof wanted);
    wanted[0] = static_cast<std::uint8_t>(wanted[0] + peer);
    wanted[1] = static_cast<std::uint8_t>(wanted[1] + peer / 256);
    if (!read_other(theirs.pid.load(std::memory_order_relaxed), seen,
                           theirs.secret_at.load(std::memory_order_acquire), sizeof seen) ||
        std::memcmp(seen, wanted, sizeof seen) != 0) {
      return false;
    }
  }
  return true;
}

bool blink_comm::read_private(int peer, void* into, std::uint64_t from, std::size_t bytes) const {
  return read_other(segment_.rank(peer).life.pid.load(std::memory_order_relaxed), into, from, bytes);
}

bool blink_comm::write_private(int peer, std::uint64_t into, const void* from, std::size_t bytes) const {
  return write_other(segment_.rank(peer).life.pid.load(std::memory_order_relaxed), into, from, bytes);
}

// A dying process loses its memory first, then the lock by which the others detect its death.
int blink_comm::private_failure(int peer, const blink::Site& site) {
  const std::int64_t until = now_us() + kDyingUs;
  const bool polled = polling_;
  polling_ = false;
  const int code = wait([&] { return now_us() > until; }, site);
  polling_ = polled;
  if (code != BLINK_OK) return code;
  return fail(BLINK_SYSTEM, site, peer,
              "the system denies this rank cross-memory copies with the peer; set BLINK_CROSS_MEMORY=0 to avoid them");
}

// Store first, then check: a rank that fails a call does it in the opposite order.
int blink_comm::start_writing() {
  life().writing.store(1, std::memory_order_seq_cst);
  if (segment_.header().failed.load(std::memory_order_seq_cst) == 0) return BLINK_OK;
  stop_writing();
  return fail(BLINK_ABORTED, blink::Site{}, -1, "another rank failed");  // fail() waits for that rank's own error
}

void blink_comm::await_writers() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::int64_t until = now_us() + kDyingUs;
  for (int peer = 0; peer < size(); ++peer) {
    const blink::Life& theirs = segment_.rank(peer).life;
    while (peer != rank_ && theirs.writing.load(std::memory_order_acquire) != 0 && now_us() < until &&
           !is_gone(peer)) {
      sched_yield();
    }
  }
}

std::int64_t blink_comm::heap_offset(const void* memory, std::int64_t bytes) const {
  const Heap& own = heaps_[static_cast<std::size_t>(rank_)];
  const auto* at = static_cast<const unsigned char*>(memory);
  if (own.base == nullptr || at < own.base || bytes < 0 ||
      static_cast<std::uint64_t>(at - own.base) + static_cast<std::uint64_t>(bytes) > own.bytes) {
    return blink::kNowhere;
  }
  return at - own.base;
}

extern "C" {

blink_comm* blink_attach(void* memory, uint64_t bytes, int32_t rank, const uint8_t token[16], int fd,
                         blink_error* error) {
  *error = blink_error{};
  error->peer = -1;
  error->rank = rank;
  blink::Segment segment;
  if (!segment.open(memory, bytes, token)) {
    error->code = BLINK_INVALID;
    say(*error, "this shared memory belongs to another job or another version of blink-ccl (magic, version, token or size "
               "differ); install one version for all ranks");
    return nullptr;
  }
  if (rank < 0 || rank >= segment.ranks()) {
    error->code = BLINK_INVALID;
    const std::string last = std::to_string(segment.ranks() - 1);
    say(*error, ("expected a rank from 0 to " + last + ", got " + std::to_string(rank)).c_str());
    return nullptr;
  }
  blink::Life& life = segment.rank(rank).life;
  std::uint32_t absent = blink::kAbsent;
  if (!life.joined.compare_exchange_strong(absent, blink::kJoining)) {
    error->code = BLINK_INVALID;
    say(*error, "another process has already joined as this rank");
    return nullptr;
  }
  auto* comm = new blink_comm(segment, rank, fd);
  if (!comm->lock_rank()) {
    life.joined.store(blink::kAbsent);
    delete comm;
    error->code = BLINK_SYSTEM;
    say(*error, "the rank's lock on the segment cannot be taken");
    return nullptr;
  }
  life.pid.store(getpid());
  life.processes.store(own_processes());
  comm->show_secret();
  blink::prepare_copies();
  life.joined.store(blink::kJoined, std::memory_order_release);
  return comm;
}

void blink_detach(blink_comm* comm) {
  if (comm == nullptr) return;
  comm->segment().rank(comm->rank()).life.left.store(1, std::memory_order_release);
  for (int peer = 0; peer < comm->size(); ++peer) comm->wake(peer);
  delete comm;
}

void blink_count_from_here(blink_comm* comm) { comm->count_from_here(); }

void blink_share_core(blink_comm* comm, int long_waits) { comm->share_core(long_waits != 0); }

void blink_abort(blink_comm* comm, const char* text) {
  comm->fail(BLINK_ABORTED, blink::Site{}, -1, text);
}

void blink_report_lost(blink_comm* comm, int32_t rank) { comm->fail(BLINK_PEER_LOST, blink::Site{}, rank, ""); }

int blink_set_heap(blink_comm* comm, int32_t rank, void* base, int fd, uint64_t bytes) {
  return comm->set_heap(rank, base, fd, bytes);
}

void blink_set_python(blink_comm* comm, const blink_python* python) { comm->set_python(*python); }

int blink_set_threads(blink_comm* comm, int32_t threads) {
  if (threads < 1 || threads > BLINK_MOST_THREADS) return BLINK_INVALID;
  comm->set_threads(threads);
  return BLINK_OK;
}

void blink_set_idle(blink_comm* comm, const blink_idle* idle) { comm->set_idle(*idle); }


void blink_take_raised(blink_comm* comm, void* raised[3]) { comm->take_raised(raised); }

int blink_can_cross(const blink_comm* comm) { return comm->can_cross() ? 1 : 0; }

void blink_get_stats(blink_comm* comm, blink_stats* stats) {
  const blink::Counters& c = comm->stats();
  *stats = {c.calls.count(),        c.messages.count(),     c.message_bytes.count(), c.inline_bytes.count(),
            c.staged_bytes.count(), c.direct_read_bytes.count(), c.direct_write_bytes.count(),  c.crossed_bytes.count(),
            c.network_bytes.count(), c.stepwise.count(),    c.yields.count(),            c.sleeps.count(),
            c.parts.count()};
}

int blink_record(blink_comm* comm, int64_t events, int64_t least_bytes) {
  if (comm == nullptr || events < 0 || events > BLINK_MOST_EVENTS) return BLINK_INVALID;
  return comm->recorder().start(static_cast<std::size_t>(events), least_bytes) ? BLINK_OK : BLINK_SYSTEM;
}

int64_t blink_recorded(const blink_comm* comm, blink_event* events, int64_t room, uint64_t* dropped) {
  const auto most = static_cast<std::size_t>(std::max<int64_t>(0, room));
  return static_cast<int64_t>(comm->recorder().read(events, most, *dropped));
}

void blink_last_error(blink_comm*, blink_error* error) { *error = last_error; }

int blink_describe(const void* memory, uint64_t bytes, blink_status* statuses, int32_t room) {
  blink::Segment segment;
  if (!segment.open(const_cast<void*>(memory), bytes, nullptr)) return -1;
  const std::int64_t now = now_us();
  const auto relaxed = std::memory_order_relaxed;
  for (int r = 0; r < segment.ranks() && r < room; ++r) {
    const blink::RankBlock& block = segment.rank(r);
    blink_status& s = statuses[r];
    s = blink_status{};
    s.pid = block.life.pid.load(relaxed);
    s.processes = block.life.processes.load(relaxed);
    s.joined = block.life.joined.load(relaxed) == blink::kJoined ? 1 : 0;
    s.remote = block.life.joined.load(relaxed) == blink::kRemote ? 1 : 0;
    s.left = block.life.left.load(relaxed);
    s.finished = shown(block, block.life.finished.load(relaxed));
    for (const blink::Entry& entry : block.entry) {
      if (entry.sequence.load(std::memory_order_acquire) > s.sequence) {
        s.sequence = entry.sequence.load(relaxed);
        s.what = entry.what.load(relaxed);
        s.count = entry.count.load(relaxed);
      }
    }
    s.sequence = shown(block, s.sequence);
    const bool in_call = block.waiting.waits.load(relaxed) != BLINK_WAITS_NOT;
    const blink::Waiting& shown = in_call ? block.waiting : block.streaming;
    s.waits = shown.waits.load(std::memory_order_acquire);
    s.peer = shown.peer.load(relaxed);
    s.channel = shown.channel.load(relaxed);
    s.share = shown.share.load(relaxed);
    s.stage = shown.stage.load(relaxed);
    s.chunk = shown.chunk.load(relaxed);
    s.waiting_us = s.waits == BLINK_WAITS_NOT ? 0 : now - shown.since_us.load(relaxed);
  }
  return segment.ranks();
}

int blink_describe_failure(const void* memory, uint64_t bytes, blink_error* error) {
  blink::Segment segment;
  if (!segment.open(const_cast<void*>(memory), bytes, nullptr)) return -1;
  const blink::Header& header = segment.header();
  if (header.failed.load(std::memory_order_acquire) != 2) return 0;
  *error = header.failure;
  return 1;
}

}  // extern "C"
