// The host engine's C ABI: ranks are processes (or threads) of one machine that share one memory segment.
//
// Plain C, loaded with ctypes. Python decides everything that does not depend on a size: the Program, and the readers
// of each ring. Every rank computes it from the same agreed numbers (blinkccl/engines/host_plan.py), and it is a plan
// here. This library binds sizes to the plan: the chunks and the places of the rings. It also runs programs without
// Python. Functions return 0 or one of blink_code; blink_last_error gives details.
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

// Marks the absence of a place in a buffer.
#define BLINK_NOWHERE -1
#define BLINK_MOST_RAILS 65535
#define BLINK_MOST_HOPS 8  // of a route
// A small message is sent in blocks. A block holds a line for the flag and BLINK_PAYLOAD_BYTES of payload.
#define BLINK_PAYLOAD_BYTES 4096
#define BLINK_BLOCK_BYTES 4160
// The area over which successive small calls are spread, because a line that a peer has just read is slow to write
// again. It has to exceed the first-level cache (128 KiB and more made messages of 16 to 64 KiB 1.2 to 1.7 times as
// fast) and to fit into the second-level cache.
#define BLINK_SMALL_CALLS_BYTES 393216

typedef struct blink_comm blink_comm;
typedef struct blink_op blink_op;
typedef struct blink_plan blink_plan;
typedef struct blink_bound blink_bound;
typedef struct blink_bundle blink_bundle;

enum blink_code {
  BLINK_OK = 0,
  BLINK_DEADLINE = 1,   // timeout of a wait;
  BLINK_PEER_LOST = 2,  // a rank's process has ended;
  BLINK_MISMATCH = 3,   // ranks made different calls;
  BLINK_ABORTED = 4,    // abort() was called on this or another rank;
  BLINK_INVALID = 5,    // invalid arguments, tables or segment;
  BLINK_SYSTEM = 6,     // a system call failed;
  BLINK_INTERRUPTED = 7, // a signal handler raised; the communicator is aborted;
  BLINK_UNSUPPORTED = 8, // the segment is too small for the call, or no plan serves it;
  BLINK_AGAIN = 9,       // of blink_op_start and blink_op_step: the call is not complete;
  BLINK_REFUSED = 10,    // invalid arguments of a call that has not begun: the communicator stays usable
};

// The reason for a wait; blink_status reports it for a rank that is not waiting too.
enum blink_waits {
  BLINK_WAITS_NOT = 0,
  BLINK_WAITS_ENTRY = 1,    // for a rank to make the same call
  BLINK_WAITS_MESSAGE = 2,  // for a chunk;
  BLINK_WAITS_SLOT = 3,     // for a free slot to send a chunk;
  BLINK_WAITS_READER = 4,   // for a reader to finish with this rank's own buffer;
  BLINK_WAITS_STREAM = 5,   // point to point
};

// Sizes of a segment; all are bytes, except the counts.
typedef struct {
  int64_t ranks;
  int64_t lines;          // control lines of 64 bytes, per rank and bank
  int64_t staging_bytes;  // per rank and bank
  int64_t inline_bytes;   // per rank and bank: small messages with their flags
  int64_t stream_bytes;   // per ordered pair of ranks, point to point
} blink_shape;

typedef struct {
  int32_t code;   // of blink_code
  int32_t rank;   // that detected the error;
  int32_t peer;   // concerned by the error; -1: no particular rank;
  int32_t waits;  // of blink_waits;
  int32_t channel, share, stage;
  int32_t left;   // the peer closed its communicator in an orderly way;
  int32_t earlier;    // the failed call is earlier than this rank's current one;
  int32_t heard;      // an earlier call of this rank reported it: the communicator had ended before this call;
  int64_t chunk;
  uint64_t sequence;  // number of the call on this communicator, from 1;
  int64_t seconds_us; // duration of the wait;
  uint64_t what[2];   // the calls of `rank` and, for a mismatch, of `peer`; 0: none
  int64_t count[2];
  char text[256];
} blink_error;

// The state of one rank in the segment, for monitoring a live job.
typedef struct {
  int64_t pid;
  uint64_t processes;  // inode of the PID namespace of `pid`; 0: unknown;
  int64_t joined, left;
  uint64_t sequence;  // calls begun
  uint64_t what;      // the last of them, as in blink_tables
  int64_t count;
  uint64_t finished;  // calls finished
  int64_t waiting_us; // start of the current wait
  int32_t waits, peer, channel, share, stage, remote;  // remote: 1 for a rank on another host
  int64_t chunk;
} blink_status;

