#include "bundle.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>

#include "blink/call.h"
#include "log.h"
#include "names.h"
#include "sha256.h"

namespace blink::shim {
namespace {

constexpr std::size_t kMostFileBytes = 64 << 20, kMostImageBytes = 64 << 20;
constexpr std::int64_t kMostRanks = 4096, kMostSlots = 1 << 16, kMostRows = 1 << 20;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;  // of a segment, so that sums and products cannot overflow
// Everything in a segment begins on a line of kLine bytes, and so do the counters of each part.
constexpr std::int64_t kLine = 128, kGroup = 16;

struct Refused {
  std::string text;
};

[[noreturn]] void expected(const std::string& what, const std::string& got) {
  throw Refused{"expected " + what + ", got " + got};
}

// Reads a whole file; false on an error or beyond `most` bytes.
bool contents(const std::string& path, std::size_t most, std::string* bytes) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  if (file == nullptr) return false;
  std::array<char, 1 << 16> buffer;
  for (std::size_t got; (got = std::fread(buffer.data(), 1, buffer.size(), file.get())) > 0;) {
    bytes->append(buffer.data(), got);
    if (bytes->size() > most) return false;
  }
  return std::ferror(file.get()) == 0;
}

// Copies the header and the tables out of `bytes`; refuses a file that is cut off, of another version or altered.
void take(const std::string& bytes, Bundle* bundle) {
  blink_gpu_bundle& head = *bundle;
  if (bytes.size() < sizeof head) {
    expected("a file of " + std::to_string(sizeof head) + " bytes and more", std::to_string(bytes.size()));
  }
  std::memcpy(&head, bytes.data(), sizeof head);
  const auto same = [](const char* what, std::uint64_t wanted, std::uint64_t got) {
    if (got != wanted) expected(std::string(what) + " " + std::to_string(wanted), std::to_string(got));
  };
  same("a bundle, which begins with", BLINK_GPU_BUNDLE_MAGIC, head.magic);
  same("a bundle of this version of blink-ccl, ABI", BLINK_ABI, head.abi);
  same("a file of as many bytes as it says,", head.bytes, bytes.size());
  constexpr std::size_t kDigested = offsetof(blink_gpu_bundle, digest) + sizeof head.digest;
  const std::string digest = sha256(bytes.data() + kDigested, bytes.size() - kDigested);
  bundle->plan = hex(head.digest, sizeof head.digest);
  if (digest != bundle->plan) expected("what was written, digest " + bundle->plan, digest);

  std::size_t at = sizeof head;
  const auto table = [&](auto* rows, std::uint64_t count) {
    const std::uint64_t size = count * sizeof (*rows)[0];
    if (size > bytes.size() - at) expected("tables that end with the file", std::to_string(count) + " rows");
    rows->resize(count);
    if (size > 0) std::memcpy(static_cast<void*>(&(*rows)[0]), bytes.data() + at, size);
    at += size;
  };
  table(&bundle->segments, head.segment_rows);
  table(&bundle->connections, head.connection_rows);
  table(&bundle->split_parts, head.part_rows);
  table(&bundle->splits, head.split_rows);
  table(&bundle->images, head.image_rows);
  table(&bundle->program_images, head.program_image_rows);
  table(&bundle->programs, head.program_rows);
  table(&bundle->choices, head.choice_rows);
  table(&bundle->texts, head.text_bytes);
  same("tables that are all of the file,", bytes.size(), at);
}

// The bounds that memory safety needs: the digest shows that the file is intact, not that its numbers are right.
class Checks {
 public:
  explicit Checks(const Bundle& bundle) : b_(bundle) {}

