// What ends a call, and what the ranks are told: deadlines, aborts, ranks that differ, ranks that die, bad arguments.
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

// Until test(status of `rank`).
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

// One rank does not call. The one with the short deadline comes last of the others, and says what it waits for.
void deadlines() {
  const Stuck cases[] = {
      {"entry", with(Kind::kOneHop, false, false), 2, 0, 1, 1, BLINK_WAITS_ENTRY, -1},
      {"message", with(Kind::kChain, false, false), 3, 2, 0, 1, BLINK_WAITS_MESSAGE, 0},
      {"small message", with(Kind::kChain, true, false), 3, 2, 0, 1, BLINK_WAITS_MESSAGE, 0},
      {"slot", with(Kind::kChain, false, false), 2, 0, 1, 1, BLINK_WAITS_SLOT, 1},
      {"reader", with(Kind::kChain, false, true), 2, 0, 1, 1, BLINK_WAITS_READER, -1},
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

// Another thread of the waiting rank, or of a rank that does not even call.
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

// While calls are being made, at any moment, by a thread that looks at the counters meanwhile.
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

// ---- ranks that differ

void mismatches() {
  for (const bool first_small : {false, true}) {
    for (const bool second_small : {false, true}) {
      for (const Kind kind : {Kind::kOneHop, Kind::kBroadcast}) {
        const Room room(shape_for(3), 4096, 64);
        as_threads(room, [&](blink_comm* comm, int rank) {
          CallOptions options = with(kind, rank == 1 ? second_small : first_small, false);
          options.signature = rank == 1 ? 0x200000001 : 0x100000002;
          Call call(room, comm, rank, options);
          // Who only sends learns it one call later.
          int code = BLINK_OK;
          for (int i = 0; i < 2 && code == BLINK_OK; ++i) code = call.run();
          const blink_error error = call.error();
          expect(code == BLINK_MISMATCH && error.code == code, "rank %d ended with %d", rank, code);
          expect(error.sequence == 1 && (error.rank == 1) != (error.peer == 1),
                 "rank %d is told of ranks %d and %d, call %lu", rank, error.rank, error.peer, error.sequence);
          const int other = error.rank == 1 ? 0 : 1;  // which side is rank 1's
          expect(error.what[other] == 0x200000001 * 7 && error.what[1 - other] == 0x100000002 * 7,
                 "rank %d is told %lx and %lx", rank, error.what[0], error.what[1]);
        });
      }
    }
  }
}

// Small messages tell by the lower bits of the signature, which may agree.
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

// ---- ranks that die

struct Death {
  const char* name;
  bool small, killed;
};

// Rank 1 makes some calls and is gone; the parent kills it or it leaves by itself.
void deaths() {
  for (const Death& death : {Death{"exit, large", false, false}, Death{"exit, small", true, false},
                             Death{"kill, large", false, true}, Death{"kill, small", true, true}}) {
    std::mt19937 random(death.small * 2 + death.killed);
    for (int round = 0; round < 3; ++round) {
      const Room room(shape_for(3), 4096, round == 0 ? 64 : 1);
      const unsigned pause = random() % 30'000;
      std::vector<pid_t> children;
      for (int r = 0; r < 3; ++r) {
        children.push_back(forked([&] {
          blink_comm* comm = room.attach(r, true);
          CallOptions options;
          options.small = death.small;
          Call call(room, comm, r, options);
          for (std::uint32_t i = 0; i < 5 && !death.killed; ++i) call.sum(i);
          if (r == 1 && !death.killed) _exit(7);
          int code = BLINK_OK;
          while (code == BLINK_OK) code = call.run(30'000'000);
          const blink_error error = call.error();
          expect(code == BLINK_PEER_LOST && error.peer == 1 && error.left == 0, "%s: rank %d ended with %d of %d",
                 death.name, r, code, error.peer);
        }));
      }
      if (death.killed) {
        for (int r = 0; r < 3; ++r) await(room, r, has_begun);
        usleep(pause);
        kill(children[1], SIGKILL);
      }
      for (int r = 0; r < 3; ++r) {
        const int status = ended(children[static_cast<std::size_t>(r)]);
        const bool right = r != 1 ? status == 0
                           : death.killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                          : WIFEXITED(status) && WEXITSTATUS(status) == 7;
        expect(right, "%s: rank %d's process ended with status %d", death.name, r, status);
      }
    }
  }
}

// One that has closed its communicator is missed only by those who wait for it, and they are told that it left.
void leaving() {
  const Room room(shape_for(3), 4096, 64);
  std::vector<pid_t> children;
  for (int r = 0; r < 3; ++r) {
    children.push_back(forked([&] {
      blink_comm* comm = room.attach(r, true);
      {
        Call call(room, comm, r, {});
        call.sum(3);
        unsigned char byte = 9;
        if (r == 2) {
          usleep(200'000);  // rank 1 has left: no matter here
          expect(blink_stream_write(comm, 0, &byte, 1, kPatience) == 1, "a write beside a rank that left");
        }
        if (r == 0) {
          expect(blink_stream_read(comm, 2, &byte, 1, kPatience) == 1, "a read beside a rank that left");
          const int code = call.run();
          const blink_error error = call.error();
          expect(code == BLINK_PEER_LOST && error.peer == 1 && error.left == 1, "ended with %d of %d, left %d", code,
                 error.peer, error.left);
        }
      }
      blink_detach(comm);
    }));
  }
  for (const pid_t child : children) expect(ended(child) == 0, "a process failed");
}

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

// ---- bad arguments

void missing_memory() {
  const Room room(shape_for(2), 1 << 16, 64);
  as_threads(room, [&](blink_comm* comm, int rank) {
    Call call(room, comm, rank, {});
    const std::uint32_t in[300] = {};
    const int code = rank == 0 ? blink_op_run(call.op(), in, nullptr, 0, 1, kPatience) : call.run();
    expect(code == BLINK_INVALID, "rank %d ended with %d", rank, code);
  });
}

// Rank 0 lends its buffers; rank 1 was never told where its heap is.
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
  expect(refused(segment.bytes(), 0, kToken), "a rank that is there");
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
    expect(blink_segment_bytes(&shape) == 0, "a shape that makes no sense has a size");
    expect(format(shape, 0) == BLINK_INVALID, "it can be formatted");
  }
  const blink_shape large{8, 2048, 4 << 20, 64 * 4160, 65536};
  expect(format(large, 0) == BLINK_INVALID, "more than there is");
  const blink_shape small{2, 1, 64, 4160, 64};
  expect(format(small, 64) == BLINK_INVALID, "off a page");
  expect(format(small, 0) == BLINK_OK, "a small shape");
}

// ---- the picture for people

void description() {
  const Room room(shape_for(2), 4096, 64);
  as_threads(room, [&](blink_comm* comm, int rank) {
    Call call(room, comm, rank, {});
    if (rank == 1) {
      blink_status found[2] = {};
      do {
        usleep(1000);
        expect(blink_describe(room.segment().base(), room.segment().bytes(), found, 2) == 2, "two ranks");
      } while (found[0].waits == BLINK_WAITS_NOT);
      expect(found[0].waits == BLINK_WAITS_ENTRY && found[0].peer == 1 && found[0].sequence == 1 &&
                 found[0].what == 7 && found[0].count == 300 && found[0].finished == 0 && found[0].waiting_us >= 0,
             "rank 0 waits for %d of %d in call %lu", found[0].waits, found[0].peer, found[0].sequence);
      expect(found[0].pid == getpid() && found[0].joined == 1 && found[0].left == 0, "rank 0 is there");
      expect(found[1].waits == BLINK_WAITS_NOT && found[1].sequence == 0, "rank 1 has not called");
    }
    call.sum(1);
  });
  blink_status found[1];
  expect(blink_describe(room.segment().base(), room.segment().bytes(), found, 1) == 2, "room for one of two");
  expect(found[0].finished == 1 && found[0].left == 1 && found[0].waits == BLINK_WAITS_NOT, "rank 0 has left");
  const Memory nothing(8192);
  expect(blink_describe(nothing.base(), nothing.bytes(), found, 1) == -1, "memory that is no segment");
}

}  // namespace

int main() {
  limit_seconds(290);
  deadlines();
  aborts();
  aborts_at_any_moment();
  mismatches();
  hidden_mismatch();
  missing_memory();
  unknown_heap();
  wrong_joins();
  wrong_shapes();
  description();
  leaving();
  deaths();
  a_stream_notices_a_death();
  return verdict();
}
