// Flows and packed trees as a plain C interface: blinkccl/trees/packing/ says what they are.
//
// All arrays belong to the caller and must be valid: nothing is checked here. Sums of capacities stay below 2^123.
#ifndef BLINK_PACKING_H
#define BLINK_PACKING_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// How a piece of work ended.
enum blink_packing {
  BLINK_PACKING_DONE = 0,
  BLINK_PACKING_GOES_ON = 1,
  BLINK_PACKING_DOES_NOT_FIT = 2,
  BLINK_PACKING_NO_MEMORY = 3
};

// A number of 128 bits, none below 0. The high half of what an arc has that is never full: 2^124.
typedef struct {
  uint64_t low, high;
} blink_units;
#define BLINK_PACKING_INFINITE_HIGH 0x1000000000000000

typedef struct {
  int64_t vertices, arcs;
  const int32_t *tail, *head;
  const blink_units *capacity;
} blink_arcs;

typedef struct blink_packer blink_packer;
typedef struct blink_trees blink_trees;

// A number made of the headers that the library was compiled with.
uint32_t blink_packing_abi(void);

// Adds flow until it is maximal or at least `*units`, and says there how much was added: DONE or NO_MEMORY. `arcs` has
// null for capacities: `residual` has two for each arc, that of the arc and that of its reverse, and is changed.
int blink_max_flow(const blink_arcs *arcs, blink_units *residual, int64_t source, int64_t sink, blink_units *units);

// Whether joined[r] units from a new source to each of the first `terminals` vertices r can all flow to each of these, asked
// in turn from `*sink` on: DONE, or DOES_NOT_FIT with the first that they cannot reach in `*sink`, and in `side` (a byte
// per vertex) who is on the source's side of the least minimum cut; or NO_MEMORY.
int blink_all_reach(const blink_arcs *arcs, int64_t terminals, const blink_units *joined, int64_t *sink, uint8_t *side);

// The least of the maximum flows from `root` to the others of the first `terminals` vertices, in `least` (infinite where
// there are none), and in `side`, as above, the cut of the first that has no more: DONE or NO_MEMORY.
int blink_least_flow(const blink_arcs *arcs, int64_t terminals, int64_t root, blink_units *least, uint8_t *side);

// How many units of the arcs pair[0] → pair[1] → pair[2] can be split off, at most `*units`, so that joined[r] units from
// each of the first `terminals` vertices r still reach all of these, in `units`: DONE or NO_MEMORY. `order` are the
// terminals as they are asked; one that leaves no unit is put first.
int blink_admissible(const blink_arcs *arcs, int64_t terminals, const blink_units *joined, const int32_t *pair,
                     blink_units *units, int32_t *order);

// A packing of demand[v] arborescences from each v, not begun; null for want of memory.
blink_packer *blink_packer_new(const blink_arcs *arcs, const blink_units *demand, int few);
// Goes on for about so long: DONE, GOES_ON, DOES_NOT_FIT or NO_MEMORY.
int blink_packer_run(blink_packer *packer, double seconds);
// How many trees are ready.
int64_t blink_packer_trees(const blink_packer *packer);
// The trees: root and multiplicity of each, and the tail and head of its (vertices − 1) arcs.
void blink_packer_read(const blink_packer *packer, int32_t *root, blink_units *multiplicity, int32_t *arcs);
void blink_packer_free(blink_packer *packer);

// Hangs vertices of packed trees higher, one pass over all: GOES_ON where any was, DONE, or NO_MEMORY. parents[t·n + v] is
// the parent of v in tree t, −1 for its root, and changed. With `both_ways` an arc stands for both directions.
int blink_flatten(const blink_arcs *arcs, int64_t trees, const blink_units *multiplicity, int both_ways, int32_t *parents);

// Trees of equal weight over the first `terminals` vertices, tree i from roots[i], of `depth` hops where that can be;
// none yet; capacities may be null. Arcs of one edges[arc], a number of one of them, are loaded together: each its own, or with its reverse. An
// edge is as full as it may be with most[edge] trees, and the search ends where none has more than `goal` times that.
// Null for want of memory.
blink_trees *blink_trees_new(const blink_arcs *arcs, int64_t terminals, const int32_t *roots, int64_t trees,
                             int64_t depth, const int32_t *edges, const double *most, double goal);
// Goes on for about so long: DONE, GOES_ON, DOES_NOT_FIT where a tree cannot reach all, or NO_MEMORY.
int blink_trees_run(blink_trees *trees, double seconds);
// How many numbers the best trees are; and these, hop after hop, of which the next begins where a terminal ends one.
int64_t blink_trees_length(const blink_trees *trees);
void blink_trees_read(const blink_trees *trees, int32_t *hops);
void blink_trees_free(blink_trees *trees);

// How many trees of each root are looked for.
#define BLINK_PACKING_HOP_TREES 8

// Cheap trees over all vertices of at most `levels` hops, from each of `roots` in turn: the parent of each vertex, -1 for
// the root. price[u * vertices + v] is that of a hop from u to v, infinite where there is none. DONE, DOES_NOT_FIT where
// levels are too few for a root, or NO_MEMORY.
int blink_hop_trees(int64_t vertices, const double *price, int64_t levels, const int32_t *roots, int64_t count,
                    int32_t *parent);

#ifdef __cplusplus
}
#endif
#endif