  void all() {
    header();
    each("segment", b_.segments, [this](std::uint64_t bytes) {
      range("bytes", bytes, 0, kMostBytes, number_ < ranks() ? 1 : kLine);
    });
    each("connection", b_.connections, [this](const Bundle::Connection& row) { connection(row); });
    each("split", b_.splits, [this](const Bundle::Split& row) { split(row); });
    each("image", b_.images, [this](const Bundle::Image& row) { image(row); });
    each("program", b_.programs, [this](const Bundle::Program& row) { program(row); });
    each("choice", b_.choices, [this](const Bundle::Choice& row) { choice(row); });
  }

 private:
  template <class T, class Check>
  void each(const char* table, const std::vector<T>& rows, const Check& check) {
    table_ = table;
    for (number_ = 0; number_ < static_cast<std::int64_t>(rows.size()); ++number_) {
      check(rows[static_cast<std::size_t>(number_)]);
    }
  }
  [[noreturn]] void no(const std::string& what, const std::string& got) const {
    throw Refused{std::string(table_) + " " + std::to_string(number_) + ": expected " + what + ", got " + got};
  }
  void that(bool good, const char* what, const std::string& got) const {
    if (!good) no(what, got);
  }
  template <class T>
  void range(const char* name, T value, std::int64_t least, std::int64_t most, std::int64_t unit = 1) const {
    const auto it = static_cast<std::int64_t>(value);
    if (it >= least && it <= most && it % unit == 0) return;
    const std::string steps = unit == 1 ? "" : " in steps of " + std::to_string(unit);
    no(name + (" of " + std::to_string(least)) + " to " + std::to_string(most) + steps, std::to_string(it));
  }
  // Rows [first, first + count) of a table.
  void rows(const char* name, std::uint32_t first, std::uint32_t count, std::size_t of) const {
    range(name, std::uint64_t{first} + count, 0, static_cast<std::int64_t>(of));
    range(name, count, 1, kMostRows);
  }
  void text(const char* name, std::uint32_t at) const { range(name, at, 0, b_.text_bytes - std::int64_t{1}); }
  std::int64_t ranks() const { return b_.nranks; }

  void header() {
    table_ = "header";
    range("nranks", b_.nranks, 1, kMostRanks);
    range("segment_rows", b_.segment_rows, ranks(), kMostRows);
    for (const std::uint32_t count :
         {b_.connection_rows, b_.image_rows, b_.program_rows, b_.choice_rows, b_.split_rows}) {
      range("rows", count, 0, kMostRows);
    }
    range("first_path", b_.first_path, 0, b_.connection_rows);
    range("parts", b_.parts, 1, 1024);
    range("slots", b_.slots, 1, kMostSlots);
    range("slot_bytes", b_.slot_bytes, kLine, kMostBytes, kLine);
    range("line_bytes", b_.line_bytes, 0, kMostBytes, kLine);
    // A block of the GPU consists of whole warps; on the CPU a block is one thread.
    range("threads", b_.threads, 1, kMostThreads, b_.threads == 1 ? 1 : 32);
    range("copy_slots", b_.copy_slots, 0, kMostSlots);
    range("copy_slot_bytes", b_.copy_slot_bytes, b_.copy_slots == 0 ? 0 : kLine, kMostBytes, kLine);
    range("path_slots", b_.path_slots, b_.first_path == b_.connection_rows ? 0 : 1, kMostSlots);
    range("path_slot_bytes", b_.path_slot_bytes, b_.path_slots == 0 ? 0 : kLine, kMostBytes, kLine);
    const bool ended = !b_.texts.empty() && b_.texts.front() == 0 && b_.texts.back() == 0;
    that(ended, "texts that begin and end with 0", "others");
  }

  // `count` × `bytes` bytes in a segment.
  void area(const char* name, std::uint64_t at, int segment, std::uint64_t count, std::uint64_t bytes) const {
    const auto end = static_cast<std::int64_t>(b_.segments[static_cast<std::size_t>(segment)]);
    range(name, at, 0, end, kLine);
    if (bytes != 0 && count > (static_cast<std::uint64_t>(end) - at) / bytes) {
      no(std::string(name) + " to end within the " + std::to_string(end) + " bytes of segment " +
             std::to_string(segment),
         std::to_string(count) + " × " + std::to_string(bytes) + " bytes from " + std::to_string(at));
    }
  }

