// The common part of rank processes of a benchmark in C: the protocol of protocol.py, buffers, timing and check. A peer
// supplies a barrier, a collective, and the reason for calls that it does not support.
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "blink/bench.h"

// A command with its buffers; in == NULL or out == NULL if the rank has none.
struct peer_work {
  struct peer_command command;
  char* in;
  char* out;
};

struct peer_library {
  void (*barrier)(void* self);
  // NULL, or the reason of a failure.
  const char* (*run)(void* self, const struct peer_work* work);
  // NULL, or the reason why the command is not supported; the same on every rank.
  const char* (*refuse)(void* self, const struct peer_command* command);
  void* self;
};

static inline int peer_reduces(const struct peer_command* c) {
  return c->collective == BLINK_REDUCE || c->collective == BLINK_ALLREDUCE || c->collective == BLINK_REDUCE_SCATTER;
}

static void peer_end(const char* why) {
  fprintf(stderr, "benchmark rank %d: %s%s%s\n", (int)getpid(), why, errno ? ": " : "", errno ? strerror(errno) : "");
  _exit(1);
}

static void peer_read(int fd, void* target, size_t bytes) {
  char* at = (char*)target;
  while (bytes > 0) {
    ssize_t got = recv(fd, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) peer_end("the coordinator has ended");
    at += got;
    bytes -= (size_t)got;
  }
}

static void peer_write(int fd, const void* source, size_t bytes) {
  const char* at = (const char*)source;
  while (bytes > 0) {
    ssize_t put = send(fd, at, bytes, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) peer_end("the coordinator has ended");
    at += put;
    bytes -= (size_t)put;
  }
}

static int peer_connect(const char* path, int rank, int world_size, const char* library) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // If the launcher is killed, no other process ends this one.
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un address;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof address.sun_path) peer_end("the socket's path is too long");
  strcpy(address.sun_path, path);
  if (fd < 0 || connect(fd, (struct sockaddr*)&address, sizeof address) != 0) peer_end("cannot reach the coordinator");
  struct peer_hello hello;
  memset(&hello, 0, sizeof hello);
  hello.magic = PEER_MAGIC;
  hello.version = PEER_VERSION;
  hello.rank = (uint32_t)rank;
  hello.world_size = (uint32_t)world_size;
  hello.pid = (uint64_t)getpid();
  memcpy(hello.library, library, strnlen(library, sizeof hello.library - 1));
  peer_write(fd, &hello, sizeof hello);
  errno = 0;
  return fd;
}

static double peer_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Memory that is kept while commands have KEEP and its size stays the same.
struct peer_memory {
  char* at;
  size_t bytes;
};

static char* peer_allocate(struct peer_memory* memory, size_t bytes) {
  if (memory->at != NULL && memory->bytes == bytes) return memory->at;
  if (memory->at != NULL) munmap(memory->at, memory->bytes);
  memory->at = NULL;
  memory->bytes = bytes;
  if (bytes == 0) return NULL;
  void* at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) peer_end("no memory for the buffers");
  madvise(at, bytes, MADV_HUGEPAGE);  // Without huge pages, small pages are used.
  memory->at = (char*)at;
  return memory->at;
}

// Each of `blocks` blocks of `bytes` repeats its own `period` bytes of the pattern.
static void peer_fill(char* at, const char* pattern, size_t blocks, size_t bytes, size_t period) {
  for (size_t b = 0; b < blocks; ++b)
    for (size_t i = 0; i < bytes; i += period) {
      size_t n = bytes - i < period ? bytes - i : period;
      memcpy(at + b * bytes + i, pattern + b * period, n);
    }
}

static uint64_t peer_wrong(const char* at, const char* pattern, size_t blocks, size_t bytes, size_t period,
                           size_t itemsize) {
  uint64_t wrong = 0;
  for (size_t b = 0; b < blocks; ++b)
    for (size_t i = 0; i < bytes; i += period) {
      size_t n = bytes - i < period ? bytes - i : period;
      const char *got = at + b * bytes + i, *want = pattern + b * period;
      if (memcmp(got, want, n) == 0) continue;
      for (size_t k = 0; k < n; k += itemsize) wrong += memcmp(got + k, want + k, itemsize) != 0;
    }
  return wrong;
}

