#include "core.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blink/host.h"
#include "bundles.h"
#include "deadline.h"
#include "environment.h"
#include "job.h"
#include "log.h"
#include "names.h"
#include "report.h"
#include "segment.h"

namespace blink::mpi {
namespace {

constexpr std::size_t kMostOps = 256;
constexpr std::int32_t kEarlyCalls = 32;
constexpr double kForeverS = 1e9;  // MPI waits without limit unless BLINK_TIMEOUT is set
constexpr std::size_t kKeptScratch = 64 << 20;

bool operator==(const blink_mpi_call& a, const blink_mpi_call& b) {
  return a.count == b.count && a.collective == b.collective && a.root == b.root && a.dtype == b.dtype && a.op == b.op;
}

// The key of a prepared operation. `blocks`: lengths and places of the sources, then of the targets; empty if all
// blocks have one length.
struct Key {
  blink_mpi_call call;
  std::vector<std::int64_t> blocks;
};

struct Hash {
  std::size_t operator()(const Key& key) const {
    const blink_mpi_call& call = key.call;
    std::uint64_t hash = static_cast<std::uint64_t>(call.count);
    for (const std::uint64_t part : {static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.collective)),
                                     static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.root)),
                                     static_cast<std::uint64_t>(call.dtype), static_cast<std::uint64_t>(call.op)}) {
      hash = (hash ^ part) * 0x9e3779b97f4a7c15;
    }
    for (const std::int64_t number : key.blocks) {
      hash = (hash ^ hash >> 32 ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15;
    }
    return static_cast<std::size_t>(hash ^ hash >> 32);
  }
};
struct Same {
  bool operator()(const Key& a, const Key& b) const { return a.call == b.call && a.blocks == b.blocks; }
};

struct Prepared {
  Key key;
  blink_op* op;         // null: the call is too large for the plans, or
  bool wrong;           // this rank's blocks are invalid
  std::uint64_t bytes;  // per call, for the report
  std::uint64_t calls;
};

// The operations used last. Ranks that make the same calls evict the same ones. Blocks of different lengths are known
// to each rank only, so they have a cache of their own.
struct Cache {
  std::list<Prepared> prepared;  // the most recent one first
  std::unordered_map<Key, std::list<Prepared>::iterator, Hash, Same> known;
};

// A rank's description before a communicator is created; `same` must be equal on all ranks, byte for byte.
struct Rank {
  struct {
    char version[32];
    std::uint64_t host, binding;
  } same;
  std::int32_t pid;
  char refuses[160];  // the reason why it cannot take part; empty if it can
  cpu_set_t cores;
};

// Rank 0's message to the others.
struct Offer {
  Meeting meeting;
  char bundle[1024], refuses[512];
};

void copy_text(char* target, std::size_t room, const std::string& text) {
  const std::size_t length = std::min(text.size(), room - 1);
  std::memcpy(target, text.data(), length);
  target[length] = '\0';
}

// The calls on a communicator that go to MPI before its ranks share memory. mpirun passes the variable to all ranks.
std::int32_t early_calls() {
  const char* const text = variable("BLINK_MPI_AFTER");
  return text == nullptr ? kEarlyCalls : std::max(0, std::atoi(text));
}

// The bytes of a call in all; with blocks of different sizes, those that this rank knows.
std::uint64_t bytes_of(const Key& key, int size, std::int32_t sources) {
  const blink_mpi_call& call = key.call;
  std::int64_t elements = call.count;
  if (key.blocks.empty()) {
    const bool whole = call.collective == BLINK_BROADCAST || call.collective == BLINK_REDUCE || call.collective == BLINK_ALLREDUCE;
    elements *= whole ? 1 : size;
  } else {
    const auto first = key.blocks.begin(), second = first + 2 * sources;
    const auto targets = (key.blocks.end() - second) / 2;
    elements = std::max(std::accumulate(first, first + sources, std::int64_t{0}),
                        std::accumulate(second, second + targets, std::int64_t{0}));
  }
  return static_cast<std::uint64_t>(elements) * bytes_of_element(call.dtype);
}

}  // namespace