typedef struct {
  uint64_t calls, messages, message_bytes;           // messages received, and their bytes, as the Program counts them;
  uint64_t inline_bytes, staged_bytes;               // of these: with flags inside, or through a ring;
  uint64_t direct_read_bytes;                        // of these: read in the sender's own buffer;
  uint64_t direct_write_bytes;                       // of these: written into the receiver's buffer by the sender;
  uint64_t crossed_bytes;                            // of direct ones: copied by the system between private buffers;
  uint64_t network_bytes;                            // from another host;
  uint64_t stepwise;                                 // executions that had to reduce message by message;
  uint64_t yields, sleeps;                           // waits that gave up the core, or slept;
  uint64_t parts;                                    // of chunks that the rank's threads shared
} blink_stats;

// A hash of the headers that the library was compiled with.
uint32_t blink_abi_version(void);
// The version in pyproject.toml at build time. The text is never freed.
const char* blink_host_version(void);
// The instruction set of its kernels: "base", "avx2", "avx512" or "neon".
const char* blink_isa_name(void);
// dst[d][i] = src[0][i] ∘ src[1][i] ∘ … for i < count and every d < ndst (kernels.h). Returns 0, or -1 if the type has
// no such operation.
int blink_combine(uint32_t dtype, uint32_t op, void* const* dst, int ndst, const void* const* src, int nsrc,
                  size_t count, int own, double scale, uint32_t divisor);

// The bytes that a segment of this shape needs; 0 for an invalid shape.
uint64_t blink_segment_bytes(const blink_shape* shape);
// Writes the header into fresh zeroed memory. `token` is the secret that blink_attach must present.
int blink_segment_format(void* memory, uint64_t bytes, const blink_shape* shape, const uint8_t token[16],
                         int32_t cores);

// Joins as `rank`. `fd` is the segment's descriptor, on which the rank holds a lock until its process ends. With -1
// ranks are threads of one process, and none dies alone. The caller owns the memory, which must outlive the
// communicator.
blink_comm* blink_attach(void* memory, uint64_t bytes, int32_t rank, const uint8_t token[16], int fd,
                         blink_error* error);
void blink_detach(blink_comm* comm);
void blink_abort(blink_comm* comm, const char* text);
// Reports to all ranks that the process of `rank` has ended.
void blink_report_lost(blink_comm* comm, int32_t rank);
// ---- ranks on other hosts, over UCX

// Opens the networks of this host for `comm`, before its first call, with UCX's library in the file `library`; UCX_*
// variables apply. `devices`: as UCX_NET_DEVICES, or NULL for all. Ranks of this host write to the eventfd `bell` to wake this one. Copies this rank's address for its
// peers to `into` and returns its bytes; -1 with an error (BLINK_SYSTEM) on failure or where `room` is too small.
int64_t blink_open_network(blink_comm* comm, const char* library, const char* devices, int bell, void* into, int64_t room,
                           blink_error* error);
// The same for messages that a plan sends over rail `rail`, 1 to BLINK_MOST_RAILS, and for `streams` if not 0.
int64_t blink_open_rail(blink_comm* comm, int32_t rail, const char* devices, int streams, void* into, int64_t room,
                        blink_error* error);
// Sets the address of `rank`, which is on another host, on rail 0 (the first address) or another that both have opened.
// Returns 0, or BLINK_INVALID for malformed bytes.
int blink_connect(blink_comm* comm, int32_t rank, int32_t rail, const void* address, int64_t bytes);
// Messages up to `bytes` between hosts leave at once, at the cost of a copy; larger ones wait until their receiver is ready.
void blink_send_at_once(blink_comm* comm, int64_t bytes);
// Sets the eventfd of another rank of this host.
void blink_set_bell(blink_comm* comm, int32_t rank, int bell);

