// The ends of calls and the errors on all ranks: deadlines, aborts, ranks that differ or die, invalid arguments.
// Sanitizers: address, thread.
#include <unistd.h>

#include <random>
#include <thread>

#include "calls.h"
#include "check.h"
#include "ranks.h"

namespace {

using namespace blink_test;

constexpr std::int64_t kShort = 50'000;

blink_shape shape_for(int ranks) { return {ranks, 64, 64 << 10, 16 * 4160, 4096}; }

// Waits until test(status of `rank`).
template <class Test>
void await(const Room& room, int rank, Test test) {
  std::vector<blink_status> found(static_cast<std::size_t>(room.ranks()));
  do {
    usleep(500);
    blink_describe(room.segment().base(), room.segment().bytes(), found.data(), room.ranks());
  } while (!test(found[static_cast<std::size_t>(rank)]));
}

bool has_begun(const blink_status& status) { return status.sequence > 0; }

// ---- deadlines

struct Stuck {
  const char* name;
  CallOptions options;
  int ranks, waiting, absent, peer;
  std::int32_t waits;
  std::int64_t chunk;
};

CallOptions with(Kind kind, bool small, bool in_heap) {
  CallOptions options;
  options.kind = kind;
  options.small = small;
  options.in_heap = in_heap;
  return options;
}

// One rank does not call. The rank with the short deadline calls last of the others, and reports its wait.
void deadlines() {
  const Stuck cases[] = {
      {"entry", with(Kind::kOneHop, false, false), 2, 0, 1, 1, BLINK_WAITS_ENTRY, -1},
      {"message", with(Kind::kChain, false, false), 3, 2, 0, 1, BLINK_WAITS_MESSAGE, 0},
      {"small message", with(Kind::kChain, true, false), 3, 2, 0, 1, BLINK_WAITS_MESSAGE, 0},
      {"slot", with(Kind::kChain, false, false), 3, 1, 2, 2, BLINK_WAITS_SLOT, 1},
      {"reader", with(Kind::kChain, false, true), 3, 1, 2, 2, BLINK_WAITS_READER, -1},
  };
  for (const Stuck& stuck : cases) {
    const Room room(shape_for(stuck.ranks), 1 << 16, 64);
    std::atomic<bool> over{false};
    as_threads(room, [&](blink_comm* comm, int rank) {
      Call call(room, comm, rank, stuck.options);
      for (int r = 0; rank == stuck.waiting && r < stuck.ranks; ++r) {
        if (r != stuck.waiting && r != stuck.absent) await(room, r, has_begun);
      }
      while (rank == stuck.absent && !over) usleep(500);
      const int code = call.run(rank == stuck.waiting ? kShort : kPatience);
      if (code == BLINK_OK && rank == 0 && stuck.waits == BLINK_WAITS_READER) return;  // its own reader has finished
      over = true;
      const blink_error error = call.error();
      expect(code == BLINK_DEADLINE && error.code == code, "%s: rank %d ended with %d", stuck.name, rank, code);
      expect(error.rank == stuck.waiting && error.peer == stuck.peer && error.waits == stuck.waits &&
                 error.chunk == stuck.chunk && error.sequence == 1,
             "%s: rank %d is told that %d waited for %d, chunk %ld of rank %d, in call %lu", stuck.name, rank,
             error.rank, error.waits, static_cast<long>(error.chunk), error.peer, error.sequence);
      expect(error.seconds_us >= kShort, "%s: it waited %ld µs only", stuck.name, static_cast<long>(error.seconds_us));
      expect(call.run(kShort) == BLINK_DEADLINE, "%s: a broken communicator goes on", stuck.name);
    });
  }
}

// ---- aborts

// An abort by another thread of the waiting rank, or by a rank that does not call.
void aborts() {
  for (const bool by_peer : {false, true}) {
    const Room room(shape_for(3), 4096, 64);
    std::vector<blink_comm*> comms;
    for (int r = 0; r < 3; ++r) comms.push_back(room.attach(r, false));
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        Call call(room, comms[static_cast<std::size_t>(r)], r, {});
        const int code = call.run();
        expect(code == BLINK_ABORTED, "rank %d ended with %d", r, code);
        const blink_error error = call.error();
        expect(std::strcmp(error.text, "enough") == 0 && error.rank == (by_peer ? 2 : 0),
               "rank %d is told '%s' by %d", r, error.text, error.rank);
      });
    }
    threads.emplace_back([&] {
      unsigned char byte;
      const std::int64_t got = blink_stream_read(comms[1], 2, &byte, 1, kPatience);
      expect(got == -BLINK_ABORTED, "a read ended with %ld", static_cast<long>(got));
    });
    usleep(50'000);
    blink_abort(comms[by_peer ? 2 : 0], "enough");
    for (std::thread& thread : threads) thread.join();
    Call late(room, comms[2], 2, {});
    expect(late.run() == BLINK_ABORTED, "a call after the abort goes on");
    for (blink_comm* comm : comms) blink_detach(comm);
  }
}

