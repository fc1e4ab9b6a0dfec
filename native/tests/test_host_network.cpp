// Two hosts in one process, with a rank each: calls and streams over UCX's TCP, ranks that leave, and a lost connection.
// Sanitizers: address, thread.
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <string>
#include <thread>

#include "check.h"
#include "plans.h"
#include "ranks.h"

// UCX's memory of a connection that a failed rank has left open hangs on a mapping, which LeakSanitizer does not read.
extern "C" const char* __lsan_default_suppressions() { return "leak:ucs_calloc"; }

namespace {

using namespace blink_test;

constexpr blink_shape kShape{2, 64, 2 << 20, 16 * 4160, 4096};
constexpr std::int64_t kSlots = 2;

std::string library() {
  const char* stated = std::getenv("BLINK_UCX_LIB");
  return stated == nullptr ? "libucp.so.0" : stated;
}

// One rank and its host's memory.
class Host {
 public:
  explicit Host(int rank) : room_(kShape, 4096, 2), comm_(room_.attach(rank, false)), rank_(rank), bell_(eventfd(0, EFD_NONBLOCK)) {}
  ~Host() {
    leave();
    close(bell_);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // The rank's address; empty without UCX.
  std::string open() {
    blink_error error;
    std::string address(1 << 14, '\0');
    const std::int64_t bytes = blink_open_network(comm_, library().c_str(), nullptr, bell_, address.data(),
                                                  static_cast<std::int64_t>(address.size()), &error);
    address.resize(bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
    return address;
  }
  void connect(const std::string& address) {
    expect(blink_connect(comm_, 1 - rank_, 0, address.data(), static_cast<std::int64_t>(address.size())) == BLINK_OK,
           "rank %d cannot connect", rank_);
    expect(blink_stream_flush(comm_, 1 - rank_, kPatience) == 1, "rank %d: no greeting", rank_);
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

// Runs body(host) for two connected hosts, each in a thread. Returns false without UCX.
template <class Body>
bool on_two_hosts(Body body) {
  Host hosts[] = {Host(0), Host(1)};
  const std::string addresses[] = {hosts[0].open(), hosts[1].open()};
  if (addresses[0].empty() || addresses[1].empty()) return false;
  std::vector<std::thread> threads;
  for (Host& host : hosts) {
    threads.emplace_back([&] {
      host.connect(addresses[1 - host.rank()]);
      body(host);
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

// Moves `total` bytes in pieces of up to `most`.
void send_all(const Host& host, std::int64_t total, unsigned most) {
  std::mt19937 random(most);
  for (std::int64_t sent = 0; sent < total;) {
    std::vector<unsigned char> bytes(std::min<std::size_t>(static_cast<std::size_t>(total - sent), 1 + random() % most));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_of(host.rank(), sent + static_cast<std::int64_t>(i));
    const std::int64_t moved =
        blink_stream_write(host.comm(), 1 - host.rank(), bytes.data(), static_cast<std::int64_t>(bytes.size()), 100'000);
    if (!expect(moved >= 0, "rank %d: write gave %ld", host.rank(), static_cast<long>(moved))) return;
    sent += moved;
  }
  expect(blink_stream_flush(host.comm(), 1 - host.rank(), kPatience) == 1, "rank %d: flush", host.rank());
}

void receive_all(const Host& host, std::int64_t total, unsigned most) {
  std::mt19937 random(most + 1);
  for (std::int64_t received = 0; received < total;) {
    std::vector<unsigned char> bytes(std::min<std::size_t>(static_cast<std::size_t>(total - received), 1 + random() % most));
    const std::int64_t moved =
        blink_stream_read(host.comm(), 1 - host.rank(), bytes.data(), static_cast<std::int64_t>(bytes.size()), 100'000);
    if (!expect(moved >= 0, "rank %d: read gave %ld", host.rank(), static_cast<long>(moved))) return;
    for (std::int64_t i = 0; i < moved; ++i) {
      if (!expect(bytes[static_cast<std::size_t>(i)] == byte_of(1 - host.rank(), received + i), "byte %ld is wrong",
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
    std::thread writer([&] { send_all(host, total, most); }), reader([&] { receive_all(host, total, most); });
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
    send_all(host, kTotal, 900'000);
    return host.leave();
  }
  usleep(200'000);
  receive_all(host, kTotal, 900'000);
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

}  // namespace

int main() {
  limit_seconds(290);
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 0);
  setenv("UCX_MEM_EVENTS", "n", 1);  // its hooks in the C library run in a thread before the sanitizer knows the thread
  setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 1);
  if (!on_two_hosts(everything_at_once)) {
    std::printf("SKIPPED: UCX is not at %s; BLINK_UCX_LIB names its file\n", library().c_str());
    return 0;
  }
  on_two_hosts(leaves_first);
  on_two_hosts(leaves_too_early);
  on_two_hosts(times_out);
  return verdict();
}
