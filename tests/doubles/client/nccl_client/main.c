// A program that uses NCCL's interface and does not know Blink. It runs cases, checks every bit and prints one line of
// JSON per case. Exit code 1: an error; 2: the setup failed.
//
//   nccl_client --mode process --ranks 4 --rank 1 --id FILE       one process per rank
//   nccl_client --mode threads|all|group --ranks 4                threads; ncclCommInitAll; ncclCommInitRank in a group
//     [--cases types,sizes,…] [--sizes 0,1,4099]
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"

struct Case {
  const char* name;
  void (*run)(struct World* world);
};
static const struct Case kCases[] = {
#define CASE_ROW(name) {#name, run_##name},
    CASES(CASE_ROW)
    {NULL, NULL},
    LONG_CASES(CASE_ROW)
#undef CASE_ROW
};

static bool wanted(const char* list, const char* name) {
  if (!strcmp(list, "all")) return true;
  const size_t length = strlen(name);
  for (const char* at = list; (at = strstr(at, name)); ++at) {
    if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length])) return true;
  }
  return false;
}

static long play(const struct Options* options, int first_rank, int locals) {
  struct World* world = calloc(1, sizeof *world);
  long failures = 0;
  world->options = options;
  world->ranks = options->ranks;
  world->locals = locals;
  for (int i = 0; i < locals; ++i) {
    world->local[i].index = i;
    world->local[i].rank = first_rank + i;
  }
  set_up(world);
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    const struct Case* const one = &kCases[i];
    if (!one->name && !strcmp(options->cases, "all")) break;
    if (!one->name || !wanted(options->cases, one->name)) continue;
    world->what = one->name;
    world->checks = world->failures = 0;
    one->run(world);
    // Wrong numbers are not Blink's error if the communicator reports a failed rank, so it is queried.
    for (int k = 0; world->failures && k < locals; ++k) {
      const ncclResult_t state = settled(world->local[k].comm);
      if (state == ncclSuccess) continue;
      printf("{\"case\": \"%s\", \"rank\": %d, \"ok\": false, \"what\": \"ncclCommGetAsyncError gives %d\"}\n",
             one->name, first_rank + k, (int)state);
    }
    printf("{\"case\": \"%s\", \"rank\": %d, \"ok\": %s, \"checks\": %ld}\n", one->name, first_rank,
           world->failures ? "false" : "true", world->checks);
    fflush(stdout);
    failures += world->failures;
  }
  tear_down(world);
  free(world);
  return failures;
}

struct Thread { const struct Options* options; int rank; long failures; };

static void* in_thread(void* data) {
  struct Thread* thread = data;
  thread->failures = play(thread->options, thread->rank, 1);
  return NULL;
}

static void stop(const char* text) {
  fprintf(stderr, "nccl_client: %s\n", text);
  exit(2);
}

static struct Options options_of(int count, char** words) {
  struct Options options = {"all", "all", NULL, {0, 1, 3, 17, 256, 1000, 4099, 40001}, 8, 4, 0};
  for (int i = 1; i < count; ++i) {
    if (i + 1 == count) stop("an option lacks its value");
    const char* name = words[i];
    char* value = words[++i];
    if (!strcmp(name, "--mode")) options.mode = value;
    else if (!strcmp(name, "--cases")) options.cases = value;
    else if (!strcmp(name, "--id")) options.id = value;
    else if (!strcmp(name, "--ranks")) options.ranks = atoi(value);
    else if (!strcmp(name, "--rank")) options.rank = atoi(value);
    else if (!strcmp(name, "--sizes")) {
      options.size_count = 0;
      for (char* one = strtok(value, ","); one && options.size_count < 32; one = strtok(NULL, ",")) {
        options.sizes[options.size_count++] = atol(one);
      }
    } else stop("no such option");
  }
  if (options.ranks < 1 || options.ranks > kMostRanks) stop("--ranks is 1 to 16");
  return options;
}

int main(int count, char** words) {
  struct Options options = options_of(count, words);
  const char* scratch = getenv("TMPDIR");
  char directory[256], id[300];
  snprintf(directory, sizeof directory, "%s/nccl_client.XXXXXX", scratch && *scratch ? scratch : "/tmp");
  long failures = 0;
  open_cuda();
  if (!options.id) {
    if (!strcmp(options.mode, "process") || !mkdtemp(directory)) stop("--mode process needs --id");
    snprintf(id, sizeof id, "%s/id", directory);
    options.id = id;
  }
  if (!strcmp(options.mode, "process")) {
    failures = play(&options, options.rank, 1);
  } else if (!strcmp(options.mode, "all") || !strcmp(options.mode, "group")) {
    failures = play(&options, 0, options.ranks);
  } else if (!strcmp(options.mode, "threads")) {
    pthread_t threads[kMostRanks];
    struct Thread data[kMostRanks];
    for (int rank = 0; rank < options.ranks; ++rank) {
      data[rank] = (struct Thread){&options, rank, 0};
      if (pthread_create(&threads[rank], NULL, in_thread, &data[rank])) stop("no thread");
    }
    for (int rank = 0; rank < options.ranks; ++rank) {
      pthread_join(threads[rank], NULL);
      failures += data[rank].failures;
    }
  } else {
    stop("--mode is process, threads, all or group");
  }
  if (options.id == id) {
    char path[400];
    for (int i = 0; snprintf(path, sizeof path, "%s.%d", id, i), !unlink(path); ++i) {}
    rmdir(directory);
  }
  return failures ? 1 : 0;
}
