// libblink_mpi.so's binding to one MPI library: compiled with its mpi.h at first use, linked with nothing. The library
// that the program has loaded resolves PMPI_ and the handles; core.h's functions come from libblink_mpi.so.
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "blink/types.h"
#include "core.h"

#define EXPORTED __attribute__((visibility("default")))
#define LIMIT ((int64_t)0x7fffffff)
static const int64_t kMostBytes = (int64_t)1 << 40;  // of a block of a call whose blocks differ

// Which MPI it was compiled for, as MPI_Get_library_version calls it.
#if defined(OPEN_MPI)
EXPORTED const char blink_mpi_built_for[] = "Open MPI";
// What goes one way and has at most so many bytes is sent without a look at the receiver, faster than by Blink.
enum { kAtOnceBytes = 256 };
#elif defined(MPICH_VERSION) || defined(I_MPI_VERSION)
EXPORTED const char blink_mpi_built_for[] = "MPICH";
enum { kAtOnceBytes = 0 };  // its ranks wait for long where others have the cores
#else
EXPORTED const char blink_mpi_built_for[] = "";
enum { kAtOnceBytes = 0 };
#endif
EXPORTED const int blink_mpi_binding_version = BLINK_MPI_BINDING_VERSION;

// ---- handles

enum kind { kSigned, kUnsigned, kFloat, kComplex, kBits, kMoved };
struct type {
  MPI_Datatype handle;
  int kind, bytes;
  int dtype, factor;  // what it is combined as, and how many of these; -1: not at all
};

enum { kTypes = 256 };
static struct type types[kTypes];  // an open hash table; bytes 0: free
static int keyval = MPI_KEYVAL_INVALID;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static size_t place_of(MPI_Datatype handle) {
  return (size_t)((((uint64_t)(uintptr_t)handle) * 0x9e3779b97f4a7c15ull) >> 56);
}

static const struct type* find_type(MPI_Datatype handle) {
  for (size_t at = place_of(handle);; at = (at + 1) % kTypes) {
    if (types[at].bytes == 0) return NULL;
    if (types[at].handle == handle) return &types[at];
  }
}

static int dtype_of(int kind, int bytes) {
  static const int integers[2][4] = {{BLINK_INT8, BLINK_INT16, BLINK_INT32, BLINK_INT64},
                                     {BLINK_UINT8, BLINK_UINT16, BLINK_UINT32, BLINK_UINT64}};
  int power = bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : bytes == 8 ? 3 : -1;
  if (kind == kBits) return BLINK_UINT8;
  if ((kind == kSigned || kind == kUnsigned) && power >= 0) return integers[kind][power];
  if (kind == kComplex) bytes /= 2;
  if (kind == kFloat || kind == kComplex) return bytes == 4 ? BLINK_FLOAT32 : bytes == 8 ? BLINK_FLOAT64 : -1;
  return -1;
}

static void add_types(int kind, int count, const MPI_Datatype* handles) {
  for (int i = 0; i < count; ++i) {
    int bytes = 0;
    MPI_Aint low = 0, extent = 0;
    if (handles[i] == MPI_DATATYPE_NULL || find_type(handles[i]) != NULL) continue;
    if (PMPI_Type_size(handles[i], &bytes) != MPI_SUCCESS || bytes <= 0) continue;
    if (PMPI_Type_get_extent(handles[i], &low, &extent) != MPI_SUCCESS || low != 0 || extent != bytes) continue;
    size_t at = place_of(handles[i]);
    while (types[at].bytes != 0) at = (at + 1) % kTypes;
    struct type row = {handles[i], kind, bytes, dtype_of(kind, bytes), kind == kComplex ? 2 : 1};
    types[at] = row;
  }
}
#define ADD(kind, ...)                                      \
  do {                                                      \
    const MPI_Datatype some[] = {__VA_ARGS__};              \
    add_types(kind, (int)(sizeof some / sizeof *some), some); \
  } while (0)

// Whether the MPI standard has `op` (of blink_operation) for types of this kind.
static int combines(int kind, int op) {
  int arithmetic = op == BLINK_SUM || op == BLINK_PROD || op == BLINK_MIN || op == BLINK_MAX;
  if (kind == kComplex) return op == BLINK_SUM;
  if (kind == kBits) return !arithmetic;
  return kind == kFloat ? arithmetic : kind == kSigned || kind == kUnsigned;
}

static int operation_of(MPI_Op op) {
  return op == MPI_SUM    ? BLINK_SUM
         : op == MPI_MAX  ? BLINK_MAX
         : op == MPI_MIN  ? BLINK_MIN
         : op == MPI_PROD ? BLINK_PROD
         : op == MPI_BAND ? BLINK_BAND
         : op == MPI_BOR  ? BLINK_BOR
         : op == MPI_BXOR ? BLINK_BXOR
                          : -1;
}