// Aborts at any moment during calls, by a thread that also reads the counters.
void aborts_at_any_moment() {
  for (unsigned seed = 0; seed < 10; ++seed) {
    const Room room(shape_for(3), 4096, 64);
    as_threads(room, [&](blink_comm* comm, int rank) {
      std::thread other;
      if (rank == 0) {
        other = std::thread([=] {
          blink_stats before, after;
          blink_get_stats(comm, &before);
          usleep(std::mt19937(seed)() % 20'000);
          blink_get_stats(comm, &after);
          expect(after.calls >= before.calls && after.message_bytes >= before.message_bytes, "counters go back");
          blink_abort(comm, "now");
        });
      }
      CallOptions options;
      options.small = seed % 2 == 0;
      Call call(room, comm, rank, options);
      int code = BLINK_OK;
      while (code == BLINK_OK) code = call.run();
      expect(code == BLINK_ABORTED, "rank %d ended with %d", rank, code);
      if (other.joinable()) other.join();
    });
  }
}

// ---- ranks that differ: tests/emulation/test_disagreement.py tests the messages

// Small messages contain only the lower bits of the signature, which may be equal.
void hidden_mismatch() {
  const Room room(shape_for(2), 4096, 64);
  as_threads(room, [&](blink_comm* comm, int rank) {
    CallOptions options = with(Kind::kOneHop, true, false);
    options.signature = rank == 0 ? 5 : 5 | std::uint64_t{1} << 60;
    Call call(room, comm, rank, options);
    const int code = call.run();
    expect(code == BLINK_OK || code == BLINK_MISMATCH, "rank %d ended with %d", rank, code);
  });
}

// ---- ranks that leave, or die in a collective: tests/emulation/test_faults.py

void a_stream_notices_a_death() {
  const Room room(shape_for(2), 4096, 64);
  const pid_t victim = forked([&] {
    room.attach(1, true);
    pause();
  });
  blink_comm* comm = room.attach(0, true);
  await(room, 1, [](const blink_status& status) { return status.joined == 1; });
  std::thread killer([=] {
    usleep(20'000);
    kill(victim, SIGKILL);
  });
  unsigned char byte;
  std::int64_t got = 0;
  while (got == 0) got = blink_stream_read(comm, 1, &byte, 1, kPatience);
  blink_error error;
  blink_last_error(comm, &error);
  expect(got == -BLINK_PEER_LOST && error.peer == 1 && error.waits == BLINK_WAITS_STREAM, "a read ended with %ld of %d",
         static_cast<long>(got), error.peer);
  killer.join();
  ended(victim);
  blink_detach(comm);
}

// Rank 0 knows that rank 2 is lost, and closes: rank 1 gets rank 2 as the cause, not rank 0.
void who_left_because_of_another_is_not_named() {
  const Room room(shape_for(3), 4096, 64);
  blink_comm* const first = room.attach(0, false);
  blink_comm* const comm = room.attach(1, false);
  blink_report_lost(first, 2);
  blink_detach(first);
  const auto expect_lost = [&](std::int64_t code, const char* what) {
    blink_error error;
    blink_last_error(comm, &error);
    expect(code == BLINK_PEER_LOST && error.peer == 2, "a %s ended with %ld of rank %d", what, static_cast<long>(code),
           error.peer);
  };
  unsigned char byte = 0;
  expect_lost(-blink_stream_write(comm, 0, &byte, 1, 0, 0), "write");
  expect_lost(-blink_stream_read(comm, 0, &byte, 1, 0), "read");
  blink_detach(comm);
}

// ---- bad arguments

// A refused call harms no rank: the same call with its buffers is correct.
void missing_memory() {
  const Room room(shape_for(2), 1 << 16, 64);
  as_threads(room, [&](blink_comm* comm, int rank) {
    Call call(room, comm, rank, {});
    const std::uint32_t in[300] = {};
    const int refused = rank == 0 ? blink_op_run(call.op(), in, nullptr, 0, 1, kPatience) : BLINK_REFUSED;
    expect(refused == BLINK_REFUSED, "rank %d ended with %d", rank, refused);
    const int code = call.run();
    expect(code == BLINK_OK, "rank %d then ended with %d", rank, code);
  });
}

// Rank 0 lends its buffers; rank 1 does not know the place of rank 0's heap.
void unknown_heap() {
  const Room room(shape_for(2), 1 << 16, 64);
  blink_comm* comms[] = {room.attach(0, false), room.attach(1, false, false)};
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CallOptions options;
      options.in_heap = r == 0;
      Call call(room, comms[r], r, options);
      const int code = call.run();
      expect(code == BLINK_INVALID, "rank %d ended with %d", r, code);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (blink_comm* comm : comms) blink_detach(comm);
}

void wrong_joins() {
  const Room room(shape_for(2), 4096, 64);
  const Memory& segment = room.segment();
  blink_error error;
  const std::uint8_t other[16] = {9};
  const auto refused = [&](std::size_t bytes, int rank, const std::uint8_t* token) {
    return blink_attach(segment.base(), bytes, rank, token, -1, &error) == nullptr && error.code == BLINK_INVALID;
  };
  expect(refused(segment.bytes(), 0, other), "another token");
  expect(refused(segment.bytes(), 2, kToken), "a rank too high");
  expect(refused(segment.bytes(), -1, kToken), "a rank below 0");
  expect(refused(segment.bytes() - 4096, 0, kToken), "a segment cut short");
  expect(refused(100, 0, kToken), "no whole header");
  blink_comm* comm = room.attach(0, false);
  expect(refused(segment.bytes(), 0, kToken), "a rank that has joined");
  blink_detach(comm);
}

void wrong_shapes() {
  const Memory memory(1 << 20);
  const auto format = [&](const blink_shape& shape, std::size_t skipped) {
    return blink_segment_format(memory.base() + skipped, memory.bytes() - skipped, &shape, kToken, 2);
  };
  for (const blink_shape& shape :
       {blink_shape{0, 1, 64, 4160, 64}, blink_shape{-1, 1, 64, 4160, 64}, blink_shape{2, 0, 64, 4160, 64},
        blink_shape{2, 1, 63, 4160, 64}, blink_shape{2, 1, 64, 4161, 64}, blink_shape{2, 1, 64, 4160, 0},
        blink_shape{2, 1, -64, 4160, 64}, blink_shape{INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}}) {
    expect(blink_segment_bytes(&shape) == 0, "an invalid shape has a size");
    expect(format(shape, 0) == BLINK_INVALID, "it can be formatted");
  }
  const blink_shape large{8, 2048, 4 << 20, 64 * 4160, 65536};
  expect(format(large, 0) == BLINK_INVALID, "more than there is");
  const blink_shape small{2, 1, 64, 4160, 64};
  expect(format(small, 64) == BLINK_INVALID, "off a page");
  expect(format(small, 0) == BLINK_OK, "a small shape");
}

// tests/emulation/test_dump.py tests the content of descriptions.
void wrong_descriptions() {
  const Room room(shape_for(2), 4096, 64);
  blink_status found[1];
  expect(blink_describe(room.segment().base(), room.segment().bytes(), found, 1) == 2, "room for one of two");
  const Memory nothing(8192);
  expect(blink_describe(nothing.base(), nothing.bytes(), found, 1) == -1, "memory that is no segment");
}

}  // namespace

int main() {
  limit_seconds(290);
  deadlines();
  aborts();
  aborts_at_any_moment();
  hidden_mismatch();
  missing_memory();
  unknown_heap();
  wrong_joins();
  wrong_shapes();
  wrong_descriptions();
  a_stream_notices_a_death();
  who_left_because_of_another_is_not_named();
  return verdict();
}