  void connection(const Bundle::Connection& row) const {
    const auto segments = static_cast<std::int64_t>(b_.segments.size());
    const std::uint64_t messages = std::uint64_t{b_.parts} * b_.slots, counters = std::uint64_t{b_.parts} * kLine;
    const bool path = b_.is_path(static_cast<std::size_t>(number_));
    range("src", row.src, 0, ranks() - 1);
    range("dst", row.dst, 0, ranks() - 1);
    that(row.src != row.dst, "two ranks", "one");
    range("home", row.home, row.staged() ? ranks() : 0, (row.staged() ? segments : ranks()) - 1);
    that(row.staged() || (path ? row.copied() : row.pushed() || !row.copied()), "a home where it may be",
         std::to_string(row.home));
    if (!path) {
      area("ring", row.ring, row.home, messages, b_.slot_bytes);
      area("lines", row.lines, row.home, 2 * messages, b_.line_bytes);
      area("src_position", row.src_position, row.src, 1, counters);
      area("dst_position", row.dst_position, row.dst, 1, counters);
    }
    area("tail", row.tail, row.tail_at(), 1, path ? kLine : counters);
    area("head", row.head, row.head_at(), 1, path ? kLine : counters);
    const std::uint32_t slots = b_.slots_of(static_cast<std::size_t>(number_));
    const std::uint64_t slot_bytes = b_.slot_bytes_of(static_cast<std::size_t>(number_));
    if (slots == 0 || !row.copied()) return;
    area("copy_ring", row.copy_ring, row.home, slots, slot_bytes);
    area("copy_tail", row.copy_tail, row.tail_at(), 1, kLine);
    area("copy_head", row.copy_head, row.head_at(), 1, kLine);
    if (row.staged() && !path) area("copy_landing", row.copy_landing, row.dst, slots, slot_bytes);
  }

  void split(const Bundle::Split& row) const {
    range("chunks", row.chunks, 1, 1 << 10);
    rows("parts", row.first_part, row.part_rows, b_.split_parts.size());
    text("why", row.why);
    std::uint32_t before = 0;
    std::vector<std::uint32_t> paths;
    for (const Bundle::Part& part : b_.parts_of(row)) {
      range("path", part.path, b_.first_path, b_.connection_rows - std::int64_t{1});
      const Bundle::Connection& path = b_.connections[part.path];
      that(path.src == row.src && path.dst == row.dst, "paths between its two ranks", std::to_string(part.path));
      // Both ends count a path's chunks without exchanging messages, so each path has at most one part of a message.
      const bool fresh = std::find(paths.begin(), paths.end(), part.path) == paths.end();
      that(fresh, "every path once", std::to_string(part.path));
      paths.push_back(part.path);
      range("stop", part.stop, before + std::int64_t{1}, Bundle::kWhole);
      before = part.stop;
    }
    that(before == Bundle::kWhole, "parts that are all of a message", std::to_string(before));
  }

  void image(const Bundle::Image& row) const {
    range("bytes", row.bytes, 1, kMostImageBytes);
    text("arch", row.arch);
    text("file", row.file);
    // Only images inside the bundle's directory are loaded, since other users may write elsewhere.
    const std::string file = b_.text(row.file);
    const bool inside = !file.empty() && file[0] != '.' && file.find('/') == std::string::npos;
    that(inside, "the name of a file in the bundle", file);
  }