// ---- a communicator's state: an attribute, made at its first collective

// With what the core needs of the MPI library.
struct bound {
  blink_mpi_comm* state;
  MPI_Comm comm;
  MPI_Request pending;  // never completes: testing it lets the library go on with everything else
  struct bound *next, *before;
};

static struct bound* all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t generation = 1;  // of the communicators: moves on when one goes, since its handle may come again

static int query(void* state, MPI_Status* status) {
  (void)state;
  PMPI_Status_set_elements(status, MPI_BYTE, 0);
  PMPI_Status_set_cancelled(status, 0);
  status->MPI_SOURCE = MPI_UNDEFINED;
  status->MPI_TAG = MPI_UNDEFINED;
  return MPI_SUCCESS;
}
static int release(void* state) {
  (void)state;
  return MPI_SUCCESS;
}
static int cancel(void* state, int complete) {
  (void)state;
  (void)complete;
  return MPI_SUCCESS;
}

static int allgather(void* self, const void* own, void* everybody, int32_t bytes) {
  struct bound* bound = self;
  return PMPI_Allgather(own, bytes, MPI_BYTE, everybody, bytes, MPI_BYTE, bound->comm);
}

static void progress(void* self) {
  struct bound* bound = self;
  int done = 0;
  PMPI_Test(&bound->pending, &done, MPI_STATUS_IGNORE);
}

static void end(struct bound* bound) {
  pthread_mutex_lock(&lock);
  if (bound->before != NULL) bound->before->next = bound->next;
  else all = bound->next;
  if (bound->next != NULL) bound->next->before = bound->before;
  __atomic_add_fetch(&generation, 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
  blink_mpi_comm_free(bound->state);
  if (bound->pending != MPI_REQUEST_NULL) {
    PMPI_Grequest_complete(bound->pending);
    PMPI_Wait(&bound->pending, MPI_STATUS_IGNORE);
  }
  free(bound);
}

static int forget(MPI_Comm comm, int key, void* value, void* extra) {
  (void)comm;
  (void)key;
  (void)extra;
  end(value);
  return MPI_SUCCESS;
}

static void begin(void) {
  ADD(kSigned, MPI_SIGNED_CHAR, MPI_SHORT, MPI_INT, MPI_LONG, MPI_LONG_LONG, MPI_INT8_T, MPI_INT16_T, MPI_INT32_T,
      MPI_INT64_T, MPI_AINT, MPI_OFFSET, MPI_COUNT, MPI_INTEGER, MPI_INTEGER1, MPI_INTEGER2, MPI_INTEGER4,
      MPI_INTEGER8);
  ADD(kUnsigned, MPI_UNSIGNED_CHAR, MPI_UNSIGNED_SHORT, MPI_UNSIGNED, MPI_UNSIGNED_LONG, MPI_UNSIGNED_LONG_LONG,
      MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T);
  ADD(kFloat, MPI_FLOAT, MPI_DOUBLE, MPI_REAL, MPI_DOUBLE_PRECISION, MPI_REAL4, MPI_REAL8);
  ADD(kComplex, MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_COMPLEX, MPI_DOUBLE_COMPLEX);
  ADD(kBits, MPI_BYTE);
  ADD(kMoved, MPI_CHAR, MPI_WCHAR, MPI_PACKED, MPI_C_BOOL, MPI_LONG_DOUBLE, MPI_C_LONG_DOUBLE_COMPLEX, MPI_CHARACTER,
      MPI_LOGICAL);
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &keyval, NULL);
}

// Whether all ranks of `comm` are here, which every rank finds by itself.
static int are_here(MPI_Comm comm, int size) {
  MPI_Group group, world;
  int *ranks = malloc(2 * (size_t)size * sizeof *ranks), here = 0;
  if (ranks == NULL) return 0;
  for (int i = 0; i < size; ++i) ranks[i] = i;
  if (PMPI_Comm_group(comm, &group) == MPI_SUCCESS) {
    if (PMPI_Comm_group(MPI_COMM_WORLD, &world) == MPI_SUCCESS) {
      here = PMPI_Group_translate_ranks(group, size, ranks, world, ranks + size) == MPI_SUCCESS;
      for (int i = 0; i < size && here; ++i) here = ranks[size + i] != MPI_UNDEFINED;
      here = here && blink_mpi_are_here(ranks + size, size);
      PMPI_Group_free(&world);
    }
    PMPI_Group_free(&group);
  }
  free(ranks);
  return here;
}

