// The file `bundle` in the directory that blinkccl.nccl writes and libblink.so reads: this header, tables of the rows
// below in the order of the header's counts, and texts. Rows refer to each other by index, and to texts by offset.
#ifndef BLINK_GPU_BUNDLE_H
#define BLINK_GPU_BUNDLE_H

#include <stdint.h>

#define BLINK_GPU_BUNDLE_MAGIC 0x424c4b4750554231

struct blink_gpu_bundle {
  uint64_t magic;
  uint64_t abi;        // a hash of the headers that Python and native code share; it serves as the version
  uint64_t bytes;      // of the file
  uint8_t digest[32];  // SHA-256 of everything after this member; must be equal on all ranks
  uint32_t segment_rows, connection_rows, part_rows, split_rows, image_rows, program_image_rows, program_rows, choice_rows;
  uint32_t text_bytes;  // each text ends with a 0; the empty one is at offset 0;
  uint32_t first_path;  // connections from this index on are paths of messages, with a ring for copy engines only
  int32_t nranks;
  // Of a connection; `parts` is the maximum over all programs, `threads` that of a block. copy_slots 0: no collective
  // uses copy engines.
  uint32_t parts, slots, threads, copy_slots, path_slots;
  uint64_t slot_bytes, line_bytes, copy_slot_bytes, path_slot_bytes;
};

// The segments of the ranks' GPUs, then those of host memories, in order.
struct blink_gpu_segment {
  uint64_t bytes;
};

// A queue of messages. They are in the segment `home`: dst's, src's (pulled), or a memory's (staged). The messages of a
// path may be on a third rank's GPU, whose program need not call anything.
struct blink_gpu_connection {
  int32_t src, dst, home;
  uint32_t on_host;  // 1: home is a memory
  // Offsets in home's segment, but tail in dst's and head in src's unless home is a memory; each position is in its own
  // rank's segment. The copy_ members are the same for copy engines; they fetch staged messages into copy_landing, in
  // dst's.
  uint64_t ring, lines, tail, head, src_position, dst_position, copy_ring, copy_tail, copy_head, copy_landing;
};

// Part of a message: its connection, and its end in 2^20ths of the message. It begins where the one before ends.
struct blink_gpu_part {
  uint32_t path, stop;
};

// The paths of messages of `least` to `most` bytes between two ranks: the parts travel in parallel, each on its own
// path.
struct blink_gpu_split {
  int32_t src, dst;
  uint64_t least, most;
  uint32_t chunks;  // of the longest part, and of all others; more if the slots are too small;
  uint32_t first_part, part_rows, why;
};

// A file in the same directory. Its architecture is "sm_90", "any", or "host": an object with entries for copy engines.
struct blink_gpu_image {
  uint64_t bytes;
  uint8_t digest[32];
  uint32_t arch, file;
};

struct blink_gpu_program_image {
  uint32_t image;
};

struct blink_gpu_program {
  int32_t collective;  // of blink_collective
  int32_t root;        // -1: none;
  uint32_t channels, parts;  // a launch's blocks; fewer parts on a GPU that cannot hold that many;
  uint32_t first_image, image_rows;  // of program images;
  uint32_t number;                   // index among the programs of its kernels;
  uint32_t kernel[4];                // kernel names by protocol: simple, ll, ll128, copies; empty: none
};

// The program for a collective of `least` to `most` bytes, and another one that the first calls try as well.
struct blink_gpu_choice {
  int32_t collective, root;  // -1: any
  uint64_t least, most;
  uint64_t chunk_bytes, other_chunk_bytes;
  int32_t program, other_program;  // -1: NCCL's, or no other program;
  uint32_t protocol, other_protocol;
  uint32_t search, why;  // search is 1 where the chunk size is searched
};

#endif