// Marks all calls until now as the group's own. Errors and blink_describe number the user's calls from 1.
void blink_count_from_here(blink_comm* comm);
// Other threads of this process need this rank's core: waits yield it early. `long_waits`: waits will last, for a
// network between hosts for example, so they also sleep early.
void blink_share_core(blink_comm* comm, int long_waits);
// Maps a heap's memory file of `bytes` at an address where huge pages can begin; NULL with errno set.
void* blink_heap_map(int fd, uint64_t bytes);
void blink_heap_unmap(void* heap, uint64_t bytes);
// Allocates the whole huge pages of a block now, filled with zeros. Returns 1, or 0 if the block has none or the system
// provides none.
int blink_heap_take(void* memory, uint64_t bytes);
// Returns the pages of a block to the system; they are zero at their next use.
void blink_heap_give_back(void* memory, uint64_t bytes);
// Sets `rank`'s heap of shared tensors: already mapped at `base`, or mapped from `fd` on first use.
int blink_set_heap(blink_comm* comm, int32_t rank, void* base, int fd, uint64_t bytes);
// Lets long waits end at a signal, such as a user's Ctrl-C. The pointers are Python's own PyGILState_Ensure,
// PyErr_CheckSignals, PyErr_Fetch and PyGILState_Release, so that this library is not built for one Python version.
// `handling` is the thread (pthread_self) that runs signal handlers in the middle of a call, or 0.
typedef struct {
  int (*ensure)(void);
  int (*check_signals)(void);
  void (*fetch)(void** type, void** value, void** traceback);
  void (*release)(int);
  uint64_t* handling;
} blink_python;
void blink_set_python(blink_comm* comm, const blink_python* python);
// After BLINK_INTERRUPTED: the exception of the signal handler, for PyErr_Restore. Available once.
void blink_take_raised(blink_comm* comm, void* raised[3]);
// A function that long waits call from time to time, on the waiting thread. It lets other work of this process progress
// on which the peers may depend, such as an MPI message that this rank has begun to send.
typedef struct {
  void (*call)(void* context);
  void* context;
} blink_idle;
void blink_set_idle(blink_comm* comm, const blink_idle* idle);
// `threads` of this rank, the calling one included, share large chunks from the next call on. Only this rank's value:
// others may have other numbers. Returns a code.
#define BLINK_MOST_THREADS 1024
int blink_set_threads(blink_comm* comm, int32_t threads);
// Returns 1 if this rank may copy from every other rank's own memory. Call it when all ranks have attached.
int blink_can_cross(const blink_comm* comm);
void blink_get_stats(blink_comm* comm, blink_stats* stats);

// ---- events of a rank

enum blink_event_kind { BLINK_EVENT_CALL = 1, BLINK_EVENT_EXECUTION = 2, BLINK_EVENT_WAIT = 3 };
#define BLINK_MOST_EVENTS 16777216

// A call is recorded when it ends, after its executions and waits. Only waits that outlast their spinning, some
// microseconds, are recorded; they begin after it. Point to point records no events.
typedef struct {
  int64_t begin_ns, end_ns;  // CLOCK_MONOTONIC, which all processes of a host share
  uint64_t sequence;         // number of the call on this communicator; the group's own calls count too
  uint64_t signature;        // of a call: blink_op_signature of its operation; else 0;
  int64_t amount;            // of a call: elements per block; of an execution: bytes of its chunk; else 0;
  int64_t chunk;             // of an execution or a wait; else -1;
  int32_t role;              // of an execution: the row of the operation's roles; else -1;
  int32_t peer;              // of a wait: the rank waited for; else -1;
  int16_t kind;              // of blink_event_kind;
  int16_t detail;            // of a call: of blink_code; of a wait: of blink_waits; else 0;
  int32_t padding;
} blink_event;

// Starts recording this rank's last `events` events, in its own memory, which is allocated now; 0, the default, records
// none. Executions of roles with chunks of less than `least_bytes` are not recorded: each event takes some 50 ns, which
// would slow small calls down. Earlier events are lost. Not allowed during a call. 0, BLINK_INVALID or BLINK_SYSTEM (no
// memory).
int blink_record(blink_comm* comm, int64_t events, int64_t least_bytes);
// Copies the recorded events, oldest first, at most `room`, and returns their number. `dropped`: the number of older
// events that were lost. Not allowed during a call.
int64_t blink_recorded(const blink_comm* comm, blink_event* events, int64_t room, uint64_t* dropped);

// The error of the calling thread's last call on a communicator.
void blink_last_error(blink_comm* comm, blink_error* error);
// Reads all ranks' states from the segment; `statuses` has room for `room`. Returns the number of ranks, or -1.
int blink_describe(const void* memory, uint64_t bytes, blink_status* statuses, int32_t room);
// Reads the error that ended the communicator. Returns 1 if it has ended, 0 if not, or -1.
int blink_describe_failure(const void* memory, uint64_t bytes, blink_error* error);

