// libblink_mpi.so's binding to one MPI library: compiled with its mpi.h at first use, without linking. The program's
// MPI library resolves PMPI_ and the handles; libblink_mpi.so has core.h's functions. Calls of PMPI_ return to an
// address in this file (-fno-optimize-sibling-calls), by which libblink_mpi_fortran.so recognises them.
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "blink/types.h"
#include "core.h"

#define EXPORTED __attribute__((visibility("default")))
#define LIMIT ((int64_t)0x7fffffff)
// Bytes per rank up to which rooted calls go to MPI, since in the host engine no rank runs ahead of the others.
enum { kAtOnceBytes = 256 };
static const int64_t kMostBytes = (int64_t)1 << 40;  // of a block of a call with blocks of different sizes

// The MPI library that this binding was compiled for, as named by MPI_Get_library_version.
#if defined(OPEN_MPI)
EXPORTED const char blink_mpi_built_for[] = "Open MPI";
#elif defined(MPICH_VERSION) || defined(I_MPI_VERSION)
EXPORTED const char blink_mpi_built_for[] = "MPICH";
#else
EXPORTED const char blink_mpi_built_for[] = "";
#endif
EXPORTED const int blink_mpi_binding_version = BLINK_MPI_BINDING_VERSION;

// ---- handles