class Communicator final : public blink_mpi_comm {
 public:
  explicit Communicator(std::int32_t why) : blink_mpi_comm{0, why, why == kEarly ? early_calls() : 0, 0, 0} {}
  ~Communicator() { leave(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  void make(const blink_mpi_peers& peers);
  int run(const blink_mpi_call& wanted, const void* input, void* output);
  int run(const blink_mpi_call& wanted, const blink_mpi_blocks& sources, const blink_mpi_blocks& targets, const void* input,
          void* output);
  void* scratch(int number, std::size_t bytes);
  // Reports the calls served since the last report.
  void tell();

 private:
  // Each of these exchanges data among all ranks, with the same outcome on all. False and `why` on an error.
  bool know(const blink_mpi_peers& peers, std::string* why);
  bool agree_on_crossing(const blink_mpi_peers& peers, std::string* why);
  bool meet(const blink_mpi_peers& peers, std::string* why);
  Prepared* find(const Key& wanted, std::int32_t sources);
  Prepared prepare(const Key& wanted, std::int32_t sources);
  int run(Prepared& prepared, const void* input, void* output);
  Prepared* find_blocks(const blink_mpi_call& wanted, const blink_mpi_blocks& sources, const blink_mpi_blocks& targets);
  void drop(Cache& cache, std::list<Prepared>::iterator which);
  void count(Prepared& prepared);
  void leave();
  int failed(const blink_mpi_call& wanted);
  std::string where(const blink_mpi_call& call) const;

  int cores_ = 1;
  std::int64_t timeout_us_ = 0;
  std::string key_;
  std::shared_ptr<blink_bundle> bundle_;
  std::unique_ptr<SharedSegment> segment_;
  bool crosses_ = false;
  bool failed_ = false;  // a call has reported the error
  Prepared* last_ = nullptr;
  Key wanted_{};  // of a call with blocks
  Cache even_, uneven_;
  ServedCalls served_;
  std::vector<char> scratch_[2];
};

namespace {

// This process's communicators, for the report at exit.
struct Living {
  std::mutex mutex;
  std::set<Communicator*> all;
  bool finished = false;
  pid_t owner = 0;
};
Living& living() {
  static Living* const communicators = new Living;
  return *communicators;
}

// Reports at the exit of a program that does not call MPI_Finalize.
void tell_all() {
  Living& here = living();
  if (here.owner != getpid()) return;  // a forked child has run none of these calls
  const std::lock_guard<std::mutex> lock(here.mutex);
  for (Communicator* communicator : here.all) communicator->tell();
}

// GPU memory is indistinguishable here, and perhaps only some ranks pass it. So with a GPU library MPI runs all calls.
bool has_cuda() {
  for (const char* name : {"libcuda.so.1", "libamdhip64.so"}) {
    void* const handle = dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
    if (handle == nullptr) continue;
    dlclose(handle);
    return true;
  }
  return false;
}

// A communicator keeps descriptors, and the program must not run out of them. Each rank meets the others by a socket.
bool has_descriptors(int size) {
  rlimit most{};
  DIR* const open_ones = opendir("/proc/self/fd");
  if (open_ones == nullptr) return errno != EMFILE && errno != ENFILE;
  getrlimit(RLIMIT_NOFILE, &most);
  rlim_t count = 0;
  while (readdir(open_ones) != nullptr) ++count;
  closedir(open_ones);
  const rlim_t spare = std::max(most.rlim_cur / 4, static_cast<rlim_t>(size + 16));
  return most.rlim_cur == RLIM_INFINITY || count + spare < most.rlim_cur;
}

Rank this_rank(int size) {
  Rank own;
  std::memset(&own, 0, sizeof own);
  copy_text(own.same.version, sizeof own.same.version, blink_host_version());
  own.same.host = host_number();
  own.same.binding = static_cast<std::uint64_t>(blink_abi_version()) << 32 | BLINK_MPI_BINDING_VERSION;
  own.pid = static_cast<std::int32_t>(getpid());
  if (is_disabled()) copy_text(own.refuses, sizeof own.refuses, "BLINK_DISABLE=1");
  if (!has_descriptors(size)) copy_text(own.refuses, sizeof own.refuses, "few file descriptors are left (ulimit -n)");
  if (has_cuda()) copy_text(own.refuses, sizeof own.refuses, "a GPU library is loaded; Blink serves host memory only");
  if (sched_getaffinity(0, sizeof own.cores, &own.cores) != 0) CPU_ZERO(&own.cores);
  return own;
}

std::string of_rank(int rank, const std::string& what) { return "rank " + std::to_string(rank) + ": " + what; }

// A rank's call as text.
std::string call_text(std::uint64_t what, std::int64_t elements) {
  const auto collective = static_cast<std::uint32_t>(what & 0xff) - 1;
  const auto dtype = static_cast<std::uint32_t>(what >> 8 & 0xff), op = static_cast<std::uint32_t>(what >> 16 & 0xff);
  const std::string blocks = elements == 0 ? "blocks of several sizes, " : std::to_string(elements) + " × ";
  std::string text = std::string(name_of_collective(collective)) + " of " + blocks;
  text += name_of_dtype(dtype);
  if (has_operation(collective)) text += std::string(", ") + name_of_operation(op);
  return text + ", root " + std::to_string(what >> 24 & 0xffffffff);
}

std::string why_it_failed(const blink_error& error) {
  const std::string call = "call " + std::to_string(error.sequence);
  const std::string peer = "rank " + std::to_string(error.peer);
  switch (error.code) {
    case BLINK_DEADLINE:
      return call + ": rank " + std::to_string(error.rank) + " waited " +
             std::to_string(error.seconds_us / 1'000'000) + " s for " + peer + " (BLINK_TIMEOUT)";
    case BLINK_PEER_LOST:
      return call + ": " + peer + (error.left != 0 ? " has freed the communicator" : "'s process has ended");
    case BLINK_MISMATCH:
      return call + ": rank " + std::to_string(error.rank) + " calls " + call_text(error.what[0], error.count[0]) +
             ", " + peer + " calls " + call_text(error.what[1], error.count[1]) +
             "; collective, size, type, operation, root and order of calls must agree on all ranks";
    case BLINK_INVALID:
    case BLINK_REFUSED:
      return call + ": rank " + std::to_string(error.rank) + ": " + error.text;
    default:
      return call + ": native code " + std::to_string(error.code) + ": " + error.text;
  }
}

}  // namespace

void Communicator::make(const blink_mpi_peers& peers) {
  rank = peers.rank;
  size = peers.size;
  reason = kSetup;
  std::string why;
  serves = know(peers, &why) && meet(peers, &why) ? 1 : 0;
  if (serves == 0) {
    keep_why(why);
    leave();
    return;
  }
  const blink_idle idle = {peers.progress, peers.self};
  blink_set_idle(segment_->comm(), &idle);
  timeout_us_ = static_cast<std::int64_t>(seconds_from("BLINK_TIMEOUT", kForeverS) * 1e6);
  Living& here = living();
  const std::lock_guard<std::mutex> lock(here.mutex);
  if (here.owner == 0) std::atexit(tell_all);
  here.owner = getpid();
  here.all.insert(this);
}

bool Communicator::know(const blink_mpi_peers& peers, std::string* why) {
  const Rank own = this_rank(size);
  std::vector<Rank> all(static_cast<std::size_t>(size));
  if (peers.allgather(peers.self, &own, all.data(), sizeof own) != 0) return *why = "MPI_Allgather failed", false;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int r = 0; r < size; ++r) {
    const Rank& one = all[static_cast<std::size_t>(r)];
    if (one.refuses[0] != '\0') return *why = of_rank(r, one.refuses), false;
    if (std::memcmp(&one.same, &all[0].same, sizeof one.same) != 0) {
      const bool host = one.same.host != all[0].same.host;
      *why = of_rank(r, host ? "it is on another host than rank 0" : "it has another version of Blink than rank 0");
      return false;
    }
    CPU_OR(&cores, &cores, &one.cores);
  }
  cores_ = std::max(1, CPU_COUNT(&cores));
  return true;
}

bool Communicator::meet(const blink_mpi_peers& peers, std::string* why) {
  Offer offer{};
  segment_ = std::make_unique<SharedSegment>();
  if (rank == 0) {
    const std::string bundle = bundle_for(size, why);
    copy_text(offer.bundle, sizeof offer.bundle, bundle);
    if (bundle.empty() || !segment_->open_meeting(size, &offer.meeting, why)) {
      copy_text(offer.refuses, sizeof offer.refuses, *why);
    }
  }
  // The other ranks wait here while rank 0 plans, within its timeout.
  std::vector<Offer> offers(static_cast<std::size_t>(size));
  if (peers.allgather(peers.self, &offer, offers.data(), sizeof offer) != 0) return *why = "MPI_Allgather failed", false;
  offer = offers[0];
  if (offer.refuses[0] != '\0') return *why = of_rank(0, offer.refuses), false;
  char refuses[256] = {};
  bundle_ = open_bundle(offer.bundle, size, why);
  blink_shape shape{};
  if (bundle_ != nullptr) blink_bundle_shape(bundle_.get(), &shape);
  if (bundle_ == nullptr || !segment_->join(offer.meeting, rank, size, shape, cores_, why)) {
    copy_text(refuses, sizeof refuses, why->empty() ? "it cannot join" : *why);
  }
  std::vector<char> all(sizeof refuses * static_cast<std::size_t>(size));
  if (peers.allgather(peers.self, refuses, all.data(), sizeof refuses) != 0) return *why = "MPI_Allgather failed", false;
  for (int r = 0; r < size; ++r) {
    const char* const refusal = all.data() + sizeof refuses * static_cast<std::size_t>(r);
    if (*refusal != '\0') return *why = of_rank(r, refusal), false;
  }
  key_ = shim::hex(offer.meeting.secret, 8);
  return agree_on_crossing(peers, why);
}

// Decides whether all ranks let the kernel copy between their address spaces; none of them has left yet.
bool Communicator::agree_on_crossing(const blink_mpi_peers& peers, std::string* why) {
  const char* const wish = std::getenv("BLINK_CROSS_MEMORY");
  const std::int32_t mine = (wish == nullptr || std::strcmp(wish, "0") != 0) && blink_can_cross(segment_->comm()) != 0;
  std::vector<std::int32_t> all(static_cast<std::size_t>(size));
  if (peers.allgather(peers.self, &mine, all.data(), sizeof mine) != 0) return *why = "MPI_Allgather failed", false;
  crosses_ = std::all_of(all.begin(), all.end(), [](std::int32_t one) { return one != 0; });
  return true;
}

int Communicator::run(const blink_mpi_call& wanted, const void* input, void* output) {
  Prepared* prepared = last_;
  if (__builtin_expect(prepared == nullptr || !(prepared->key.call == wanted), 0)) prepared = find({wanted, {}}, 0);
  return run(*prepared, input, output);
}

int Communicator::run(const blink_mpi_call& wanted, const blink_mpi_blocks& sources, const blink_mpi_blocks& targets,
                      const void* input, void* output) {
  return run(*find_blocks(wanted, sources, targets), input, output);
}

int Communicator::run(Prepared& prepared, const void* input, void* output) {
  if (__builtin_expect(prepared.op == nullptr, 0)) return prepared.wrong ? BLINK_MPI_FAILED : BLINK_MPI_NO_PLAN;
  ++prepared.calls;
  const int code = blink_op_run(prepared.op, input, output, 0, 1.0, timeout_us_);
  return code == BLINK_OK ? BLINK_MPI_DONE : failed(prepared.key.call);
}

Prepared* Communicator::find_blocks(const blink_mpi_call& wanted, const blink_mpi_blocks& sources,
                                    const blink_mpi_blocks& targets) {
  wanted_.call = wanted;
  wanted_.blocks.clear();
  for (const blink_mpi_blocks* side : {&sources, &targets}) {
    wanted_.blocks.insert(wanted_.blocks.end(), side->lengths, side->lengths + side->count);
    wanted_.blocks.insert(wanted_.blocks.end(), side->places, side->places + side->count);
  }
  Prepared* const prepared = last_;
  return prepared != nullptr && Same()(prepared->key, wanted_) ? prepared : find(wanted_, sources.count);
}

Prepared* Communicator::find(const Key& wanted, std::int32_t sources) {
  Cache& cache = wanted.blocks.empty() ? even_ : uneven_;
  const auto entry = cache.known.find(wanted);
  if (entry != cache.known.end()) {
    cache.prepared.splice(cache.prepared.begin(), cache.prepared, entry->second);
  } else {
    if (cache.prepared.size() >= kMostOps) drop(cache, std::prev(cache.prepared.end()));
    cache.prepared.push_front(prepare(wanted, sources));
    cache.known[wanted] = cache.prepared.begin();
  }
  return last_ = &cache.prepared.front();
}

Prepared Communicator::prepare(const Key& wanted, std::int32_t sources) {
  const blink_mpi_call& call = wanted.call;
  const blink_request request = {call.collective, call.root, call.count, call.dtype, call.op, crosses_};
  blink_error error{};
  Prepared made{wanted, nullptr, false, bytes_of(wanted, size, sources), 0};
  if (wanted.blocks.empty()) {
    made.op = blink_bundle_op(bundle_.get(), segment_->comm(), &request, &error);
    return made;
  }
  const std::int64_t* const first = wanted.blocks.data();
  const std::int64_t* const second = first + 2 * sources;
  const auto targets = (static_cast<std::int64_t>(wanted.blocks.size()) - 2 * sources) / 2;
  const blink_blocks blocks = {first, first + sources, second, second + targets};
  made.op = blink_bundle_op_of_blocks(bundle_.get(), segment_->comm(), &request, &blocks, &error);
  made.wrong = made.op == nullptr && error.code != BLINK_UNSUPPORTED;
  if (made.wrong) say(where(call) + error.text + "\n");
  return made;
}

void Communicator::drop(Cache& cache, std::list<Prepared>::iterator which) {
  count(*which);
  blink_op_destroy(which->op);
  cache.known.erase(which->key);
  cache.prepared.erase(which);
}

void Communicator::count(Prepared& prepared) {
  if (prepared.calls == 0) return;
  const blink_mpi_call& call = prepared.key.call;
  const std::uint64_t bytes = prepared.bytes;
  Served& served = served_[{call.collective, call.dtype, call.op}];
  served.calls += prepared.calls;
  served.bytes += prepared.calls * bytes;
  served.least = std::min(served.least, bytes);
  served.most = std::max(served.most, bytes);
  prepared.calls = 0;
}

int Communicator::failed(const blink_mpi_call& wanted) {
  blink_error error{};
  blink_last_error(segment_->comm(), &error);
  const bool before = error.code != BLINK_REFUSED && std::exchange(failed_, true);
  say(where(wanted) + (before ? "the communicator failed in an earlier call: " : "") + why_it_failed(error) + "\n");
  return BLINK_MPI_FAILED;
}

std::string Communicator::where(const blink_mpi_call& call) const {
  return "blink: " + std::string(name_of_collective(call.collective)) + " on communicator " + key_.substr(0, 8) + ", rank " +
         std::to_string(rank) + " of " + std::to_string(size) + ": ";
}

void* Communicator::scratch(int number, std::size_t bytes) {
  std::vector<char>& memory = scratch_[number];
  if (memory.size() > kKeptScratch && bytes <= kKeptScratch) std::vector<char>().swap(memory);
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

// A second call has no effect.
void Communicator::leave() {
  {
    Living& here = living();
    const std::lock_guard<std::mutex> lock(here.mutex);
    here.all.erase(this);
  }
  last_ = nullptr;
  tell();
  for (Cache* cache : {&even_, &uneven_}) {
    while (!cache->prepared.empty()) drop(*cache, cache->prepared.begin());
  }
  segment_.reset();
}

void Communicator::tell() {
  for (Cache* cache : {&even_, &uneven_}) {
    for (Prepared& prepared : cache->prepared) count(prepared);
  }
  report_served(key_, rank, size, served_);
  served_.clear();
}

}  // namespace blink::mpi

using blink::mpi::Communicator;

namespace {

// Catches all exceptions, and returns `otherwise` then.
template <class Body, class Result>
Result guarded(Body body, Result otherwise) {
  try {
    return body();
  } catch (const std::exception& error) {
    blink::mpi::say(std::string("blink: internal error: ") + error.what() + "\n");
  }
  return otherwise;
}

}  // namespace

extern "C" {

blink_mpi_comm* blink_mpi_comm_passing(int32_t reason) {
  return guarded([&]() -> blink_mpi_comm* { return new Communicator(reason); }, static_cast<blink_mpi_comm*>(nullptr));
}

blink_mpi_comm* blink_mpi_comm_make(const blink_mpi_peers* peers) {
  return guarded(
      [&]() -> blink_mpi_comm* {
        auto made = std::make_unique<Communicator>(kSetup);
        made->make(*peers);
        return made.release();
      },
      static_cast<blink_mpi_comm*>(nullptr));
}

void blink_mpi_comm_free(blink_mpi_comm* comm) { delete static_cast<Communicator*>(comm); }

void blink_mpi_announce(void) {
  guarded([] { return blink::mpi::announce(), 0; }, 0);
}

int blink_mpi_are_here(const int* world_ranks, int count) {
  blink::mpi::Living& here = blink::mpi::living();
  {
    const std::lock_guard<std::mutex> lock(here.mutex);
    if (here.finished) return 0;
  }
  return guarded([&] { return blink::mpi::are_here(world_ranks, count) ? 1 : 0; }, 0);
}

uint64_t blink_mpi_host(void) { return guarded([] { return blink::mpi::host_number(); }, std::uint64_t{0}); }

int blink_mpi_run(blink_mpi_comm* comm, const blink_mpi_call* call, const void* input, void* output) {
  return guarded([&] { return static_cast<Communicator*>(comm)->run(*call, input, output); },
                 static_cast<int>(BLINK_MPI_FAILED));
}

int blink_mpi_run_blocks(blink_mpi_comm* comm, const blink_mpi_call* call, const blink_mpi_blocks* sources,
                         const blink_mpi_blocks* targets, const void* input, void* output) {
  return guarded([&] { return static_cast<Communicator*>(comm)->run(*call, *sources, *targets, input, output); },
                 static_cast<int>(BLINK_MPI_FAILED));
}

void* blink_mpi_scratch(blink_mpi_comm* comm, int number, size_t bytes) {
  return guarded([&] { return static_cast<Communicator*>(comm)->scratch(number, bytes); }, static_cast<void*>(nullptr));
}

void blink_mpi_finish(void) {
  blink::mpi::Living& here = blink::mpi::living();
  const std::lock_guard<std::mutex> lock(here.mutex);
  here.finished = true;
}
}
