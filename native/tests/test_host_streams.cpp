// Point to point: every byte arrives once and in order, in both directions of all pairs and in pieces of any size,
// while the ranks' other threads run collectives.
// Sanitizers: thread.
#include <unistd.h>

#include <random>
#include <thread>

#include "calls.h"
#include "check.h"
#include "ranks.h"

namespace {

using namespace blink_test;

unsigned char byte_of(int from, int to, std::int64_t index) {
  const auto bits = static_cast<std::uint32_t>(index) * 2654435761u + static_cast<std::uint32_t>(from * 31 + to * 7);
  return static_cast<unsigned char>(bits >> 16 ^ bits >> 5);
}

// Zero is the usual result of a wait of 0, and does not predict the next try.
std::int64_t random_wait(std::mt19937& random) {
  constexpr std::int64_t waits[] = {0, 1, 100, 3000, 50'000};
  return waits[random() % 5];
}

void send_all(blink_comm* comm, int from, int to, std::int64_t total) {
  std::mt19937 random(static_cast<unsigned>(from * 10 + to));
  for (std::int64_t sent = 0; sent < total;) {
    const std::int64_t piece = std::min<std::int64_t>(total - sent, 1 + static_cast<std::int64_t>(random() % 700));
    std::vector<unsigned char> bytes(static_cast<std::size_t>(piece));
    for (std::int64_t i = 0; i < piece; ++i) bytes[static_cast<std::size_t>(i)] = byte_of(from, to, sent + i);
    const std::int64_t moved = blink_stream_write(comm, to, bytes.data(), piece, 0, random_wait(random));
    if (!expect(moved >= 0 && moved <= piece, "%d to %d: write gave %ld", from, to, static_cast<long>(moved))) return;
    sent += moved;
    if (random() % 64 == 0) usleep(random() % 500);
  }
}

void receive_all(blink_comm* comm, int from, int to, std::int64_t total) {
  std::mt19937 random(static_cast<unsigned>(1000 + from * 10 + to));
  for (std::int64_t received = 0; received < total;) {
    const std::int64_t room = 1 + static_cast<std::int64_t>(random() % 900);
    std::vector<unsigned char> bytes(static_cast<std::size_t>(room));
    const std::int64_t moved = blink_stream_read(comm, from, bytes.data(), room, random_wait(random));
    if (!expect(moved >= 0 && moved <= room && received + moved <= total, "%d to %d: read gave %ld", from, to,
                static_cast<long>(moved))) {
      return;
    }
    for (std::int64_t i = 0; i < moved; ++i) {
      if (!expect(bytes[static_cast<std::size_t>(i)] == byte_of(from, to, received + i), "%d to %d: byte %ld is wrong",
                  from, to, static_cast<long>(received + i))) {
        return;
      }
    }
    received += moved;
    if (random() % 64 == 0) usleep(random() % 500);
  }
  unsigned char more;
  expect(blink_stream_read(comm, from, &more, 1, 0) == 0, "%d to %d: bytes that were not sent", from, to);
}

// Two streams with each peer, on their own threads, and AllReduces on this one.
void everything_at_once(const Room& room, blink_comm* comm, int rank, std::int64_t total) {
  std::vector<std::thread> threads;
  for (int peer = 0; peer < room.ranks(); ++peer) {
    if (peer == rank) continue;
    threads.emplace_back([=] { send_all(comm, rank, peer, total); });
    threads.emplace_back([=] { receive_all(comm, peer, rank, total); });
  }
  Call call(room, comm, rank, {});
  for (std::uint32_t factor = 1; factor <= 100 && call.sum(factor); ++factor) continue;
  for (std::thread& thread : threads) thread.join();
}

void refusals(blink_comm* comm) {
  unsigned char byte = 0;
  for (const int peer : {-1, 0, 3, 1 << 30}) {  // rank 0 addresses itself, and ranks outside of 0 … 2
    expect(blink_stream_write(comm, peer, &byte, 1, 0, 0) == -BLINK_INVALID, "a write to rank %d", peer);
    expect(blink_stream_read(comm, peer, &byte, 1, 0) == -BLINK_INVALID, "a read from rank %d", peer);
  }
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{-1}}) {
    expect(blink_stream_write(comm, 1, &byte, bytes, 0, 0) == -BLINK_INVALID, "a write of %ld", static_cast<long>(bytes));
    expect(blink_stream_read(comm, 1, &byte, bytes, 0) == -BLINK_INVALID, "a read of %ld", static_cast<long>(bytes));
  }
}

}  // namespace

int main() {
  limit_seconds(290);
  // 192 bytes: every second piece wraps around. 4096: most do not.
  for (const std::int64_t stream_bytes : {192, 4096}) {
    const blink_shape shape{3, 64, 64 << 10, 4160, stream_bytes};
    const std::int64_t total = stream_bytes * 60 * kEffort;
    const Room threads(shape, 4096, 64), processes(shape, 4096, 2);
    as_threads(threads, [&](blink_comm* comm, int rank) {
      if (rank == 0) refusals(comm);
      everything_at_once(threads, comm, rank, total);
    });
    as_processes(processes, [&](blink_comm* comm, int rank) { everything_at_once(processes, comm, rank, total); });
  }
  return verdict();
}