// The state of a communicator at its first call, which decides alone whether it may be one of ours: at the first of the
// world, and of others when they turn out to be used.
static void decide(struct bound* bound, int again) {
  blink_mpi_peers peers;
  int inter = 0;
  memset(&peers, 0, sizeof peers);
  PMPI_Comm_test_inter(bound->comm, &inter);
  PMPI_Comm_rank(bound->comm, &peers.rank);
  PMPI_Comm_size(bound->comm, &peers.size);
  int reason = inter ? kInter : peers.size < 2 ? kOneRank : !are_here(bound->comm, peers.size) ? kElsewhere : kReasons;
  if (reason == kReasons && !again && bound->comm != MPI_COMM_WORLD) {
    bound->state = blink_mpi_comm_passing(kEarly);
    if (bound->state == NULL || bound->state->early > 0) return;
    blink_mpi_comm_free(bound->state);
  }
  if (reason != kReasons) {
    bound->state = blink_mpi_comm_passing(reason);
    return;
  }
  PMPI_Grequest_start(query, release, cancel, NULL, &bound->pending);
  peers.self = bound;
  peers.allgather = allgather;
  peers.progress = progress;
  bound->state = blink_mpi_comm_make(&peers);
}

static struct bound* make(MPI_Comm comm) {
  struct bound* bound = calloc(1, sizeof *bound);
  if (bound == NULL) return NULL;
  bound->comm = comm;
  bound->pending = MPI_REQUEST_NULL;
  decide(bound, 0);
  pthread_mutex_lock(&lock);
  bound->next = all;
  if (all != NULL) all->before = bound;
  all = bound;
  pthread_mutex_unlock(&lock);
  PMPI_Comm_set_attr(comm, keyval, bound);
  return bound;
}

// NULL: not one that could have a state.
static blink_mpi_comm* look_up(MPI_Comm comm) {
  struct bound* bound = NULL;
  int found = 0, ready = 0;
  if (comm == MPI_COMM_NULL || PMPI_Initialized(&ready) != MPI_SUCCESS || !ready) return NULL;
  pthread_once(&once, begin);
  if (PMPI_Comm_get_attr(comm, keyval, &bound, &found) != MPI_SUCCESS) return NULL;
  if (!found) bound = make(comm);
  if (found && bound->state != NULL && bound->state->early == 1) {  // of its first calls this is the last
    blink_mpi_comm_free(bound->state);
    decide(bound, 1);
  }
  return bound == NULL ? NULL : bound->state;
}

struct seen {
  MPI_Comm comm;
  uint64_t generation;
  blink_mpi_comm* state;
};
static __thread struct seen seen[4];

static blink_mpi_comm* state_of(MPI_Comm comm) {
  struct seen* row = &seen[((uintptr_t)comm >> 4 ^ (uintptr_t)comm) & 3];
  uint64_t now = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
  if (__builtin_expect(row->comm == comm && row->generation == now, 1)) return row->state;
  blink_mpi_comm* state = look_up(comm);
  if (state != NULL && state->early > 1) {
    --state->early;
  } else if (state != NULL) {
    row->comm = comm;
    row->generation = now;
    row->state = state;
  }
  return state;
}

// ---- calls

static int fail(MPI_Comm comm) {
  PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
  return MPI_ERR_OTHER;
}

// A buffer of `count` elements of a type, as plain bytes.
struct buffer {
  void* user;
  int64_t count, bytes;  // bytes in all; -1: the type has no size
  MPI_Datatype type;
  int plain;   // its bytes lie as they are sent
  char* at;    // there, or in memory of the communicator
};

static struct buffer buffer_of(const void* user, int64_t count, MPI_Datatype type) {
  struct buffer buffer = {(void*)user, count, -1, type, 0, NULL};
  const struct type* row = find_type(type);
  int bytes = row != NULL ? row->bytes : -1;
  if (row != NULL) {
    buffer.plain = 1;
    buffer.at = buffer.user;
  } else if (type == MPI_DATATYPE_NULL || PMPI_Type_size(type, &bytes) != MPI_SUCCESS || bytes == MPI_UNDEFINED) {
    return buffer;
  }
  // A product that overflows is too large whatever it is.
  buffer.bytes = bytes > 0 && count > LIMIT / bytes ? LIMIT + 1 : count * bytes;
  return buffer;
}

// What a call may not have.
static int is_wrong(const struct buffer* buffer) {
  return buffer->count < 0 || buffer->bytes < 0 || (buffer->plain && buffer->user == NULL && buffer->bytes > 0);
}

