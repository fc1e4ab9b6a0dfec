// The host engine's C ABI: ranks are processes (or threads) of one machine that share one memory segment.
//
// Plain C, loaded with ctypes. What does not depend on a size (which Program, who reads whose ring) is decided in Python
// by code that every rank runs on the same agreed numbers (blinkccl/engines/host_plan.py), and is a plan here. What does
// (where a ring lies, in which chunks) is bound to it in this library, which also runs programs without Python. Functions
// return 0 or one of blink_code; blink_last_error tells more.
//
// Python reads this file too (blinkccl/native/headers.py).
#ifndef BLINK_HOST_H
#define BLINK_HOST_H

#include <stddef.h>
#include <stdint.h>

#include "blink/types.h"

#ifdef __cplusplus
extern "C" {
#endif

// No place in a buffer.
#define BLINK_NOWHERE -1
// A small message travels in blocks of a flag's line and so much payload.
#define BLINK_PAYLOAD_BYTES 4096
#define BLINK_BLOCK_BYTES 4160
// What small calls in a row spread over, as a line that a peer has just read is slow to write again. It has to leave
// the first-level cache (128 KiB and more made messages of 16 to 64 KiB 1.2 to 1.7 times as fast) and to stay in the
// second.
#define BLINK_SMALL_CALLS_BYTES 393216

typedef struct blink_comm blink_comm;
typedef struct blink_op blink_op;
typedef struct blink_plan blink_plan;
typedef struct blink_bound blink_bound;
typedef struct blink_bundle blink_bundle;

enum blink_code {
  BLINK_OK = 0,
  BLINK_DEADLINE = 1,   // a wait passed its deadline
  BLINK_PEER_LOST = 2,  // a rank's process is gone
  BLINK_MISMATCH = 3,   // ranks do not call the same thing
  BLINK_ABORTED = 4,    // abort() was called, here or on another rank
  BLINK_INVALID = 5,    // the arguments, tables or segment make no sense
  BLINK_SYSTEM = 6,     // a system call failed
  BLINK_INTERRUPTED = 7, // a signal handler raised; the communicator is aborted
  BLINK_UNSUPPORTED = 8, // a plan has no room in the segment for such a call
  BLINK_AGAIN = 9,       // of blink_op_step: it is not at its end yet
  BLINK_REFUSED = 10,    // its arguments make no sense: nothing has begun, and the communicator is as it was
};

// What a rank waits for; also what blink_status reports of a rank that goes on.
enum blink_waits {
  BLINK_WAITS_NOT = 0,
  BLINK_WAITS_ENTRY = 1,    // for a rank to make the same call
  BLINK_WAITS_MESSAGE = 2,  // for a chunk
  BLINK_WAITS_SLOT = 3,     // for a slot to send a chunk
  BLINK_WAITS_READER = 4,   // for a reader to finish with this rank's own buffer
  BLINK_WAITS_STREAM = 5,   // point to point
};

// Sizes of a segment, all in bytes but for the counts.
typedef struct {
  int64_t ranks;
  int64_t lines;          // control lines of 64 bytes, per rank and bank
  int64_t staging_bytes;  // per rank and bank
  int64_t inline_bytes;   // per rank and bank: small messages with their flags
  int64_t stream_bytes;   // per ordered pair of ranks, point to point
} blink_shape;

typedef struct {
  int32_t code;   // of blink_code
  int32_t rank;   // who found it
  int32_t peer;   // whom it is about; -1: nobody in particular
  int32_t waits;  // of blink_waits
  int32_t channel, share, stage;
  int32_t left;   // the peer closed its communicator in an orderly way
  int32_t earlier;    // what failed is an earlier call than this rank's
  int32_t heard;      // an earlier call of this rank said so: the communicator had ended before this one
  int64_t chunk;
  uint64_t sequence;  // number of the call on this communicator, from 1
  int64_t seconds_us; // how long it waited
  uint64_t what[2];   // what `rank` calls and, of a mismatch, `peer`; 0: nothing
  int64_t count[2];
  char text[256];
} blink_error;

// One rank as the segment shows it, for people who look at a live job.
typedef struct {
  int64_t pid;
  uint64_t processes;  // inode of the namespace in which that is its number; 0: unknown
  int64_t joined, left;
  uint64_t sequence;  // calls begun
  uint64_t what;      // the last of them, as the tables say
  int64_t count;
  uint64_t finished;  // calls finished
  int64_t waiting_us; // since when it waits
  int32_t waits, peer, channel, share, stage, padding;
  int64_t chunk;
} blink_status;

typedef struct {
  uint64_t calls, messages, message_bytes;           // messages received, and their bytes, as the Program counts them
  uint64_t inline_bytes, staged_bytes;               // of them: with flags inside, through a ring,
  uint64_t direct_read_bytes;                        // read in the sender's own buffer,
  uint64_t direct_write_bytes;                       // or written into the receiver's buffer by the sender
  uint64_t crossed_bytes;                            // of both: copied by the system between private buffers
  uint64_t stepwise;                                 // executions that had to combine message by message
  uint64_t yields, sleeps;                           // how often a wait gave up the core, or slept
} blink_stats;

// A number made of the headers that the library was compiled with.
uint32_t blink_abi_version(void);
// The version in pyproject.toml that it was built from. The text is never freed.
const char* blink_host_version(void);
// The instruction set of its kernels: "base", "avx2", "avx512" or "neon".
const char* blink_isa_name(void);
// dst[d][i] = src[0][i] ∘ src[1][i] ∘ … for i < count and every d < ndst (kernels.h). 0, or -1 where the type has no
// such operation.
int blink_combine(uint32_t dtype, uint32_t op, void* const* dst, int ndst, const void* const* src, int nsrc,
                  size_t count, int own, double scale, uint32_t divisor);

// The bytes that a segment of this shape needs; 0 if the shape makes no sense.
uint64_t blink_segment_bytes(const blink_shape* shape);
// Writes the header into fresh zeroed memory. `token` is the secret that attach must show.
int blink_segment_format(void* memory, uint64_t bytes, const blink_shape* shape, const uint8_t token[16],
                         int32_t cores);

// Joins as `rank`. `fd` is the segment's descriptor, on which the rank holds a lock as long as its process lives; -1:
// ranks are threads of one process and nobody dies. The memory stays the caller's and must outlive the communicator.
blink_comm* blink_attach(void* memory, uint64_t bytes, int32_t rank, const uint8_t token[16], int fd,
                         blink_error* error);
void blink_detach(blink_comm* comm);
void blink_abort(blink_comm* comm, const char* text);
// Says to all ranks that the process of `rank` has ended.
void blink_report_lost(blink_comm* comm, int32_t rank);
// The calls until now were the group's own; errors and blink_describe count the user's, from 1.
void blink_count_from_here(blink_comm* comm);
// Other threads of this process want this rank's core: waits yield it soon. `long_waits`: and sleep soon, as they will
// last: for a network between hosts, say.
void blink_share_core(blink_comm* comm, int long_waits);
// A heap's memory file of `bytes`, mapped where huge pages can begin; NULL with errno set.
void* blink_heap_map(int fd, uint64_t bytes);
void blink_heap_unmap(void* heap, uint64_t bytes);
// Takes the whole huge pages of a block now, zeros and all: 1, or 0 where there are none, or the system makes none.
int blink_heap_take(void* memory, uint64_t bytes);
// Its pages are the system's again, and zero when they are used next.
void blink_heap_give_back(void* memory, uint64_t bytes);
// Where `rank`'s heap of shared tensors is: mapped already (`base`), or to be mapped from `fd` on first use.
int blink_set_heap(blink_comm* comm, int32_t rank, void* base, int fd, uint64_t bytes);
// Lets long waits end at a signal, such as a user's Ctrl-C. These are Python's own functions PyGILState_Ensure,
// PyErr_CheckSignals, PyErr_Fetch and PyGILState_Release, handed over so that nothing here is built for one Python.
// `handling` is the thread (pthread_self) that runs signal handlers in the middle of a call, or 0.
typedef struct {
  int (*ensure)(void);
  int (*check_signals)(void);
  void (*fetch)(void** type, void** value, void** traceback);
  void (*release)(int);
  uint64_t* handling;
} blink_python;
void blink_set_python(blink_comm* comm, const blink_python* python);
// After BLINK_INTERRUPTED: what the signal handler raised, for PyErr_Restore. To be taken once.
void blink_take_raised(blink_comm* comm, void* raised[3]);
// Called now and then in waits that last, on the thread that waits: lets somebody else go on whom the others may wait for,
// such as MPI with a message that this rank has begun to send.
typedef struct {
  void (*call)(void* context);
  void* context;
} blink_idle;
void blink_set_idle(blink_comm* comm, const blink_idle* idle);
// Whether this rank may copy from every other rank's own memory. To be asked when all have attached.
int blink_can_cross(const blink_comm* comm);
void blink_get_stats(blink_comm* comm, blink_stats* stats);

// ---- what a rank did, and when

enum blink_event_kind { BLINK_EVENT_CALL = 1, BLINK_EVENT_EXECUTION = 2, BLINK_EVENT_WAIT = 3 };
#define BLINK_MOST_EVENTS 16777216

// A call is recorded when it ends, after what it consists of. A wait is one that outlasts its first looks, some
// microseconds, and begins after these. Point to point leaves no events.
typedef struct {
  int64_t begin_ns, end_ns;  // CLOCK_MONOTONIC, which all processes of a host share
  uint64_t sequence;         // number of the call on this communicator; its own calls count too
  uint64_t signature;        // of a call: blink_op_signature of what it ran; else 0
  int64_t amount;            // of a call: elements per block; of an execution: bytes of its chunk; else 0
  int64_t chunk;             // of an execution or a wait; else -1
  int32_t role;              // of an execution: the row of the operation's roles; else -1
  int32_t peer;              // of a wait: for whom; else -1
  int16_t kind;              // of blink_event_kind
  int16_t detail;            // of a call: of blink_code; of a wait: of blink_waits; else 0
  int32_t padding;
} blink_event;

// From now on this rank keeps its last `events` events, in memory of its own that is taken now; 0: none, as at first.
// Of roles with chunks of less than `least_bytes` no executions are kept: each event takes some 50 ns, which small calls
// would notice. What was kept is gone. Not in the middle of a call. 0, BLINK_INVALID or BLINK_SYSTEM (no memory).
int blink_record(blink_comm* comm, int64_t events, int64_t least_bytes);
// The events kept, oldest first, as many as there is `room` for; returns how many. `dropped`: how many older ones are
// gone. Not in the middle of a call.
int64_t blink_recorded(const blink_comm* comm, blink_event* events, int64_t room, uint64_t* dropped);

// Why the calling thread's last call on a communicator did not return 0.
void blink_last_error(blink_comm* comm, blink_error* error);
// All ranks' states from the bare segment; `statuses` has room for `room`. Returns the number of ranks, or -1.
int blink_describe(const void* memory, uint64_t bytes, blink_status* statuses, int32_t room);
// What ended the communicator. Returns 1 if it has ended, 0 if not, or -1.
int blink_describe_failure(const void* memory, uint64_t bytes, blink_error* error);

// One rank's part of a bound Program: a header and rows, all of int64, which are copied.
typedef struct {
  int64_t offset;             // tick of chunk 0
  int64_t chunks;
  int64_t length;             // elements of the slice
  int64_t source;             // byte offset in the input; BLINK_NOWHERE: does not contribute
  int64_t target;             // byte offset in the output; BLINK_NOWHERE: does not keep
  int64_t divisor;            // > 1: ends an average
  int64_t own_operand_index;  // messages combined before the own contribution
  int64_t first_receive, receives;
  int64_t first_send, sends;  // rows of `sends`: indexes of rings
  int64_t channel, share, stage;
} blink_role;

// Where the sender's own buffers hold a message anyway, to be read there by others.
enum blink_direct_read { BLINK_READ_NONE = 0, BLINK_READ_INPUT = 1, BLINK_READ_OUTPUT = 2 };

// One message per execution, out of a ring of `rank`.
typedef struct {
  int64_t rank;
  int64_t line;           // of the ring: messages published
  int64_t ack_line;       // messages that this reader is done with
  int64_t staging, stride, slots;
  int64_t direct_read;    // of blink_direct_read: there, if the sender's buffer can be reached
  int64_t direct_offset;  // in that buffer
  int64_t direct_write;   // 1: the sender writes into this rank's output, if that can be reached
  int64_t queue;          // counts messages
  int64_t reply_to;       // as in blink_ring
  int64_t split;          // as in blink_ring
} blink_receive;

typedef struct {
  int64_t line, staging, stride, slots;
  int64_t first_reader, readers;
  int64_t direct_read;    // of blink_direct_read
  int64_t drain;          // 1: nothing else tells that the readers are done with this rank's own buffer
  // 0: the ring lies in its sender's area. Else its messages are replies in place, which reuse the slots of the
  // messages that they answer, in the area of rank reply_to − 1: on lines that are at hand, so that they cross between
  // caches three times instead of four.
  int64_t reply_to;
  int64_t split;  // 1: where both buffers allow it, its one reader takes the even chunks and is given the odd ones
} blink_ring;

typedef struct {
  int64_t rank, ack_line;
  int64_t write_offset;   // byte offset in the reader's output; BLINK_NOWHERE: not to be written by others
} blink_reader;

typedef struct {
  uint64_t signature;  // equal on all ranks that do the same
  uint64_t what;       // for people: which collective, type, operation and root; the library only hands it on
  int64_t count;       // for people: elements per block
  uint32_t dtype, op;  // of blink_dtype and blink_operation
  int64_t chunk_elements;
  int64_t shift_bytes, shifts;    // successive calls begin their rings this much further on, so many times, then again
  int64_t inline_messages;        // small messages with their flags inside
  int64_t direct_read_in_place;   // peers may read this rank's input although its output is the same memory
  int64_t direct_write_in_place;  // peers may write this rank's output although its input is the same memory
  int64_t cross_memory;           // messages may be read in private buffers, and halves of them written there
  int64_t input_bytes, output_bytes;
  const blink_role* roles;        int64_t role_count;
  const blink_receive* receives;  int64_t receive_count;
  const int64_t* sends;           int64_t send_count;
  const blink_ring* rings;        int64_t ring_count;
  const blink_reader* readers;    int64_t reader_count;
  int64_t queue_count;
} blink_tables;

blink_op* blink_op_create(blink_comm* comm, const blink_tables* tables);
void blink_op_destroy(blink_op* op);
// As its tables say.
uint64_t blink_op_signature(const blink_op* op);
// `variant`, which `op` owns from here on, does the same in other chunks, or by other copies: all ranks add the same ones
// in the same order, before they run it. The group measures them while it works, and runs the fastest. At most 15.
int blink_op_add_variant(blink_op* op, blink_op* variant);
// Runs it. One call at a time per communicator, in the same order on all ranks. `scale` multiplies this rank's own
// contribution where `scaled`. `timeout_us` counts from now.
int blink_op_run(blink_op* op, const void* input, void* output, int scaled, double scale, int64_t timeout_us);
// The same by steps, which need not be taken by one thread, only one at a time: start sets it up, each step goes on as
// far as no other rank has to be waited for, finish waits until its end. No other call on the communicator in between.
// Where start fails, step and finish are not to be called.
int blink_op_start(blink_op* op, const void* input, void* output, int64_t timeout_us);
int blink_op_step(blink_op* op);
int blink_op_finish(blink_op* op);
// `iterations` times: barrier, clock, op, clock; or, `with_barrier`, clock, barrier, op, clock. `seconds` has room for as
// many.
int blink_op_time(blink_op* op, blink_op* barrier, const void* input, void* output, int64_t iterations,
                  int64_t timeout_us, int with_barrier, double* seconds);

// ---- plans, for any size

// A plan is a Program laid out for all ranks of a host: one block of int64s, in which this header is followed by the
// tables in the order of their counts. A row's indexes are those of rows of all ranks, the ranks' own rows in a row.
// Nothing of it is trusted: who reads it checks every number, and once bound the tables are checked as any others.
#define BLINK_PLAN_MAGIC 0x424c4b504c414e31
#define BLINK_PLAN_VERSION 1

typedef struct {
  int64_t magic, version;
  int64_t words;       // int64s of the plan, header included
  uint64_t checksum;   // of all words after this one
  int64_t digest;      // of the Program
  int64_t collective;  // of blink_collective
  int64_t root, dst;   // 0 where it has none; of sendrecv the root is who sends
  int64_t inline_messages;
  int64_t rank_count, slice_count, role_count, receive_count, send_count, ring_count, source_count, reader_count;
} blink_plan_header;

typedef struct {
  int64_t input_blocks, output_blocks;  // of `count` elements
  int64_t first_role, roles, first_ring, rings;
  int64_t queues;
  int64_t direct_read_in_place, direct_write_in_place;  // as in blink_tables
} blink_plan_rank;

// From start / start_parts to stop / stop_parts of a block.
typedef struct {
  int64_t block;  // number of the item that it is cut from
  int64_t start, start_parts, stop, stop_parts;
} blink_plan_slice;

// As blink_role, with the blocks of the input and of the output in which its slice lies, or BLINK_NOWHERE.
typedef struct {
  int64_t slice, offset;
  int64_t source_block, target_block;
  int64_t contributions;  // > 1: it completes the sum of so many
  int64_t own_operand_index;
  int64_t first_receive, receives, first_send, sends;
  int64_t channel, share, stage;
} blink_plan_role;

typedef struct {
  int64_t ring, reader;  // and which of the ring's readers this is
  int64_t queue;         // counts messages; from 0 on every rank
} blink_plan_receive;

typedef struct {
  int64_t rank, line, slots;
  int64_t first_source, sources;  // rows of slice numbers: of those who send into it
  int64_t first_reader, readers;
  int64_t direct_read, direct_block;  // of blink_direct_read, and which block of that buffer
  int64_t drain, split;               // as in blink_ring
  int64_t answers;                    // the ring whose messages these are replies to, and whose slots they reuse; or -1
} blink_plan_ring;

typedef struct {
  int64_t rank, ack_line;
  int64_t write_block;  // of the reader's output; BLINK_NOWHERE: not to be written by others
} blink_plan_reader;

// Reads and checks a plan, which is copied. nullptr and an error (BLINK_INVALID) that says what is wrong.
blink_plan* blink_plan_read(const void* bytes, uint64_t size, blink_error* error);
void blink_plan_free(blink_plan* plan);

// What a plan is bound to. All ranks must say the same.
typedef struct {
  int64_t count;        // elements per block
  uint32_t dtype;       // of blink_dtype
  uint32_t op;          // of blink_operation, and perhaps BLINK_AVERAGES or BLINK_SCALES
  int64_t chunk_bytes;  // wanted; they shrink until all messages fit into the segment
  int64_t cross_memory; // as in blink_tables; all ranks must be able to
} blink_binding;

// The rows of `rank` for one size, in a segment of this shape; they live as long as the blink_bound. nullptr and an
// error: BLINK_UNSUPPORTED where no chunk is so small that all fit, else BLINK_INVALID.
blink_bound* blink_bind(const blink_plan* plan, const blink_shape* shape, int32_t rank, const blink_binding* binding,
                        blink_error* error);
const blink_tables* blink_bound_tables(const blink_bound* bound);
void blink_bound_free(blink_bound* bound);
// The same as an operation of `comm`, which needs the plan no longer.
blink_op* blink_op_bind(blink_comm* comm, const blink_plan* plan, const blink_binding* binding, blink_error* error);

// ---- bundles: all plans of a host, and which of them serves a call

// A bundle is a file of int64s: this header, the rows of its choices and of its plans, and the plans as above.
#define BLINK_BUNDLE_MAGIC 0x424c4b42554e4431
#define BLINK_BUNDLE_VERSION 2

typedef struct {
  int64_t magic, version;
  int64_t words;          // int64s of the file
  uint64_t checksum;      // of the words from here to the first plan; plans have their own
  int64_t abi;            // blink_abi_version() of who wrote it
  int64_t package[4];     // blink_host_version(), filled up with zeros
  int64_t ranks, lines, staging_bytes, inline_bytes, stream_bytes;  // blink_shape
  int64_t choice_count, plan_count;
} blink_bundle_header;

// Of the rows with a call's collective that are no variants, the first whose limit is above S = count · itemsize · blocks
// serves it, and the variants that follow it are other ways to do the same.
typedef struct {
  int64_t collective;
  int64_t blocks;
  int64_t below;           // bytes of S
  int64_t variant;         // 1: of the row before
  int64_t cross_memory;    // 1: a variant for calls that cross, with cross-memory copies
  int64_t algorithm, inline_messages;  // of the plan; algorithms are numbered by the bundle
  int64_t chunk_bytes;     // wanted; or of so many equal parts of S, in whole cache lines, where these are smaller:
  int64_t parts;           // 0: whatever S is
} blink_bundle_choice;

typedef struct {
  int64_t collective, root, algorithm, inline_messages;
  int64_t first, words;    // where it lies, in int64s of the file
} blink_bundle_plan;

// Opens what `python -m blinkccl.runtime.host_bundle RANKS` wrote, at the path that it prints. nullptr and an error
// (BLINK_INVALID: damaged or of another version; BLINK_SYSTEM: not there, or not this user's).
blink_bundle* blink_bundle_open(const char* path, int32_t ranks, blink_error* error);
void blink_bundle_close(blink_bundle* bundle);
// Reads all of its plans. 0, or the code of the error.
int blink_bundle_check(blink_bundle* bundle, blink_error* error);
// The segment that its plans are for.
void blink_bundle_shape(const blink_bundle* bundle, blink_shape* shape);

typedef struct {
  int32_t collective, root;  // of blink_collective; 0 where it has none
  int64_t count;             // elements per block
  uint32_t dtype, op;        // as in blink_binding
  int64_t crosses;           // 1: all ranks can copy by the system (blink_can_cross), and are to try whether that pays
} blink_request;

// Blocks that differ in length, as of Allgatherv, Reduce_scatter or Alltoallv: for every block of this rank's input and
// output how long it is and where it begins, in elements. Ranks need not know each other's; both ends of a message say
// the same length of it.
typedef struct {
  const int64_t* source_lengths;
  const int64_t* sources;
  const int64_t* target_lengths;
  const int64_t* targets;
} blink_blocks;

// The operation that serves the request, as the choice table of the bundle has it; all ranks choose alike. May be called
// by several threads. nullptr and an error: see blink_bind.
blink_op* blink_bundle_op(blink_bundle* bundle, blink_comm* comm, const blink_request* request, blink_error* error);
// The same for such blocks, the request's `count` being for people alone. Nobody knows how much there is in all: served as
// the largest calls are, through rings.
blink_op* blink_bundle_op_of_blocks(blink_bundle* bundle, blink_comm* comm, const blink_request* request,
                                    const blink_blocks* blocks, blink_error* error);

// Point to point: a byte stream per ordered pair of ranks. They move what can be moved now, or after a wait of at most
// `wait_us`, and return its bytes (0: nothing), or −blink_code. One thread at a time per peer and direction, beside the
// collectives.
int64_t blink_stream_write(blink_comm* comm, int32_t peer, const void* data, int64_t bytes, int64_t wait_us);
int64_t blink_stream_read(blink_comm* comm, int32_t peer, void* data, int64_t bytes, int64_t wait_us);
// For people: the message that this rank has waited for longest, with its tag, from or to `peer` (-1: any), since
// `since_us` of CLOCK_MONOTONIC; 0: for none.
void blink_stream_show(blink_comm* comm, int32_t peer, int64_t tag, int64_t since_us);

#ifdef __cplusplus
}
#endif
#endif