// One rank's part of a bound Program: a header and rows of int64s. The library copies them.
typedef struct {
  int64_t offset;             // tick of chunk 0
  int64_t chunks;
  int64_t chunk_elements;     // of all chunks but the last;
  int64_t length;             // elements of the slice
  int64_t source;             // byte offset in the input; BLINK_NOWHERE: the role contributes nothing;
  int64_t target;             // byte offset in the output; BLINK_NOWHERE: the role keeps nothing;
  int64_t divisor;            // > 1: completes an average;
  int64_t own_operand_index;  // messages reduced before the own contribution
  int64_t first_receive, receives;
  int64_t first_send, sends;  // rows of `sends`: indexes of rings
  int64_t channel, share, stage;
} blink_role;

// The sender's own buffer that contains a message, so that peers can read it directly.
enum blink_direct_read { BLINK_READ_NONE = 0, BLINK_READ_INPUT = 1, BLINK_READ_OUTPUT = 2 };

// One message per execution, out of a ring of `rank`.
typedef struct {
  int64_t rank;
  int64_t line;           // of the ring: messages published;
  int64_t ack_line;       // messages that this reader has finished with;
  int64_t staging, stride, slots;
  int64_t direct_read;    // of blink_direct_read: read there, if the sender's buffer is accessible;
  int64_t direct_offset;  // in that buffer;
  int64_t direct_write;   // 1: the sender writes into this rank's output, if that is accessible;
  int64_t queue;          // index of the message counter;
  int64_t reply_to;       // as in blink_ring;
  int64_t split;          // as in blink_ring
} blink_receive;

typedef struct {
  int64_t line, staging, stride, slots;
  int64_t first_reader, readers;
  int64_t direct_read;    // of blink_direct_read
  int64_t drain;          // 1: no other message implies that the readers have finished with this rank's own buffer
  // 0: the ring is in its sender's area. Otherwise its messages are replies in place: they reuse the slots of the
  // messages that they answer, in the area of rank reply_to − 1. Those lines are already in the cache, so that they
  // cross between caches three times instead of four.
  int64_t reply_to;
  int64_t split;  // 1: if both buffers allow it, the one reader reads even chunks, the sender writes odd ones
} blink_ring;

typedef struct {
  int64_t rank, ack_line;
  int64_t write_offset;   // byte offset in the reader's output; BLINK_NOWHERE: not to be written by others
  int64_t rail;           // of messages to a reader on another host; 0: any network
} blink_reader;