// Its bytes, packed where they are not plain. 0, or an error.
static int pack(struct buffer* buffer, blink_mpi_comm* state, int number, int filled, MPI_Comm comm) {
  int position = 0;
  if (buffer->plain) return 0;
  buffer->at = blink_mpi_scratch(state, number, (size_t)buffer->bytes);
  if (buffer->at == NULL) return MPI_ERR_NO_MEM;
  if (!filled) return 0;
  return PMPI_Pack(buffer->user, (int)buffer->count, buffer->type, buffer->at, (int)buffer->bytes, &position, comm);
}

static int unpack(const struct buffer* buffer, MPI_Comm comm) {
  int position = 0;
  if (buffer->plain) return MPI_SUCCESS;
  return PMPI_Unpack(buffer->at, (int)buffer->bytes, &position, buffer->user, (int)buffer->count, buffer->type, comm);
}

// Where block `number` of blocks of `count` elements begins.
static void* block(void* user, int64_t number, int64_t count, MPI_Datatype type) {
  MPI_Aint low = 0, extent = 0;
  PMPI_Type_get_extent(type, &low, &extent);
  return (char*)user + number * count * extent;
}

// The blocks of one side of a call, of bytes. Neither how long those of others are nor what anything is made of is known
// to all ranks, so none of it decides who serves the call.
struct blocks {
  blink_mpi_blocks bytes;  // from `at` on
  char* at;                // the user's memory, or the communicator's
  char* user;
  MPI_Datatype type;
  int plain;
  int64_t size, extent, total;
  int64_t counts[kMostRanks], places[kMostRanks];  // as the user gives them
};

// Of `counts` and `places`: bytes that lie where the user has them, from the first one on, or `closely`, one after the
// other. 0: what a call may not have.
static int measure(struct blocks* blocks, int count, const void* user, MPI_Datatype type) {
  const struct type* row = find_type(type);
  int64_t least = INT64_MAX;
  blocks->user = (char*)user;
  blocks->type = type;
  blocks->plain = row != NULL;
  blocks->bytes.count = count;
  blocks->total = 0;
  if (row != NULL) {
    blocks->size = blocks->extent = row->bytes;
  } else {
    MPI_Count size = MPI_UNDEFINED;
    MPI_Aint low = 0, extent = 0;
    if (type == MPI_DATATYPE_NULL || PMPI_Type_size_x(type, &size) != MPI_SUCCESS || size == MPI_UNDEFINED) return 0;
    if (PMPI_Type_get_extent(type, &low, &extent) != MPI_SUCCESS) return 0;
    blocks->size = size;
    blocks->extent = extent;
  }
  for (int i = 0; i < count; ++i) {
    if (blocks->counts[i] < 0 || (blocks->size > 0 && blocks->counts[i] > kMostBytes / blocks->size)) return 0;
    const int64_t bytes = blocks->counts[i] * blocks->size, begin = blocks->places[i] * blocks->size;
    blocks->bytes.lengths[i] = bytes;
    blocks->bytes.places[i] = row == NULL ? blocks->total : begin;
    blocks->total += bytes;
    if (bytes > 0 && begin < least) least = begin;
  }
  if (row == NULL) return 1;
  // A place may be before the buffer.
  if (blocks->total == 0) least = 0;
  blocks->at = (char*)((uintptr_t)user + (uintptr_t)least);
  for (int i = 0; i < count; ++i) blocks->bytes.places[i] = blocks->bytes.lengths[i] == 0 ? 0 : blocks->bytes.places[i] - least;
  return blocks->at != NULL || blocks->total == 0;
}

// Between the user's memory and that at `at`, by PMPI_Pack or _Unpack in pieces of less than 2^31 bytes. 0, or an error.
static int repack(struct blocks* blocks, int unpacks, MPI_Comm comm) {
  for (int i = 0; i < blocks->bytes.count; ++i) {
    char* user = blocks->user + blocks->places[i] * blocks->extent;
    char* packed = blocks->at + blocks->bytes.places[i];
    int64_t left = blocks->bytes.lengths[i] == 0 ? 0 : blocks->counts[i];
    if (left > 0 && blocks->size > LIMIT) return fail(comm);  // no piece is so small
    while (left > 0) {
      const int some = (int)(left < LIMIT / blocks->size ? left : LIMIT / blocks->size);
      const int bytes = (int)(some * blocks->size);
      int position = 0;
      const int code = unpacks ? PMPI_Unpack(packed, bytes, &position, user, some, blocks->type, comm)
                               : PMPI_Pack(user, some, blocks->type, packed, bytes, &position, comm);
      if (code != MPI_SUCCESS) return code;
      user += some * blocks->extent;
      packed += bytes;
      left -= some;
    }
  }
  return MPI_SUCCESS;
}