  void program(const Bundle::Program& row) const {
    range("collective", row.collective, 0, BLINK_ALLTOALL);
    const bool rooted = has_root(row.kind());
    range("root", row.root, rooted ? 0 : -1, rooted ? ranks() - 1 : -1);
    range("channels", row.channels, 1, 1 << 16);
    range("parts", row.parts, 1, b_.parts);
    rows("images", row.first_image, row.image_rows, b_.program_images.size());
    for (const std::uint32_t image : b_.images_of(row)) range("image", image, 0, b_.image_rows - std::int64_t{1});
    range("number", row.number, 0, b_.program_rows - std::int64_t{1});
    for (const std::uint32_t kernel : row.kernel) text("kernel", kernel);
    that(b_.copy_slots != 0 || !row.has(Bundle::kCopies), "slots for what copy engines run", "none");
  }

  void choice(const Bundle::Choice& row) const {
    range("collective", row.collective, 0, BLINK_ALLTOALL);
    text("why", row.why);
    range("program", row.program, -1, b_.program_rows - std::int64_t{1});
    range("other_program", row.other_program, -1, row.program < 0 ? -1 : b_.program_rows - std::int64_t{1});
    if (row.program >= 0) way("protocol", row, row.program, row.protocol, row.chunk_bytes);
    if (row.compares()) way("other_protocol", row, row.other_program, row.other_protocol, row.other_chunk_bytes);
  }

  // The program of a choice must run this collective, with room for the chunk.
  void way(const char* name, const Bundle::Choice& row, int number, std::uint32_t protocol, std::uint64_t chunk) const {
    const Bundle::Program& chosen = b_.programs[static_cast<std::size_t>(number)];
    range(name, protocol, 0, Bundle::kProtocols.size() - 1);
    const auto selected = static_cast<Bundle::Protocol>(protocol);
    // Graphs cannot contain copy engines' work, so the simple kernel is needed as well.
    that(chosen.collective == row.collective && chosen.root == row.root && chosen.has(selected) &&
             (selected != Bundle::kCopies || chosen.has(Bundle::kSimple)),
         "a program with this collective, root and protocol", "program " + std::to_string(number));
    range("chunk_bytes", chunk, kGroup, static_cast<std::int64_t>(b_.capacity(selected)), kGroup);
  }

  const Bundle& b_;
  const char* table_ = "";
  std::int64_t number_ = 0;
};

}  // namespace

std::uint32_t Bundle::blocks() const {
  std::uint32_t most = 0;
  for (const Program& program : programs) {
    if (program.has_kernel()) most = std::max(most, program.channels * program.parts);
  }
  return most;
}

std::uint64_t Bundle::memory_bytes() const {
  return std::accumulate(segments.begin() + nranks, segments.end(), std::uint64_t{0});
}

std::uint64_t Bundle::capacity(Protocol protocol) const {
  if (protocol == kSimple) return slot_bytes;
  if (protocol == kCopies) return copy_slot_bytes;
  return protocol == kLL ? line_bytes / 2 : line_bytes / 128 * 120;
}

bool Bundle::read_image(const Image& image, std::string* code, std::string* why) const {
  const std::string file = file_of(image);
  if (contents(file, kMostImageBytes, code) && code->size() == image.bytes &&
      sha256(code->data(), code->size()) == hex(image.digest, sizeof image.digest)) {
    return true;
  }
  *why = file + ": expected the " + std::to_string(image.bytes) + " bytes that the planner wrote, got " +
         std::to_string(code->size()) + " bytes, or others";
  return false;
}

const char* name_of(Collective collective) {
  if (is_message(collective)) return collective == Collective::kSend ? "send" : "recv";
  return name_of_collective(static_cast<std::uint32_t>(collective));
}

bool has_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

bool read_bundle(const std::string& directory, Bundle* bundle, std::string* why) {
  const std::string path = directory + "/bundle";
  *bundle = {};
  std::string bytes;
  try {
    if (!contents(path, kMostFileBytes, &bytes)) expected("a file of at most 64 MiB that can be read", "none");
    take(bytes, bundle);
    Checks(*bundle).all();
    bundle->directory = directory;
    return true;
  } catch (const Refused& refused) {
    *why = path + ": " + refused.text;
    *bundle = {};
    return false;
  }
}

}  // namespace blink::shim