typedef struct {
  uint64_t signature;  // equal on all ranks that make the same call;
  uint64_t what;       // for messages: collective, type, operation and root; the library does not interpret it;
  int64_t count;       // for messages: elements per block;
  uint32_t dtype, op;  // of blink_dtype and blink_operation;
  int64_t shift_bytes, shifts;    // each call moves its rings this far, and the first place returns after `shifts` calls;
  int64_t inline_messages;        // 1: small messages with their flags inside;
  int64_t direct_read_in_place;   // peers may read this rank's input even if its output is the same memory;
  int64_t direct_write_in_place;  // peers may write this rank's output even if its input is the same memory;
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
// The signature in its tables.
uint64_t blink_op_signature(const blink_op* op);
// Adds `variant`, which does the same with other chunks or other copies, and which `op` owns from now on. All ranks add
// the same variants in the same order, before the first run. The group measures them during its calls and runs the
// fastest. At most 15.
int blink_op_add_variant(blink_op* op, blink_op* variant);
// Runs the operation. One call at a time per communicator, in the same order on all ranks. `scale` multiplies this
// rank's own contribution if `scaled`. `timeout_us` counts from now.
int blink_op_run(blink_op* op, const void* input, void* output, int scaled, double scale, int64_t timeout_us);
// The same in steps, which different threads may take, one at a time. start and step progress until the call would have to
// wait for another rank for longer than `patience_us`. finish waits for the end. No other call on the communicator is
// allowed in between. After any result but BLINK_AGAIN the call has ended.
int blink_op_start(blink_op* op, const void* input, void* output, int64_t timeout_us, int64_t patience_us);
int blink_op_step(blink_op* op, int64_t patience_us);
int blink_op_finish(blink_op* op);
// 1 if the call in progress has only messages of others to receive, so that no rank waits for its next step; else 0.
int blink_op_only_receives(const blink_op* op);
// Runs the operation `iterations` times: barrier, clock, op, clock; or, `with_barrier`, clock, barrier, op, clock.
// `seconds` has one entry per iteration.
int blink_op_time(blink_op* op, blink_op* barrier, const void* input, void* output, int64_t iterations,
                  int64_t timeout_us, int with_barrier, double* seconds);

// ---- plans, for any size

// A plan is a Program laid out for all ranks of a host: one block of int64s, in which this header is followed by the
// tables in the order of their counts. Row indexes count over all ranks; the rows of each rank are consecutive.
// Plans are not trusted: the reader checks every number, and the bound tables are checked again.
#define BLINK_PLAN_MAGIC 0x424c4b504c414e31
#define BLINK_PLAN_VERSION 2

typedef struct {
  int64_t magic, version;
  int64_t words;       // int64s of the plan, header included
  uint64_t checksum;   // of all words after this one
  int64_t digest;      // of the Program
  int64_t collective;  // of blink_collective
  int64_t root, dst;   // 0 where it has none; for sendrecv the root is the sender
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
  int64_t block;  // index of the item that contains the slice
  int64_t start, start_parts, stop, stop_parts;
} blink_plan_slice;

// As blink_role, with the blocks of the input and of the output that contain its slice, or BLINK_NOWHERE.
typedef struct {
  int64_t slice, offset;
  int64_t source_block, target_block;
  int64_t contributions;  // > 1: it completes a sum of this many;
  int64_t own_operand_index;
  int64_t first_receive, receives, first_send, sends;
  int64_t channel, share, stage;
} blink_plan_role;

typedef struct {
  int64_t ring, reader;  // the ring, and this reader's row;
  int64_t queue;         // index of the message counter, from 0 on every rank
} blink_plan_receive;

typedef struct {
  int64_t rank, line, slots;
  int64_t first_source, sources;  // rows of slice numbers: those of the ring's senders;
  int64_t first_reader, readers;
  int64_t direct_read, direct_block;  // of blink_direct_read, and the block of that buffer;
  int64_t drain, split;               // as in blink_ring;
  int64_t answers;                    // the ring that these messages reply to, reusing its slots; or -1
} blink_plan_ring;

typedef struct {
  int64_t rank, ack_line;
  int64_t write_block;  // of the reader's output; BLINK_NOWHERE: others must not write it
  int64_t rail;         // as in blink_reader
} blink_plan_reader;

// Reads, checks and copies a plan. Returns nullptr and an error (BLINK_INVALID) with the reason.
blink_plan* blink_plan_read(const void* bytes, uint64_t size, blink_error* error);
void blink_plan_free(blink_plan* plan);

// Parameters that bind a plan. They must be equal on all ranks.
typedef struct {
  int64_t count;        // elements per block
  uint32_t dtype;       // of blink_dtype
  uint32_t op;          // of blink_operation, optionally with BLINK_AVERAGES or BLINK_SCALES;
  int64_t chunk_bytes;  // requested; reduced until all messages fit into the segment;
  int64_t cross_memory; // as in blink_tables; requires that all ranks can
} blink_binding;

// The rows of `rank` for one size, in a segment of this shape; they live as long as the blink_bound. Returns nullptr
// and an error: BLINK_UNSUPPORTED if even the smallest chunks do not fit, else BLINK_INVALID.
blink_bound* blink_bind(const blink_plan* plan, const blink_shape* shape, int32_t rank, const blink_binding* binding,
                        blink_error* error);
const blink_tables* blink_bound_tables(const blink_bound* bound);
void blink_bound_free(blink_bound* bound);
// The same as an operation of `comm`. The plan may be freed afterwards.
blink_op* blink_op_bind(blink_comm* comm, const blink_plan* plan, const blink_binding* binding, blink_error* error);

// ---- bundles: all plans of a host, and the choice between them

// A bundle is a file of int64s: this header, the rows of its choices and of its plans, and the plans as above.
#define BLINK_BUNDLE_MAGIC 0x424c4b42554e4431
#define BLINK_BUNDLE_VERSION 2

typedef struct {
  int64_t magic, version;
  int64_t words;          // int64s of the file
  uint64_t checksum;      // of the words from here to the first plan; plans have their own
  int64_t abi;            // blink_abi_version() of the writer
  int64_t package[4];     // blink_host_version(), filled up with zeros
  int64_t ranks, lines, staging_bytes, inline_bytes, stream_bytes;  // blink_shape
  int64_t choice_count, plan_count;
} blink_bundle_header;

// A call has a size S = count · itemsize · blocks. It is served by the first row of its collective that is no variant
// and has a limit above S. The variants that follow that row are alternatives with the same result.
typedef struct {
  int64_t collective;
  int64_t blocks;
  int64_t below;           // bytes of S
  int64_t variant;         // 1: of the row before;
  int64_t cross_memory;    // 1: a variant with cross-memory copies, for calls with `crosses` set;
  int64_t algorithm, inline_messages;  // of the plan; algorithms are numbered by the bundle
  int64_t chunk_bytes;     // requested; or 1/parts of S, in whole cache lines, if that is smaller;
  int64_t parts;           // 0: chunk_bytes for every S
} blink_bundle_choice;

typedef struct {
  int64_t collective, root, algorithm, inline_messages;
  int64_t first, words;    // position and length, in int64s of the file
} blink_bundle_plan;

// Opens a file that `python -m blinkccl.runtime.host_bundle RANKS` wrote, at the path that it prints. Returns nullptr
// and an error (BLINK_INVALID: damaged or of another version; BLINK_SYSTEM: missing, or not owned by this user).
blink_bundle* blink_bundle_open(const char* path, int32_t ranks, blink_error* error);
void blink_bundle_close(blink_bundle* bundle);
// Reads and checks all plans. Returns 0 or the code of the error.
int blink_bundle_check(blink_bundle* bundle, blink_error* error);
// The segment shape that its plans require.
void blink_bundle_shape(const blink_bundle* bundle, blink_shape* shape);

typedef struct {
  int32_t collective, root;  // of blink_collective; 0 where it has none
  int64_t count;             // elements per block
  uint32_t dtype, op;        // as in blink_binding
  int64_t crosses;           // 1: all ranks can cross (blink_can_cross), and cross-memory variants are tried
} blink_request;

// Blocks of different lengths, as in Allgatherv, Reduce_scatter or Alltoallv: the length and the offset of every block
// of this rank's input and output, in elements. A rank need not know the lengths of other ranks' blocks, but both ends
// of a message must give the same length.
typedef struct {
  const int64_t* source_lengths;
  const int64_t* sources;
  const int64_t* target_lengths;
  const int64_t* targets;
} blink_blocks;

// The operation that the bundle's choice table selects for the request; all ranks select the same. Thread-safe. Returns
// nullptr and an error as blink_bind does.
blink_op* blink_bundle_op(blink_bundle* bundle, blink_comm* comm, const blink_request* request, blink_error* error);
// The same for blocks of different lengths; the request's `count` is only for messages. No rank knows the total size,
// so the plan for the largest calls is used, with rings.
blink_op* blink_bundle_op_of_blocks(blink_bundle* bundle, blink_comm* comm, const blink_request* request,
                                    const blink_blocks* blocks, blink_error* error);

// Point to point: a byte stream per ordered pair of ranks. Each call moves the bytes that can be moved at once, or
// after a wait of at most `wait_us`. It returns their number (0: none), or −blink_code. One thread at a time per peer
// and direction; collectives may run at the same time. `large`: the bytes take all routes to a rank on another host.
int64_t blink_stream_write(blink_comm* comm, int32_t peer, const void* data, int64_t bytes, int large, int64_t wait_us);
int64_t blink_stream_read(blink_comm* comm, int32_t peer, void* data, int64_t bytes, int64_t wait_us);
// Waits at most `wait_us` until `peer` receives all bytes written to it, even if this rank leaves then. Returns 1, 0 at
// the timeout, or −blink_code.
int64_t blink_stream_flush(blink_comm* comm, int32_t peer, int64_t wait_us);
// Adds a route for `share` of the bytes of large messages to `peer`: hop i leads over rail `rails[i]` to rank `ranks[i]`, the
// last one `peer`. The ranks before it forward, while a thread of theirs is in blink_stream_serve(). Returns 0, or
// BLINK_INVALID.
int blink_stream_route(blink_comm* comm, int32_t peer, double share, int32_t hops, const int32_t* rails, const int32_t* ranks);
// Forwards the messages of others to ranks on other hosts for `wait_us`. Returns 1, or 0 if the communicator has failed.
int blink_stream_serve(blink_comm* comm, int64_t wait_us);
// Reports, for monitoring, the point-to-point message that this rank has waited for longest: its tag, from or to `peer`
// (-1: any), since `since_us` of CLOCK_MONOTONIC; 0: none.
void blink_stream_show(blink_comm* comm, int32_t peer, int64_t tag, int64_t since_us);

#ifdef __cplusplus
}
#endif
#endif