enum kind { kSigned, kUnsigned, kFloat, kComplex, kBits, kMoved };
struct type {
  MPI_Datatype handle;
  int kind, bytes;
  int dtype, factor;  // the type that it is reduced as, and their number per element; -1: cannot be reduced
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

// True if the MPI standard defines `op` (of blink_operation) for types of this kind.
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

// ---- a communicator's state: an attribute, created at its first collective

// The state with the MPI objects that the core needs.
struct bound {
  blink_mpi_comm* state;
  MPI_Comm comm;
  MPI_Request pending;  // never completes: testing it makes the library progress all other requests
  struct hosts* hosts;  // if its ranks are on several hosts
  struct bound *next, *before;
};

static struct bound* all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t generation = 1;  // of the communicators: raised when one is freed, since its handle may be reused

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

static struct hosts* meet_hosts(MPI_Comm comm, const uint64_t* numbers, int rank, int size, int* reason);
static void leave_hosts(struct hosts* hosts);

// For a communicator with all ranks on this host: they share memory, or all calls go to MPI.
static void make_state(struct bound* bound, int rank, int size) {
  const blink_mpi_peers peers = {rank, size, bound, allgather, progress};
  PMPI_Grequest_start(query, release, cancel, NULL, &bound->pending);
  bound->state = blink_mpi_comm_make(&peers);
}

static void end_state(struct bound* bound) {
  blink_mpi_comm_free(bound->state);
  if (bound->pending != MPI_REQUEST_NULL) {
    PMPI_Grequest_complete(bound->pending);
    PMPI_Wait(&bound->pending, MPI_STATUS_IGNORE);
  }
}

static void end(struct bound* bound) {
  pthread_mutex_lock(&lock);
  if (bound->before != NULL) bound->before->next = bound->next;
  else all = bound->next;
  if (bound->next != NULL) bound->next->before = bound->before;
  __atomic_add_fetch(&generation, 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
  end_state(bound);
  leave_hosts(bound->hosts);
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

// True if all ranks of `comm` run under this library (blink_mpi_are_here); every rank decides by itself.
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

// Decides the state of a communicator at its first call, which alone decides whether Blink may serve it; for
// communicators other than the world, again after its first calls.
static void decide(struct bound* bound, int again) {
  int inter = 0, rank = 0, size = 0;
  PMPI_Comm_test_inter(bound->comm, &inter);
  PMPI_Comm_rank(bound->comm, &rank);
  PMPI_Comm_size(bound->comm, &size);
  int reason = inter ? kInter : size < 2 ? kOneRank : !are_here(bound->comm, size) ? kElsewhere : kReasons;
  if (reason == kReasons && !again && bound->comm != MPI_COMM_WORLD) {
    bound->state = blink_mpi_comm_passing(kEarly);
    if (bound->state == NULL || bound->state->early > 0) return;
    blink_mpi_comm_free(bound->state);
  }
  if (reason == kReasons) {
    const uint64_t host = blink_mpi_host();
    uint64_t* hosts = malloc((size_t)size * sizeof *hosts);
    int several = 0;
    if (hosts == NULL) PMPI_Abort(bound->comm, MPI_ERR_NO_MEM);  // the other ranks would continue
    PMPI_Allgather(&host, sizeof host, MPI_BYTE, hosts, sizeof host, MPI_BYTE, bound->comm);
    for (int r = 1; r < size; ++r) several = several || hosts[r] != hosts[0];
    if (several) bound->hosts = meet_hosts(bound->comm, hosts, rank, size, &reason);
    else make_state(bound, rank, size);
    free(hosts);
    if (!several) return;
  }
  bound->state = blink_mpi_comm_passing(reason);
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

// Returns NULL for a communicator that cannot have a state.
static blink_mpi_comm* look_up(MPI_Comm comm) {
  struct bound* bound = NULL;
  int found = 0, ready = 0;
  if (comm == MPI_COMM_NULL || PMPI_Initialized(&ready) != MPI_SUCCESS || !ready) return NULL;
  pthread_once(&once, begin);
  if (PMPI_Comm_get_attr(comm, keyval, &bound, &found) != MPI_SUCCESS) return NULL;
  if (!found) bound = make(comm);
  if (found && bound->state != NULL && bound->state->early == 1) {  // its early calls end with this one
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
  if (state != NULL && state->early > 0) {
    if (state->early > 1) --state->early;
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

// One side of a call: blocks of elements of a type. Bytes that are not contiguous as sent, or must be moved, go through
// Blink's own memory (`ours`).
struct data {
  int ours, filled, kept;  // copied from the user's memory before the call, and to it after it
  char* at;                // the bytes: the user's, or Blink's
  char* user;
  MPI_Datatype type;
  int plain;
  int64_t size, extent, total;  // of an element, and of all blocks; above LIMIT if the total is too large
  blink_mpi_blocks bytes;       // relative to `at`
  int64_t counts[kMostRanks], places[kMostRanks];  // as passed by the user
};

// A call with its arguments.
struct task {
  blink_mpi_comm* state;
  MPI_Comm comm;
  blink_mpi_call call;
  const struct type* type;  // of a reduction
  MPI_Op op;                // as passed by the user
  int uneven;               // its blocks differ in size, and each rank knows only its own
  int has_given, has_result;
  int nested;               // the result is a part of the input,
  int64_t nested_at;        // at this offset in bytes
  struct data *given, *result;
  struct data sides[2];
  int32_t word;             // of a barrier
};

// The initial task, before a function fills it in.
static void clear(struct task* task, blink_mpi_comm* state, MPI_Comm comm, int collective, int root) {
  const blink_mpi_call call = {collective, root, 0, BLINK_UINT8, BLINK_SUM};
  task->state = state;
  task->comm = comm;
  task->call = call;
  task->uneven = task->has_given = task->has_result = 0;
  task->nested = 0;
}

// The address of block `number`, for blocks of `count` elements.
static void* block(void* user, int64_t number, int64_t count, MPI_Datatype type) {
  MPI_Aint low = 0, extent = 0;
  PMPI_Type_get_extent(type, &low, &extent);
  return (char*)user + number * count * extent;
}

enum { kInPlace = 0, kByCopy = 1 };  // plain bytes may be used in place, or need a copy

// Computes the bytes of `count` blocks from `counts` and `places`: in the user's memory from the first block on, or
// contiguous in Blink's. Returns 0 for invalid arguments.
static int measure(struct data* data, int count, const void* user, MPI_Datatype type, int by_copy) {
  const struct type* row = find_type(type);
  int64_t least = INT64_MAX;
  data->user = (char*)user;
  data->type = type;
  data->plain = row != NULL;
  data->ours = by_copy || row == NULL;
  data->filled = data->kept = 0;
  data->bytes.count = count;
  data->total = 0;
  if (row != NULL) {
    data->size = data->extent = row->bytes;
  } else {
    MPI_Count size = MPI_UNDEFINED;
    MPI_Aint low = 0, extent = 0;
    if (type == MPI_DATATYPE_NULL || PMPI_Type_size_x(type, &size) != MPI_SUCCESS || size == MPI_UNDEFINED) return 0;
    if (PMPI_Type_get_extent(type, &low, &extent) != MPI_SUCCESS) return 0;
    data->size = size;
    data->extent = extent;
  }
  for (int i = 0; i < count; ++i) {
    const int64_t begin = data->places[i] * data->size;
    int64_t bytes = 0;  // a division would take half of a small call's preparation
    if (data->counts[i] < 0 || __builtin_mul_overflow(data->counts[i], data->size, &bytes) || bytes > kMostBytes) return 0;
    data->bytes.lengths[i] = bytes;
    data->bytes.places[i] = data->ours ? data->total : begin;
    data->total += bytes;
    if (bytes > 0 && begin < least) least = begin;
  }
  if (data->ours) return data->user != NULL || data->total == 0 || row == NULL;
  // A displacement may be negative.
  if (data->total == 0) least = 0;
  data->at = (char*)((uintptr_t)user + (uintptr_t)least);
  for (int i = 0; i < count; ++i) data->bytes.places[i] = data->bytes.lengths[i] == 0 ? 0 : data->bytes.places[i] - least;
  return data->at != NULL || data->total == 0;
}

// The same for one block.
static int measure_one(struct data* data, const void* user, int64_t count, MPI_Datatype type, int by_copy) {
  data->counts[0] = count;
  data->places[0] = 0;
  return measure(data, 1, user, type, by_copy);
}

static struct data* gives(struct task* task, struct data* data) {
  task->has_given = 1;
  task->given = data;
  data->filled = data->ours;
  return data;
}
static struct data* gets(struct task* task, struct data* data) {
  task->has_result = 1;
  task->result = data;
  data->kept = data->ours;
  return data;
}

// Copies between the user's memory and Blink's; types that are not plain go through PMPI_Pack or PMPI_Unpack in pieces
// of less than 2^31 bytes. Returns 0 or an error code.
static int copy(const struct data* data, int back, MPI_Comm comm) {
  for (int i = 0; i < data->bytes.count; ++i) {
    char* user = data->user + data->places[i] * data->extent;
    char* packed = data->at + data->bytes.places[i];
    int64_t left = data->bytes.lengths[i] == 0 ? 0 : data->counts[i];
    if (data->plain) {
      memcpy(back ? user : packed, back ? packed : user, (size_t)(data->counts[i] * data->size));
      continue;
    }
    if (left > 0 && data->size > LIMIT) return fail(comm);  // a single element exceeds a piece
    while (left > 0) {
      const int some = (int)(left < LIMIT / data->size ? left : LIMIT / data->size);
      const int bytes = (int)(some * data->size);
      int position = 0;
      const int code = back ? PMPI_Unpack(packed, bytes, &position, user, some, data->type, comm)
                            : PMPI_Pack(user, some, data->type, packed, bytes, &position, comm);
      if (code != MPI_SUCCESS) return code;
      user += some * data->extent;
      packed += bytes;
      left -= some;
    }
  }
  return MPI_SUCCESS;
}

// The outcome of a call that the MPI library must run.
enum { kPass = -1 };

static int code_of(int outcome, MPI_Comm comm) {
  if (__builtin_expect(outcome == BLINK_MPI_DONE, 1)) return MPI_SUCCESS;
  return outcome == BLINK_MPI_NO_PLAN ? kPass : fail(comm);
}

// Provides Blink's memory for one side, if needed.
static int furnish(const struct task* task, struct data* data, int number) {
  if (!data->ours) return MPI_SUCCESS;
  data->at = blink_mpi_scratch(task->state, number, (size_t)data->total + 1);
  if (data->at == NULL) return fail(task->comm);
  return data->filled ? copy(data, 0, task->comm) : MPI_SUCCESS;
}

// Prepares the bytes of both sides. Returns 0 or an error code.
static int begin_task(struct task* task) {
  int code = MPI_SUCCESS;
  if (task->has_given) code = furnish(task, task->given, 0);
  if (task->nested) task->result->at = task->given->at + task->nested_at;
  else if (task->has_result && code == MPI_SUCCESS) code = furnish(task, task->result, 1);
  return code;
}

static int end_task(const struct task* task) {
  return task->has_result && task->result->kept && !task->nested ? copy(task->result, 1, task->comm) : MPI_SUCCESS;
}

// Runs the call in the core.
static int run_task(const struct task* task) {
  const char* input = task->has_given ? task->given->at : NULL;
  char* output = task->has_result ? task->result->at : NULL;
  if (!task->uneven) return blink_mpi_run(task->state, &task->call, input, output);
  static const blink_mpi_blocks none;
  return blink_mpi_run_blocks(task->state, &task->call, task->has_given ? &task->given->bytes : &none,
                              task->has_result ? &task->result->bytes : &none, input, output);
}

static int serve(struct task* task) {
  int code = begin_task(task);
  if (code == MPI_SUCCESS) code = code_of(run_task(task), task->comm);
  return code == MPI_SUCCESS ? end_task(task) : code;
}

// Sets type and operation of a reduction of `elements` in `blocks`. Returns kReasons, or why Blink does not serve it.
static int reduction(struct task* task, int64_t elements, int64_t blocks, MPI_Datatype datatype, MPI_Op op) {
  const struct type* row = find_type(datatype);
  const int operation = operation_of(op);
  if (row == NULL || row->dtype < 0 || operation < 0 || !combines(row->kind, operation)) return kType;
  if (elements == 0) return kEmpty;
  if (elements < 0) return kArguments;
  if (elements > LIMIT || elements * row->bytes * blocks > LIMIT) return kLarge;
  task->call.count = elements * row->factor;
  task->call.dtype = (uint32_t)row->dtype;
  task->call.op = (uint32_t)operation;
  task->type = row;
  task->op = op;
  return kReasons;
}

// Sets both sides of a reduction, which are plain memory.
static void reduces(struct task* task, const void* from, void* to) {
  if (from != NULL) {
    task->given = &task->sides[0];
    task->has_given = 1;
    task->given->ours = 0;
    task->given->at = (char*)from;
  }
  if (to != NULL) {
    task->result = &task->sides[1];
    task->has_result = 1;
    task->result->ours = task->result->kept = 0;
    task->result->at = to;
  }
}

#include "hosts.inc"

// The hosts of a communicator with reason kHosts.
static struct hosts* hosts_of(MPI_Comm comm) {
  struct bound* bound = NULL;
  int found = 0;
  PMPI_Comm_get_attr(comm, keyval, &bound, &found);
  return bound->hosts;
}

#define OPEN(...) __VA_ARGS__
// An exported function, with `comm` as last argument. Across hosts Blink serves Allreduce only.
#define BLOCKING(Name, parameters, arguments)                                                                  \
  EXPORTED int NAME(blink_bound_##Name) parameters {                                                           \
    blink_mpi_comm* state = state_of(comm);                                                                    \
    struct task task;                                                                                          \
    int why = state == NULL ? kArguments : state->reason, code = kPass;                                        \
    if (state != NULL && (state->serves || (why == kHosts && k_##Name == k_Allreduce))) {                      \
      why = NAME(Name)(&task, OPEN arguments, state);                                                          \
      if (why == kReasons) code = state->serves ? serve(&task) : allreduce_across(hosts_of(comm), &task);      \
    }                                                                                                          \
    if (__builtin_expect(code != kPass, 1)) return code;                                                       \
    blink_mpi_passed(k_##Name, (enum blink_mpi_reason)(why == kReasons ? kNoPlan : why));                      \
    return NAME(PMPI_##Name) arguments;                                                                        \
  }

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
#undef COUNT
#undef DISPLACEMENT
#undef NAME
#endif

#define NAME(name) name
// The smallest call that no rank can finish before all have begun.
static int Barrier(struct task* task, MPI_Comm comm, blink_mpi_comm* state) {
  clear(task, state, comm, BLINK_ALLREDUCE, 0);
  task->call.count = 1;
  task->call.dtype = BLINK_INT32;
  task->call.op = BLINK_BOR;
  task->word = 0;
  reduces(task, &task->word, &task->word);
  return kReasons;
}
BLOCKING(Barrier, (MPI_Comm comm), (comm))

EXPORTED int blink_bound_Init(int* argc, char*** argv) {
  blink_mpi_announce();
  return PMPI_Init(argc, argv);
}
EXPORTED int blink_bound_Init_thread(int* argc, char*** argv, int required, int* provided) {
  blink_mpi_announce();
  return PMPI_Init_thread(argc, argv, required, provided);
}

EXPORTED int blink_bound_Finalize(void) {
  while (all != NULL && PMPI_Comm_delete_attr(all->comm, keyval) == MPI_SUCCESS) {
  }
  blink_mpi_finish();
  return PMPI_Finalize();
}