// Memory of the communicator for blocks that are not plain in the user's, or, with `copies`, that must not stay there.
static int place(struct blocks* blocks, blink_mpi_comm* state, int number, int filled, int copies, MPI_Comm comm) {
  if (blocks->plain && !copies) return MPI_SUCCESS;
  const char* from = blocks->at;
  int64_t used = 0;
  blocks->at = blink_mpi_scratch(state, number, (size_t)blocks->total + 1);
  if (blocks->at == NULL) return fail(comm);
  if (!blocks->plain) return filled ? repack(blocks, 0, comm) : MPI_SUCCESS;
  for (int i = 0; i < blocks->bytes.count; ++i) {
    memcpy(blocks->at + used, from + blocks->bytes.places[i], (size_t)blocks->bytes.lengths[i]);
    blocks->bytes.places[i] = used;
    used += blocks->bytes.lengths[i];
  }
  return MPI_SUCCESS;
}

// How a call ended that the MPI library is to have.
enum { kPass = -1 };

// The move of these blocks; a side that this rank does not have is NULL. The result is not unpacked.
static int move(blink_mpi_comm* state, MPI_Comm comm, int collective, int root, const struct blocks* given,
                const struct blocks* result) {
  static const blink_mpi_blocks none;
  blink_mpi_call call = {collective, root, 0, BLINK_UINT8, BLINK_SUM};
  int outcome = blink_mpi_run_blocks(state, &call, given != NULL ? &given->bytes : &none,
                                     result != NULL ? &result->bytes : &none, given != NULL ? given->at : NULL,
                                     result != NULL ? result->at : NULL);
  return outcome == BLINK_MPI_DONE ? MPI_SUCCESS : outcome == BLINK_MPI_NO_PLAN ? kPass : fail(comm);
}

static int run(blink_mpi_comm* state, MPI_Comm comm, int collective, int root, int64_t count, int dtype, int op,
               const void* input, void* output) {
  blink_mpi_call call = {collective, root, count, (uint32_t)dtype, (uint32_t)op};
  int outcome = blink_mpi_run(state, &call, input, output);
  if (__builtin_expect(outcome == BLINK_MPI_DONE, 1)) return MPI_SUCCESS;
  return outcome == BLINK_MPI_NO_PLAN ? kPass : fail(comm);
}

#define PASS(function, why)                 \
  do {                                      \
    blink_mpi_passed(k_##function, why);    \
    goto pass;                              \
  } while (0)
#define STATE(function)                                                   \
  blink_mpi_comm* state = state_of(comm);                                 \
  int code = MPI_SUCCESS;                                                 \
  if (state == NULL) PASS(function, kArguments);                          \
  if (!state->serves) PASS(function, state->reason)
#define DONE(function)                                      \
  if (code != kPass) return code;                           \
  blink_mpi_passed(k_##function, kNoPlan);                  \
  pass:

// What reductions of so many elements are combined as; passes where they are not, or the arguments are wrong.
#define REDUCTION(function, elements, blocks)                                                              \
  const struct type* row = find_type(datatype);                                                            \
  const int operation = operation_of(op);                                                                  \
  if (row == NULL || row->dtype < 0 || operation < 0 || !combines(row->kind, operation)) PASS(function, kType); \
  if ((elements) == 0) PASS(function, kEmpty);                                                             \
  if ((elements) < 0) PASS(function, kArguments);                                                          \
  if ((int64_t)(elements) > LIMIT / row->bytes / (blocks)) PASS(function, kLarge)

#define COUNT int
#define DISPLACEMENT int
#define NAME(name) name
#include "binding.inc"
#undef COUNT
#undef DISPLACEMENT
#undef NAME
#if MPI_VERSION >= 4
#define COUNT MPI_Count
#define DISPLACEMENT MPI_Aint
#define NAME(name) name##_c
#include "binding.inc"
#endif

EXPORTED int blink_bound_Barrier(MPI_Comm comm) {
  int32_t word = 0;  // a barrier is the least that no rank can finish before all have begun
  STATE(Barrier);
  code = run(state, comm, BLINK_ALLREDUCE, 0, 1, BLINK_INT32, BLINK_BOR, &word, &word);
  DONE(Barrier)
  return PMPI_Barrier(comm);
}

EXPORTED int blink_bound_Finalize(void) {
  while (all != NULL && PMPI_Comm_delete_attr(all->comm, keyval) == MPI_SUCCESS) {
  }
  blink_mpi_finish();
  return PMPI_Finalize();
}
