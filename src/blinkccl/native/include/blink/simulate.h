// The simulator's kernel as a plain C interface: blinkccl/cost/simulate/workload.py says what everything here means.
//
// All arrays belong to the caller and must be valid: nothing is checked here. The Python side makes them from a valid
// program.
#ifndef BLINK_SIMULATE_H
#define BLINK_SIMULATE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// How a run ended: at its end; before that, see `stuck`; or for want of memory.
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

// Null, or arrays of as many entries as there are tasks.
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
  int64_t stuck;   // the first actor that did not finish, -1 for none
  int64_t stuck_chunk;
} blink_outcome;

// The search for a chunk size across iterations: multiplicative increase, additive decrease (Blink, MLSys 2020, §4.2.1).
// blinkccl/cost/simulate/chunk_search.py says what it does where the paper is silent; libblink.so asks it in live jobs.
enum blink_miad_phase { BLINK_MIAD_INCREASE = 0, BLINK_MIAD_DECREASE = 1, BLINK_MIAD_STEADY = 2 };

typedef struct {
  uint64_t step_bytes, least_bytes, most_bytes;
  double factor, tolerance;
  int32_t phase;
  uint64_t chunk_bytes; // to use in the next iteration
  uint64_t best_bytes;
  double best_gb_per_s, last_gb_per_s; // below 0: nothing was observed
} blink_miad;

// An iteration with chunk_bytes reached so much; one that is steady stays so.
void blink_miad_observe(blink_miad *miad, double throughput_gb_per_s);

// A number made of the headers that the library was compiled with.
uint32_t blink_simulate_abi(void);

// Runs the workload; `fair` chooses the sharing. One of blink_simulated.
int blink_simulate(const blink_workload *workload, int fair, blink_outcome *outcome, const blink_trace *trace);

#ifdef __cplusplus
}
#endif
#endif
