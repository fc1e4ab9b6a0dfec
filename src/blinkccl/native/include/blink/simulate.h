// The simulator's kernel as a plain C interface; blinkccl/cost/simulate/workload.py defines all fields.
//
// The caller owns all arrays, which must be valid: nothing is checked here. The Python side builds them from a valid
// program.
#ifndef BLINK_SIMULATE_H
#define BLINK_SIMULATE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Result of a run: complete, stuck (see `stuck`), or out of memory.
enum blink_simulated { BLINK_SIMULATED = 0, BLINK_SIMULATION_STUCK = 1, BLINK_SIMULATION_NO_MEMORY = 2 };

typedef struct {
  int64_t actors, hops, streams, pools, links;
  const int32_t *chunks;
  const double *bytes, *last_bytes;
  const int32_t *actor_stream;
  const double *launch_s, *pace_s_per_byte, *start_s;
  const int32_t *receives_of, *receives, *sends_of, *sends;
  const int32_t *tail, *head, *hop_stream, *pool, *slots, *frees;
  const double *latency_s, *signal_s, *weight;
  const int32_t *path_of, *path;
  const double *rates;
  const int32_t *engines;
} blink_workload;

// Null, or arrays with one entry per task.
typedef struct {
  int32_t *hop, *actor, *chunk;
  double *begin_s, *move_s, *end_s;
  int32_t *cause, *holder;
  double *held_s;
} blink_trace;

typedef struct {
  double seconds;
  int64_t transfers, executions, events;
  double *actor_s; // one per actor
  int64_t stuck;   // the first actor that did not finish, -1: none
  int64_t stuck_chunk;
} blink_outcome;

// The search for a chunk size across iterations: multiplicative increase, additive decrease (Blink, MLSys 2020,
// §4.2.1). blinkccl/cost/simulate/chunk_search.py defines the cases that the paper leaves open; libblink.so uses it in
// live jobs.
enum blink_miad_phase { BLINK_MIAD_INCREASE = 0, BLINK_MIAD_DECREASE = 1, BLINK_MIAD_STEADY = 2 };

typedef struct {
  uint64_t step_bytes, least_bytes, most_bytes;
  double factor, tolerance;
  int32_t phase;
  uint64_t chunk_bytes; // to use in the next iteration
  uint64_t best_bytes;
  double best_gb_per_s, last_gb_per_s; // below 0: not observed
} blink_miad;

// Reports the throughput of an iteration with chunk_bytes. A search in the phase STEADY stays there.
void blink_miad_observe(blink_miad *miad, double throughput_gb_per_s);

// A hash of the headers that the library was compiled with.
uint32_t blink_simulate_abi(void);

// Runs the workload; `fair` selects fair sharing. Returns one of blink_simulated.
int blink_simulate(const blink_workload *workload, int fair, blink_outcome *outcome, const blink_trace *trace);

#ifdef __cplusplus
}
#endif
#endif
