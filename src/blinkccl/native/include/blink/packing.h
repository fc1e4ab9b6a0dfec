// Flows and packed trees as a plain C interface; blinkccl/trees/packing/ defines them.
//
// The caller owns all arrays, which must be valid: nothing is checked here. Sums of capacities stay below 2^123.
#ifndef BLINK_PACKING_H
#define BLINK_PACKING_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Result of a call.
enum blink_packing {
  BLINK_PACKING_DONE = 0,
  BLINK_PACKING_GOES_ON = 1,
  BLINK_PACKING_DOES_NOT_FIT = 2,
  BLINK_PACKING_NO_MEMORY = 3
};

// A non-negative number of 128 bits. An arc that is never full has 2^124; the constant is its high half.
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

// A hash of the headers that the library was compiled with.
uint32_t blink_packing_abi(void);

// Adds flow until it is maximal or at least `*units`, and stores the added flow there. Returns DONE or NO_MEMORY.
// `arcs` has null for capacities. `residual` has two entries per arc, one for the arc and one for its reverse, and is
// updated.
int blink_max_flow(const blink_arcs *arcs, blink_units *residual, int64_t source, int64_t sink, blink_units *units);

// Checks that joined[r] units from a new source to each of the first `terminals` vertices r can all flow to each
// terminal, starting with terminal `*sink`. Returns DONE, NO_MEMORY, or DOES_NOT_FIT. Then `*sink` is the first
// terminal that the units cannot reach, and `side` (a byte per vertex) marks the source's side of the least minimum
// cut.
int blink_all_reach(const blink_arcs *arcs, int64_t terminals, const blink_units *joined, int64_t *sink, uint8_t *side);

// Stores in `least` the smallest maximum flow from `root` to another of the first `terminals` vertices;
// it is infinite if no other exists. `side`, as above, is the cut of the first vertex with that flow. Returns DONE or NO_MEMORY.
int blink_least_flow(const blink_arcs *arcs, int64_t terminals, int64_t root, blink_units *least, uint8_t *side);

// Stores in `units` the most units, up to `*units`, that can be split off the arcs pair[0] → pair[1] → pair[2]
// while joined[r] units from each of the first `terminals` vertices r still reach all terminals. Returns DONE or
// NO_MEMORY. `order` is the order in which terminals are tested; a terminal that leaves no unit is moved to the front.
int blink_admissible(const blink_arcs *arcs, int64_t terminals, const blink_units *joined, const int32_t *pair,
                     blink_units *units, int32_t *order);

// A packing of demand[v] arborescences from each v, not started. Null if memory is insufficient.
blink_packer *blink_packer_new(const blink_arcs *arcs, const blink_units *demand, int few);
// Continues for about `seconds`. Returns DONE, GOES_ON, DOES_NOT_FIT or NO_MEMORY.
int blink_packer_run(blink_packer *packer, double seconds);
// The number of complete trees.
int64_t blink_packer_trees(const blink_packer *packer);
// Copies the trees: root and multiplicity of each, and the tail and head of its (vertices − 1) arcs.
void blink_packer_read(const blink_packer *packer, int32_t *root, blink_units *multiplicity, int32_t *arcs);
void blink_packer_free(blink_packer *packer);

// Moves vertices of packed trees closer to their roots, in one pass over all. Returns GOES_ON if any moved, DONE, or
// NO_MEMORY. parents[t·n + v] is the parent of v in tree t, −1 for its root, and is updated. With `both_ways` an arc
// stands for both directions.
int blink_flatten(const blink_arcs *arcs, int64_t trees, const blink_units *multiplicity, int both_ways, int32_t *parents);

// A search, not started, for trees of equal weight over the first `terminals` vertices; tree i starts at roots[i] and
// has `depth` hops if possible. Capacities may be null. Arcs with the same number edges[arc] are loaded together: each
// arc has a number of its own, or shares one with its reverse. An edge has its full load with most[edge] trees. The
// search ends if no edge has more than `goal` times that. Null if memory is insufficient.
blink_trees *blink_trees_new(const blink_arcs *arcs, int64_t terminals, const int32_t *roots, int64_t trees,
                             int64_t depth, const int32_t *edges, const double *most, double goal);
// Continues for about `seconds`. Returns DONE, GOES_ON, DOES_NOT_FIT if a tree cannot reach all terminals, or
// NO_MEMORY.
int blink_trees_run(blink_trees *trees, double seconds);
// The number of entries of the best trees; and the entries, hop after hop. A hop is a list of vertices, and a terminal
// ends it.
int64_t blink_trees_length(const blink_trees *trees);
void blink_trees_read(const blink_trees *trees, int32_t *hops);
void blink_trees_free(blink_trees *trees);

// The number of trees searched per root.
#define BLINK_PACKING_HOP_TREES 8

// Cheap trees over all vertices with at most `levels` hops, one for each of `roots`: the parent of each vertex, -1 for
// the root. price[u * vertices + v] is the price of the hop from u to v, infinite if there is no such hop. Returns
// DONE, DOES_NOT_FIT if `levels` is too small for a root, or NO_MEMORY.
int blink_hop_trees(int64_t vertices, const double *price, int64_t levels, const int32_t *roots, int64_t count,
                    int32_t *parent);

#ifdef __cplusplus
}
#endif
#endif
