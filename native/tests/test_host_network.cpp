// Hosts in one process, with a rank each: calls and streams over UCX's TCP, routes, ranks that leave, and a lost connection.
// Sanitizers: address, thread.
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "check.h"
#include "plans.h"
#include "ranks.h"

// UCX's memory of a connection that a failed rank has left open hangs on a mapping, which LeakSanitizer does not read.
extern "C" const char* __lsan_default_suppressions() { return "leak:ucs_calloc"; }

namespace {

using namespace blink_test;

constexpr blink_shape shape(int ranks) { return {ranks, 64, 2 << 20, 16 * 4160, 4096}; }
constexpr std::int64_t kSlots = 2;

std::string library() {
  const char* stated = std::getenv("BLINK_UCX_LIB");
  return stated == nullptr ? "libucp.so.0" : stated;
}

// One rank and its host's memory.
class Host {
 public:
  Host(int rank, int size) : room_(shape(size), 4096, 2), comm_(room_.attach(rank, false)), rank_(rank), bell_(eventfd(0, EFD_NONBLOCK)) {}
  ~Host() {
    leave();
    close(bell_);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // The rank's address on a rail; empty without UCX.
  std::string open(std::int32_t rail) {
    blink_error error;
    std::string address(1 << 14, '\0');
    const auto room = static_cast<std::int64_t>(address.size());
    const std::int64_t bytes = rail == 0 ? blink_open_network(comm_, library().c_str(), nullptr, bell_, address.data(), room, &error)
                                         : blink_open_rail(comm_, rail, "lo", 1, address.data(), room, &error);
    address.resize(bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
    return address;
  }
  void connect(int peer, std::int32_t rail, const std::string& address) {
    expect(blink_connect(comm_, peer, rail, address.data(), static_cast<std::int64_t>(address.size())) == BLINK_OK,
           "rank %d cannot connect", rank_);
  }
  void leave() {
    if (comm_ != nullptr) blink_detach(comm_);
    comm_ = nullptr;
  }
  blink_comm* comm() const { return comm_; }
  int rank() const { return rank_; }

 private:
  Room room_;
  blink_comm* comm_;
  int rank_, bell_;
};

// Runs body(host) for connected hosts, each in a thread. Neighbours in the ring of hosts have rail 1, too; two hosts have 1 and
// 2. Returns false without UCX.
template <class Body>
bool on_hosts(int size, Body body) {
  std::vector<std::unique_ptr<Host>> hosts;
  std::vector<std::vector<std::string>> addresses(size == 2 ? 3 : 2);
  for (int rank = 0; rank < size; ++rank) hosts.push_back(std::make_unique<Host>(rank, size));
  for (std::size_t rail = 0; rail < addresses.size(); ++rail) {
    for (const auto& host : hosts) addresses[rail].push_back(host->open(static_cast<std::int32_t>(rail)));
  }
  if (addresses[0][0].empty()) return false;
  std::vector<std::thread> threads;
  for (const auto& each : hosts) {
    threads.emplace_back([&, host = each.get()] {
      const int rank = host->rank();
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) host->connect(peer, 0, addresses[0][static_cast<std::size_t>(peer)]);
      }
      for (const int peer : std::set<int>{(rank + 1) % size, (rank + size - 1) % size}) {
        for (std::size_t rail = 1; rail < addresses.size(); ++rail) {
          host->connect(peer, static_cast<std::int32_t>(rail), addresses[rail][static_cast<std::size_t>(peer)]);
        }
      }
      for (int peer = 0; peer < size; ++peer) {
        expect(peer == rank || blink_stream_flush(host->comm(), peer, kPatience) == 1, "rank %d: no greeting", rank);
      }
      body(*host);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return true;
}

// One AllReduce of `count` elements in place.
int sum(const Host& host, Kind kind, std::int64_t count, std::uint32_t factor, std::int64_t timeout_us = kPatience) {
  blink_error error;
  const PlanHeld plan = read(plan_words(kind, 2, false, kSlots), error);
  const blink_binding binding{count, BLINK_UINT32, BLINK_SUM, count > 100'000 ? 200'000 : 1 << 12, 0};
  const std::unique_ptr<blink_op, Free> op(plan == nullptr ? nullptr : blink_op_bind(host.comm(), plan.get(), &binding, &error));
  if (!expect(op != nullptr, "a valid plan is rejected: %s", error.text)) std::exit(1);
  std::vector<std::uint32_t> data(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint32_t>(i) + factor * (1u + static_cast<std::uint32_t>(host.rank()));
  const int code = blink_op_run(op.get(), data.data(), data.data(), 0, 1, timeout_us);
  for (std::size_t i = 0; code == BLINK_OK && i < data.size(); ++i) {
    if (!expect(data[i] == 2 * i + 3 * factor, "kind %d, element %zu is wrong", static_cast<int>(kind), i)) break;
  }
  return code;
}

// Messages that UCX copies, and messages that it offers; in few slots, so that some are held.
void calls(const Host& host) {
  for (const Kind kind : {Kind::kOneHop, Kind::kOneShot, Kind::kRing}) {
    for (const std::int64_t count : {2, 5'000, 200'000}) {
      for (std::uint32_t factor = 1; factor <= 5u * kEffort; ++factor) {
        expect(sum(host, kind, count, factor) == BLINK_OK, "rank %d: a call fails", host.rank());
      }
    }
  }
  const int core = host.comm()->network()->core_of(1 - host.rank());
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  expect(core >= 0 && CPU_ISSET(static_cast<std::size_t>(core), &allowed), "the peer is on core %d", core);
}

unsigned char byte_of(int from, std::int64_t index) { return static_cast<unsigned char>(index * 7 + index / 251 + from); }

// Moves `total` bytes in pieces of up to `most`; those from `large_from` on take all routes.
void send_all(const Host& host, int peer, std::int64_t total, unsigned most, std::int64_t large_from = INT64_MAX) {
  std::mt19937 random(most);
  for (std::int64_t sent = 0; sent < total;) {
    std::vector<unsigned char> bytes(std::min<std::size_t>(static_cast<std::size_t>(total - sent), 1 + random() % most));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_of(host.rank(), sent + static_cast<std::int64_t>(i));
    const std::int64_t moved =
        blink_stream_write(host.comm(), peer, bytes.data(), static_cast<std::int64_t>(bytes.size()), sent >= large_from, 100'000);
    if (!expect(moved >= 0, "rank %d: write gave %ld", host.rank(), static_cast<long>(moved))) return;
    sent += moved;
  }
  expect(blink_stream_flush(host.comm(), peer, kPatience) == 1, "rank %d: flush", host.rank());
}

void receive_all(const Host& host, int peer, std::int64_t total, unsigned most) {
  std::mt19937 random(most + 1);
  for (std::int64_t received = 0; received < total;) {
    std::vector<unsigned char> bytes(std::min<std::size_t>(static_cast<std::size_t>(total - received), 1 + random() % most));
    const std::int64_t moved =
        blink_stream_read(host.comm(), peer, bytes.data(), static_cast<std::int64_t>(bytes.size()), 100'000);
    if (!expect(moved >= 0, "rank %d: read gave %ld", host.rank(), static_cast<long>(moved))) return;
    for (std::int64_t i = 0; i < moved; ++i) {
      if (!expect(bytes[static_cast<std::size_t>(i)] == byte_of(peer, received + i), "byte %ld is wrong",
                  static_cast<long>(received + i))) {
        return;
      }
    }
    received += moved;
  }
}

void everything_at_once(const Host& host) {
  for (const unsigned most : {2'000u, 600'000u}) {
    const std::int64_t total = most * 10 * kEffort;
    std::thread writer([&] { send_all(host, 1 - host.rank(), total, most); }), reader([&] { receive_all(host, 1 - host.rank(), total, most); });
    calls(host);
    writer.join();
    reader.join();
  }
}

// Rank 0 sends and leaves; rank 1 reads later.
void leaves_first(Host& host) {
  constexpr std::int64_t kTotal = 3'000'000;
  calls(host);
  if (host.rank() == 0) {
    send_all(host, 1, kTotal, 900'000);
    return host.leave();
  }
  usleep(200'000);
  receive_all(host, 0, kTotal, 900'000);
}

// Rank 0 leaves without its part of a call: rank 1 gets an error, for the call and for messages.
void leaves_too_early(Host& host) {
  calls(host);
  if (host.rank() == 0) return host.leave();
  const int code = sum(host, Kind::kOneHop, 200'000, 1);
  expect(code == BLINK_PEER_LOST, "code %d of a call without its peer", code);
  unsigned char byte = 0;
  expect(blink_stream_read(host.comm(), 0, &byte, 1, kPatience) < 0, "a message of a lost rank");
}

// Rank 0 makes no call: the other one's messages are under way at the timeout.
void times_out(Host& host) {
  calls(host);
  if (host.rank() == 0) {
    usleep(600'000);
    return;
  }
  expect(sum(host, Kind::kOneHop, 200'000, 1, 300'000) == BLINK_DEADLINE, "a call without its peer");
}

// Four hosts in a ring: each sends to the next and to the one across, by both ways around. `leaver`: a rank that only
// forwards, and leaves in the middle; -1: none. A rank forwards until none of the others is `busy`.
void takes_all_routes(Host& host, int leaver, std::atomic<int>& busy) {
  constexpr std::int64_t kTotal = 3'000'000;
  const int rank = host.rank(), next = (rank + 1) % 4, across = (rank + 2) % 4, last = (rank + 3) % 4;
  std::atomic<bool> leaves{false};
  std::thread server([&] {
    while (!leaves && busy > 0) expect(blink_stream_serve(host.comm(), 10'000) == 1, "rank %d has failed", host.rank());
  });
  const std::int32_t rails[] = {1, 1, 1}, there[] = {next}, around[] = {last, across, next}, one[] = {next, across}, other[] = {last, across};
  const auto add = [&](int peer, std::int32_t hops, const std::int32_t* ranks) {
    expect(blink_stream_route(host.comm(), peer, 0.5, hops, rails, ranks) == BLINK_OK, "rank %d: route to %d", rank, peer);
  };
  add(next, 1, there), add(next, 3, around), add(across, 2, one), add(across, 2, other);
  std::vector<std::thread> threads;
  const auto starts = [&](auto move, int peer) {
    if (rank != leaver && peer != leaver) threads.emplace_back([&host, move, peer] { move(host, peer); });
  };
  for (const int peer : {next, across}) starts([](const Host& from, int to) { send_all(from, to, kTotal, 700'000, 0); }, peer);
  for (const int peer : {last, across}) starts([](const Host& to, int from) { receive_all(to, from, kTotal, 700'000); }, peer);
  if (rank == leaver) {
    usleep(20'000);
    leaves = true;
  }
  for (std::thread& thread : threads) thread.join();
  if (rank != leaver) --busy;
  server.join();
  if (rank == leaver) host.leave();
}

// The end of a stream overtakes its begin, which takes the direct rail. The receiver moves no messages after its last read.
void takes_both_rails(const Host& host) {
  const std::int32_t rail = 2, peer = 1;
  if (host.rank() == 1) {
    usleep(100'000);
    return receive_all(host, 0, 960'000, 2'000'000);
  }
  expect(blink_stream_route(host.comm(), peer, 1, 1, &rail, &peer) == BLINK_OK, "rail 2 is no route");
  send_all(host, peer, 960'000, 2'000'000, 700'000);
}

void refuses_routes(const Host& host) {
  const std::int32_t rails[9] = {1, 7, 1, 1, 1, 1, 1, 1, 1}, ranks[9] = {1, 2, 2, 2, 2, 2, 2, 2, 2}, own[] = {0};
  const auto refused = [&](int peer, double share, std::int32_t hops, const std::int32_t* first) {
    expect(blink_stream_route(host.comm(), peer, share, hops, first, ranks) == BLINK_INVALID, "a route of %d hops to %d", hops, peer);
  };
  if (host.rank() != 0) return;
  refused(0, 1, 1, rails);      // this rank
  refused(2, 1, 1, rails);      // ends elsewhere
  refused(1, 0, 1, rails);      // has no share
  refused(1, 1, 0, rails);
  refused(1, 1, 1, rails + 1);  // a rail that is not open
  refused(2, 1, 9, rails);
  expect(blink_stream_route(host.comm(), 2, 1, 1, own, ranks + 1) == BLINK_OK, "a route over rail 0");
}

}  // namespace

int main() {
  limit_seconds(290);
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 0);
  setenv("UCX_MEM_EVENTS", "n", 1);  // its hooks in the C library run in a thread before the sanitizer knows the thread
  setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 1);
  if (!on_hosts(2, everything_at_once)) {
    std::printf("SKIPPED: UCX is not at %s; BLINK_UCX_LIB names its file\n", library().c_str());
    return 0;
  }
  on_hosts(2, leaves_first);
  on_hosts(2, leaves_too_early);
  on_hosts(2, times_out);
  on_hosts(2, takes_both_rails);
  on_hosts(4, refuses_routes);
  for (const int leaver : {-1, 1, 3}) {
    std::atomic<int> busy{leaver < 0 ? 4 : 3};
    on_hosts(4, [&, leaver](Host& host) { takes_all_routes(host, leaver, busy); });
  }
  return verdict();
}
