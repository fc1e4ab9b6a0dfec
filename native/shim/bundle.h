// The planner's decision: the file that blinkccl.nccl writes (blink/gpu_bundle.h), read and checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "blink/gpu_bundle.h"
#include "blink/types.h"

namespace blink::shim {

enum class Collective {
  kBroadcast = BLINK_BROADCAST, kReduce = BLINK_REDUCE, kAllReduce = BLINK_ALLREDUCE, kAllGather = BLINK_ALLGATHER,
  kReduceScatter = BLINK_REDUCE_SCATTER, kGather = BLINK_GATHER, kScatter = BLINK_SCATTER, kAllToAll = BLINK_ALLTOALL,
  kSend = BLINK_SENDRECV, kRecv,  // the ends of a message, which has no program
};
// Names as in blinkccl.collectives.spec; "send" and "recv" for the ends of a message.
const char* name_of(Collective collective);
bool has_root(Collective collective);
inline bool is_message(Collective collective) { return collective >= Collective::kSend; }

// The rows of one table that belong to a row of another.
template <class T>
struct Rows {
  const T *first, *last;
  const T* begin() const { return first; }
  const T* end() const { return last; }
};

struct Bundle : blink_gpu_bundle {
  struct Connection : blink_gpu_connection {
    bool pushed() const { return home == dst; }
    bool copied() const { return home != src; }
    bool staged() const { return on_host != 0; }
    int tail_at() const { return staged() ? home : dst; }
    int head_at() const { return staged() ? home : src; }
  };
  typedef blink_gpu_part Part;
  typedef blink_gpu_split Split;
  typedef blink_gpu_image Image;
  static constexpr std::uint32_t kWhole = 1 << 20;
  // The planner reads BLINK_PROTOCOL=simple|ll|ll128|copies and then chooses that protocol wherever it is possible.
  enum Protocol { kSimple = 0, kLL = 1, kLL128 = 2, kCopies = 3 };
  static constexpr std::array<const char*, 4> kProtocols = {"simple", "ll", "ll128", "copies"};
  struct Program : blink_gpu_program {
    Collective kind() const { return static_cast<Collective>(collective); }
    bool has(Protocol protocol) const { return kernel[protocol] != 0; }
    bool has_kernel() const { return has(kSimple) || has(kLL) || has(kLL128); }
  };
  struct Way {
    int program = -1;
    Protocol protocol = kSimple;
    std::uint64_t chunk_bytes = 0;
  };
  struct Choice : blink_gpu_choice {
    Collective kind() const { return static_cast<Collective>(collective); }
    bool compares() const { return other_program >= 0; }
    Way own_way() const { return {program, static_cast<Protocol>(protocol), chunk_bytes}; }
    Way other_way() const { return {other_program, static_cast<Protocol>(other_protocol), other_chunk_bytes}; }
  };

  std::string directory, plan;  // `plan`: the digest in hexadecimal digits
  std::vector<std::uint64_t> segments;
  std::vector<Connection> connections;
  std::vector<Part> split_parts;
  std::vector<Split> splits;
  std::vector<Image> images;
  std::vector<std::uint32_t> program_images;
  std::vector<Program> programs;
  std::vector<Choice> choices;
  std::string texts;

  const char* text(std::uint32_t at) const { return texts.c_str() + at; }
  Rows<Part> parts_of(const Split& split) const {
    return {split_parts.data() + split.first_part, split_parts.data() + split.first_part + split.part_rows};
  }
  Rows<std::uint32_t> images_of(const Program& program) const {
    const std::uint32_t* const first = program_images.data() + program.first_image;
    return {first, first + program.image_rows};
  }
  const char* kernel_of(const Program& program, Protocol protocol) const { return text(program.kernel[protocol]); }
  std::string file_of(const Image& image) const { return directory + "/" + text(image.file); }
  std::uint32_t blocks() const;        // the largest number in a launch
  std::uint64_t memory_bytes() const;  // of all segments behind the ranks' own
  bool is_path(std::size_t connection) const { return connection >= first_path; }
  // The ring of the copy engines: number and bytes of its slots.
  std::uint32_t slots_of(std::size_t connection) const { return is_path(connection) ? path_slots : copy_slots; }
  std::uint64_t slot_bytes_of(std::size_t connection) const {
    return is_path(connection) ? path_slot_bytes : copy_slot_bytes;
  }
  // Bytes of data in a message of one part: half of LL's lines and 8 of LL128's 128 bytes are flags.
  std::uint64_t capacity(Protocol protocol) const;

  // Reads an image's file; false and `why` if it differs from the planner's.
  bool read_image(const Image& image, std::string* code, std::string* why) const;
};

// Reads and checks a bundle. False and `why` (file, row, expected, got) if the file is missing, incomplete, damaged or
// of another version. False, too, if its numbers point outside its tables or the ranks' memory.
bool read_bundle(const std::string& directory, Bundle* bundle, std::string* why);

}  // namespace blink::shim
