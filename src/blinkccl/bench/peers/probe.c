// The probe of this host's memory: `probe SOCKET N` forks N ranks, one per core, that add and copy; two of them bounce a
// cache line. See peer.h and protocol.py; bound.py uses the result.
#include "peer.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define LINE 64
struct shared {
  _Alignas(LINE) atomic_uint arrived;
  _Alignas(LINE) atomic_uint turn;
  _Alignas(LINE) atomic_uint ball;
};
struct probe {
  struct shared* shared;
  unsigned rank, size;
};

static void barrier(void* self) {
  struct probe* p = (struct probe*)self;
  unsigned turn = atomic_load(&p->shared->turn);
  if (atomic_fetch_add(&p->shared->arrived, 1) + 1 == p->size) {
    atomic_store(&p->shared->arrived, 0);
    atomic_store(&p->shared->turn, turn + 1);
    return;
  }
  for (unsigned spins = 0; atomic_load(&p->shared->turn) == turn; ++spins)
    if (spins > 1000) sched_yield();
}

static void add(float* restrict a, const float* restrict b, size_t n) {
  for (size_t i = 0; i < n; ++i) a[i] += b[i];
}

// Streaming stores do not read the overwritten lines; small copies are faster in the caches.
static void copy(char* restrict a, const char* restrict b, size_t n) {
#if defined(__SSE2__)
  if (n >= (size_t)1 << 22) {
    for (size_t i = 0; i + 64 <= n; i += 64)
      for (size_t k = 0; k < 64; k += 16)
        _mm_stream_si128((__m128i*)(a + i + k), _mm_load_si128((const __m128i*)(b + i + k)));
    _mm_sfence();
    return;
  }
#endif
  memcpy(a, b, n);
}

static void round_trips(struct probe* p, size_t n) {
  atomic_uint* ball = &p->shared->ball;
  if (p->rank > 1) return;
  for (size_t i = 0; i < n; ++i) {
    if (p->rank == 0) atomic_store(ball, 1);
    for (unsigned spins = 0; atomic_load(ball) != (p->rank == 0 ? 0u : 1u); ++spins)
      if (spins > 100000) sched_yield();
    if (p->rank == 1) atomic_store(ball, 0);
  }
}

static const char* refuse(void* self, const struct peer_command* c) {
  struct probe* p = (struct probe*)self;
  if (c->collective < PEER_PROBE_ADD || c->collective > PEER_PROBE_ROUND_TRIP) return "the probe runs no collectives";
  if (c->collective == PEER_PROBE_ROUND_TRIP && p->size < 2) return "a round trip needs two cores";
  return NULL;
}

static const char* run(void* self, const struct peer_work* w) {
  const struct peer_command* c = &w->command;
  switch (c->collective) {
    case PEER_PROBE_ADD: add((float*)w->out, (const float*)w->in, c->count * c->itemsize / sizeof(float)); break;
    case PEER_PROBE_COPY: copy(w->out, w->in, c->count * c->itemsize); break;
    default: round_trips((struct probe*)self, c->count);
  }
  return NULL;
}

// Pins the process to core number `rank` of those in its affinity mask.
static void pin(unsigned rank) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  for (unsigned cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all) || seen++ != rank) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

int main(int argc, char** argv) {
  int size = argc == 3 ? atoi(argv[2]) : 0;
  if (size < 1) {
    fprintf(stderr, "usage: probe SOCKET RANKS\n");
    return 2;
  }
  void* at = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) peer_end("no shared memory");
  for (int rank = 0; rank < size; ++rank) {
    pid_t child = fork();
    if (child < 0) peer_end("cannot fork");
    if (child > 0) continue;
    pin((unsigned)rank);
    struct probe self = {(struct shared*)at, (unsigned)rank, (unsigned)size};
    struct peer_library library = {barrier, run, refuse, &self};
    peer_serve(peer_connect(argv[1], rank, size, "memory probe"), &library);
    _exit(0);
  }
  int status, failed = 0;
  while (wait(&status) > 0) failed |= status;
  return failed != 0;
}