static void peer_reply_with(int fd, uint32_t status, uint64_t wrong, uint32_t n, const double* seconds,
                            const char* text) {
  struct peer_reply reply = {PEER_MAGIC, status, wrong, n, (uint32_t)(text ? strlen(text) : 0)};
  peer_write(fd, &reply, sizeof reply);
  peer_write(fd, seconds, n * sizeof *seconds);
  if (text) peer_write(fd, text, reply.length);
}

// Runs one command and answers it.
static void peer_perform(int fd, struct peer_work* work, const struct peer_library* library,
                         struct peer_memory memory[2], const char* fill, const char* expected) {
  const struct peer_command* c = &work->command;
  size_t block = c->count * c->itemsize, period = c->period * c->itemsize;
  size_t in = c->in_blocks * block, out = c->out_blocks * block;
  if (c->flags & PEER_IN_PLACE && in && out) {
    char* at = peer_allocate(&memory[0], in > out ? in : out);
    work->in = at + c->in_at * block;
    work->out = at + c->out_at * block;
  } else {
    work->in = peer_allocate(&memory[0], in);
    work->out = peer_allocate(&memory[1], out);
  }
  double* seconds = (double*)malloc((c->iterations + 1) * sizeof *seconds);
  const char* failure = NULL;
  uint32_t timed = c->warmup + c->iterations, all = timed + (c->flags & PEER_CHECK ? 1 : 0);  // The last run is checked.
  for (uint32_t i = 0; i < all && failure == NULL; ++i) {
    if (i == 0 || i == timed) {
      if (out) memset(work->out, 0, out);  // Also touches the pages, so that page faults are not timed.
      if (in) peer_fill(work->in, fill, c->in_blocks, block, period);
    }
    double began = peer_now();
    library->barrier(library->self);
    if (!(c->flags & PEER_WITH_BARRIER)) began = peer_now();
    failure = library->run(library->self, work);
    double took = peer_now() - began;
    if (i >= c->warmup && i < timed) seconds[i - c->warmup] = took;
  }
  uint64_t wrong = 0;
  if (all > timed && failure == NULL && out)
    wrong = peer_wrong(work->out, expected, c->out_blocks, block, period, c->itemsize);
  peer_reply_with(fd, failure ? PEER_FAILED : PEER_OK, wrong, failure ? 0 : c->iterations, seconds, failure);
  free(seconds);
  if (!(c->flags & PEER_KEEP)) {
    peer_allocate(&memory[0], 0);
    peer_allocate(&memory[1], 0);
  }
}

// Serves commands until QUIT, or until the coordinator ends.
static void peer_serve(int fd, const struct peer_library* library) {
  struct peer_memory memory[2] = {{NULL, 0}, {NULL, 0}};
  struct peer_work work;
  for (;;) {
    memset(&work, 0, sizeof work);
    peer_read(fd, &work.command, sizeof work.command);
    const struct peer_command* c = &work.command;
    if (c->magic != PEER_MAGIC) peer_end("expected a command");
    if (c->kind == PEER_QUIT) return;
    size_t period = c->period * c->itemsize;
    size_t fill = c->in_blocks * period, expected = c->flags & PEER_CHECK ? c->out_blocks * period : 0;
    char* pattern = (char*)malloc(fill + expected + 1);
    if (pattern == NULL) peer_end("no memory for the pattern");
    peer_read(fd, pattern, fill + expected);
    alarm(c->deadline_s);
    const char* refused = library->refuse(library->self, c);
    if (refused) peer_reply_with(fd, PEER_UNSUPPORTED, 0, 0, NULL, refused);
    else peer_perform(fd, &work, library, memory, pattern, pattern + fill);
    alarm(0);
    free(pattern);
  }
}
