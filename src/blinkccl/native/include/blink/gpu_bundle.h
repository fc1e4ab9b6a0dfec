// The file `bundle` in the directory that blinkccl.nccl makes and libblink.so reads: this header, tables of the rows
// below in the order of the header's counts, and texts. Rows name each other by number, and texts by where they begin.
#ifndef BLINK_GPU_BUNDLE_H
#define BLINK_GPU_BUNDLE_H

#include <stdint.h>

#define BLINK_GPU_BUNDLE_MAGIC 0x424c4b4750554231

struct blink_gpu_bundle {
  uint64_t magic;
  uint64_t abi;        // a number made of the headers that Python and native code share: it is the version
  uint64_t bytes;      // of the file
  uint8_t digest[32];  // SHA-256 of all that follows here, which all ranks must agree on
  uint32_t segment_rows, connection_rows, part_rows, split_rows, image_rows, program_image_rows, program_rows, choice_rows;
  uint32_t text_bytes;  // each text ends with a 0; the empty one is at 0
  uint32_t first_path;  // connections from here on are paths of messages, with a ring for copy engines alone
  int32_t nranks;
  // Of a connection; `parts` are the most of any program, `threads` those of a block. No copy_slots: nothing of
  // collectives is for copy engines.
  uint32_t parts, slots, threads, copy_slots, path_slots;
  uint64_t slot_bytes, line_bytes, copy_slot_bytes, path_slot_bytes;
};

// Of each rank's GPU, then of memories of the host, which lie one behind the other.
struct blink_gpu_segment {
  uint64_t bytes;
};

// A queue of messages. They lie in the segment `home`: dst's, src's (pulled), or a memory's (staged). A path of messages
// may have them on a third rank's GPU, whose program need not call anything.
struct blink_gpu_connection {
  int32_t src, dst, home;
  uint32_t on_host;  // 1: home is a memory
  // Where in home's segment; tail in dst's and head in src's, or home's too where that is a memory; positions each in its
  // own rank's. For copy engines the same again, and where they fetch what is staged, in dst's.
  uint64_t ring, lines, tail, head, src_position, dst_position, copy_ring, copy_tail, copy_head, copy_landing;
};

// Part of a message: its connection, and where it ends, in 2^20ths of the message. It begins where the one before ends.
struct blink_gpu_part {
  uint32_t path, stop;
};

// How messages of `least` to `most` bytes go from a rank to another: in parts side by side, each by a path of its own.
struct blink_gpu_split {
  int32_t src, dst;
  uint64_t least, most;
  uint32_t chunks;  // of the longest part, and of all others; more where slots are too small for it
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
  int32_t root;        // -1: it has none
  uint32_t channels, parts;  // a launch's blocks; fewer parts where a rank has no room for so many
  uint32_t first_image, image_rows;  // of program images
  uint32_t number;                   // among the programs of its kernels
  uint32_t kernel[4];                // their names, by protocol: simple, ll, ll128, copies; empty: there is none
};

// What serves a collective of `least` to `most` bytes, and another program that first calls try beside it.
struct blink_gpu_choice {
  int32_t collective, root;  // -1: any
  uint64_t least, most;
  uint64_t chunk_bytes, other_chunk_bytes;
  int32_t program, other_program;  // -1: NCCL's; there is none
  uint32_t protocol, other_protocol;
  uint32_t search, why;  // 1: for a chunk size
};

#endif
