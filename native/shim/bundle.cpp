#include "bundle.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "blink/call.h"

namespace blink::shim {
namespace {

constexpr int kVersion = 2;
constexpr std::size_t kMostFileBytes = 64 << 20;
constexpr std::uint64_t kMostRanks = 4096, kMostParts = 1024, kMostSlots = 1 << 16;
constexpr std::uint64_t kMostSplitChunks = 1 << 10, kMostChannels = 1 << 16, kMostBytes = std::uint64_t{1} << 40, kMostItems = 1 << 20;
// Whatever lies in a segment begins on a line, and so do the counters of every part.
constexpr std::uint64_t kLine = 128, kGroup = 16;
constexpr std::uint64_t kAnySize = ~std::uint64_t{0};

constexpr std::array<const char*, 8> kCollectives = {"broadcast",      "reduce", "allreduce", "allgather",
                                                     "reduce_scatter", "gather", "scatter",   "alltoall"};

struct Malformed {
  std::string text;
};

[[noreturn]] void expected(const std::string& what, const std::string& got) {
  constexpr std::size_t kShown = 80;
  throw Malformed{"expected " + what + ", got " +
                  (got.empty() ? "nothing" : "'" + (got.size() > kShown ? got.substr(0, kShown) + "…" : got) + "'")};
}

bool is_word(const std::string& text, const char* more) {
  const std::string letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  return !text.empty() && text.find_first_not_of(letters + more) == std::string::npos;
}

std::uint64_t number_in(const std::string& text, const std::string& what, std::uint64_t least, std::uint64_t most) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    expected(what + " of " + std::to_string(least) + " to " + std::to_string(most), text);
  }
  return value;
}

// The words of one line, taken from left to right.
class Line {
 public:
  explicit Line(const std::string& text) : text_(text) {}

  bool has_more() const { return at_ < text_.size(); }
  bool comes(const std::string& name) const { return text_.compare(at_, name.size() + 1, name + " ") == 0; }

  std::string word(const std::string& what) {
    const std::size_t end = std::min(text_.find(' ', at_), text_.size());
    const std::string taken = at_ < text_.size() ? text_.substr(at_, end - at_) : "";
    if (taken.empty()) expected(what, has_more() ? "two spaces" : "");
    at_ = std::min(end + 1, text_.size());
    // A space that nothing follows is half a line.
    if (end + 1 == text_.size()) expected("a word after '" + taken + "'", "");
    return taken;
  }
  void key(const std::string& name) {
    const std::string got = word("'" + name + "'");
    if (got != name) expected("'" + name + "'", got);
  }
  std::uint64_t number(const std::string& what, std::uint64_t least, std::uint64_t most) {
    return number_in(word(what), what, least, most);
  }
  std::uint64_t named(const std::string& name, std::uint64_t least, std::uint64_t most) {
    key(name);
    return number("'" + name + "'", least, most);
  }
  // A number of bytes that ends on a line of the segment.
  std::uint64_t aligned(const std::string& name, std::uint64_t least, std::uint64_t most) {
    const std::uint64_t bytes = named(name, least, most);
    if (bytes % kLine != 0) expected("'" + name + "' to be a multiple of 128", std::to_string(bytes));
    return bytes;
  }
  // A number that counts the items of a kind, from 0 on, without a gap.
  void index(const std::string& what, std::size_t have) {
    if (have >= kMostItems) expected("at most " + std::to_string(kMostItems) + " of " + what, "more");
    const std::string got = word("the number of the " + what);
    if (got != std::to_string(have)) expected(what + " " + std::to_string(have), got);
  }
  template <std::size_t N>
  std::size_t one_of(const std::string& what, const std::array<const char*, N>& names) {
    const std::string got = word(what);
    const auto found = std::find(names.begin(), names.end(), got);
    if (found == names.end()) expected(what, got);
    return static_cast<std::size_t>(found - names.begin());
  }
  std::string rest(const std::string& what) {
    if (!has_more()) expected(what, "");
    return text_.substr(std::exchange(at_, text_.size()));
  }
  void end() const {
    if (has_more()) expected("the end of the line", text_.substr(at_));
  }

 private:
  const std::string& text_;
  std::size_t at_ = 0;
};

// Reads the lines in the order in which the planner writes them.
class Reader {
 public:
  Reader(const std::string& text, Bundle* bundle) : bundle_(*bundle) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines_.push_back(line);
  }

  // Of the line at hand, from 1 on.
  std::size_t number() const { return number_; }

  void read() {
    const std::string first = "blink-bundle " + std::to_string(kVersion);
    if (lines_[0] != first) expected("'" + first + "'", lines_[0]);
    one("plan", &Reader::plan);
    one("ranks", &Reader::ranks);
    one("geometry", &Reader::geometry);
    for (int rank = 0; rank < bundle_.nranks; ++rank) one("segment", &Reader::segment);
    all("memory", &Reader::memory);
    all("connection", &Reader::connection);
    bundle_.first_path = bundle_.connections.size();
    all("paths", &Reader::paths);
    all("path", &Reader::path);
    find_overlaps();
    all("split", &Reader::split);
    all("image", &Reader::image);
    all("program", &Reader::program);
    do {
      one("choice", &Reader::choice);
    } while (number_ < lines_.size());
  }

 private:
  typedef void (Reader::*Item)(Line& line);

  void one(const char* kind, Item item) {
    const std::string text = number_ < lines_.size() ? lines_[number_] : "";
    ++number_;
    Line line(text);
    line.key(kind);
    (this->*item)(line);
    line.end();
  }
  void all(const std::string& kind, Item item) {
    const std::string begin = kind + " ";
    while (number_ < lines_.size() && lines_[number_].compare(0, begin.size(), begin) == 0) one(kind.c_str(), item);
  }

  void plan(Line& line) {
    const std::string hash = line.word("a hash");
    const bool is_hash = hash.size() == 64 && hash.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!is_hash) expected("64 hexadecimal digits", hash);
    bundle_.plan = hash;
  }

  void ranks(Line& line) { bundle_.nranks = static_cast<int>(line.number("the number of ranks", 1, kMostRanks)); }

  void geometry(Line& line) {
    bundle_.parts = static_cast<std::uint32_t>(line.named("parts", 1, kMostParts));
    bundle_.slots = static_cast<std::uint32_t>(line.named("slots", 1, kMostSlots));
    bundle_.slot_bytes = line.aligned("slot_bytes", kLine, kMostBytes);
    bundle_.line_bytes = line.aligned("line_bytes", 0, kMostBytes);
    bundle_.threads = static_cast<std::uint32_t>(line.named("threads", 1, kMostThreads));
    // A block of the GPU is made of whole warps; on the CPU one thread is a block.
    if (bundle_.threads != 1 && bundle_.threads % 32 != 0) {
      expected("threads to be 1 or a multiple of 32", std::to_string(bundle_.threads));
    }
    if (line.has_more()) {
      bundle_.copy_slots = static_cast<std::uint32_t>(line.named("copy_slots", 1, kMostSlots));
      bundle_.copy_slot_bytes = line.aligned("copy_slot_bytes", kLine, kMostBytes);
    }
  }

  void segment(Line& line) {
    line.index("segment", bundle_.segments.size());
    bundle_.segments.push_back(line.number("bytes", 0, kMostBytes));
  }

  void memory(Line& line) {
    line.index("memory", bundle_.segments.size() - static_cast<std::size_t>(bundle_.nranks));
    bundle_.segments.push_back(line.number("bytes", kLine, kMostBytes));
    if (bundle_.segments.back() % kLine != 0) expected("whole lines", std::to_string(bundle_.segments.back()));
  }

  void connection(Line& line) {
    line.index("connection", bundle_.connections.size());
    Bundle::Connection connection;
    const auto last = static_cast<std::uint64_t>(bundle_.nranks - 1);
    connection.src = static_cast<int>(line.named("src", 0, last));
    connection.dst = static_cast<int>(line.named("dst", 0, last));
    if (connection.src == connection.dst) expected("two ranks", "twice rank " + std::to_string(connection.src));
    const std::uint64_t messages = std::uint64_t{bundle_.parts} * bundle_.slots, counters = bundle_.parts * kLine;
    connection.home = connection.dst;
    if (line.comes("pulled")) {
      line.key("pulled");
      connection.home = connection.src;
    } else if (line.comes("memory")) {
      connection.home = memory_in(line);
      connection.on_host = true;
    }
    connection.ring = area(line, "ring", connection.home, messages, bundle_.slot_bytes);
    connection.lines = area(line, "lines", connection.home, messages, bundle_.line_bytes);
    connection.tail = area(line, "tail", connection.tail_at(), 1, counters);
    connection.head = area(line, "head", connection.head_at(), 1, counters);
    connection.src_position = area(line, "src_position", connection.src, 1, counters);
    connection.dst_position = area(line, "dst_position", connection.dst, 1, counters);
    if (bundle_.copy_slots != 0 && connection.copied()) {
      const auto ring = [&](const char* name, int at) {
        return area(line, name, at, bundle_.copy_slots, bundle_.copy_slot_bytes);
      };
      connection.copy_ring = ring("copy_ring", connection.home);
      connection.copy_tail = area(line, "copy_tail", connection.tail_at(), 1, kLine);
      connection.copy_head = area(line, "copy_head", connection.head_at(), 1, kLine);
      if (connection.staged()) connection.copy_landing = ring("copy_landing", connection.dst);
    }
    bundle_.connections.push_back(connection);
  }

  int memory_in(Line& line) const {
    const std::size_t memories = bundle_.segments.size() - static_cast<std::size_t>(bundle_.nranks);
    if (memories == 0) expected("a plan with memories", "none");
    return bundle_.nranks + static_cast<int>(line.named("memory", 0, memories - 1));
  }

  void paths(Line& line) {
    if (bundle_.path_slots != 0) expected("one line of 'paths'", "two");
    bundle_.path_slots = static_cast<std::uint32_t>(line.named("slots", 1, kMostSlots));
    bundle_.path_slot_bytes = line.aligned("slot_bytes", kLine, kMostBytes);
  }

  void path(Line& line) {
    line.index("path", bundle_.connections.size() - bundle_.first_path);
    if (bundle_.path_slots == 0) expected("a line of 'paths' before a path", "");
    Bundle::Connection path;
    const auto last = static_cast<std::uint64_t>(bundle_.nranks - 1);
    path.src = static_cast<int>(line.named("src", 0, last));
    path.dst = static_cast<int>(line.named("dst", 0, last));
    path.on_host = line.comes("memory");
    path.home = path.on_host ? memory_in(line) : static_cast<int>(line.named("home", 0, last));
    if (path.src == path.dst || path.home == path.src) {
      expected("two ranks, and a path that ends on another than the first", std::to_string(path.src));
    }
    path.copy_ring = area(line, "ring", path.home, bundle_.path_slots, bundle_.path_slot_bytes);
    path.tail = path.copy_tail = area(line, "tail", path.tail_at(), 1, kLine);
    path.head = path.copy_head = area(line, "head", path.head_at(), 1, kLine);
    bundle_.connections.push_back(path);
  }

  void split(Line& line) {
    if (bundle_.splits.size() >= kMostItems) expected("fewer splits", "more");
    Bundle::Split split;
    const auto last = static_cast<std::uint64_t>(bundle_.nranks - 1);
    split.src = static_cast<int>(line.named("src", 0, last));
    split.dst = static_cast<int>(line.named("dst", 0, last));
    split.least = line.named("least", 1, kAnySize);
    split.most = line.named("most", split.least, kAnySize);
    split.chunks = static_cast<std::uint32_t>(line.named("chunks", 1, kMostSplitChunks));
    line.key("parts");
    std::istringstream stream(line.word("parts of a message") + ",");
    for (std::string text; std::getline(stream, text, ',');) split.parts.push_back(part(text, split));
    if (split.parts.back().stop != Bundle::kWhole) expected("parts that are all of a message", "less");
    line.key("why");
    split.why = line.rest("a reason");
    bundle_.splits.push_back(std::move(split));
  }

  // "3:524288": path 3, up to half of the message.
  Bundle::Part part(const std::string& text, const Bundle::Split& split) const {
    const std::size_t colon = std::min(text.find(':'), text.size());
    const std::size_t paths = bundle_.connections.size() - bundle_.first_path;
    if (paths == 0) expected("a path before its split", text);
    const std::uint64_t before = split.parts.empty() ? 0 : split.parts.back().stop;
    Bundle::Part part;
    const std::size_t id = bundle_.first_path + number_in(text.substr(0, colon), "a path", 0, paths - 1);
    const Bundle::Connection& path = bundle_.connections[id];
    if (path.src != split.src || path.dst != split.dst) expected("a path between the two ranks", text);
    // Both ends count a path's chunks alone: in one message it has one part.
    for (const Bundle::Part& other : split.parts) {
      if (other.path == id) expected("every path once", text);
    }
    part.path = static_cast<std::uint32_t>(id);
    const std::string stop = colon < text.size() ? text.substr(colon + 1) : "";
    part.stop = number_in(stop, "the end of a part", before + 1, Bundle::kWhole);
    return part;
  }

  // The offset of `count` × `bytes` bytes in a segment.
  std::uint64_t area(Line& line, const char* name, int at, std::uint64_t count, std::uint64_t bytes) {
    const std::uint64_t segment = bundle_.segments[static_cast<std::size_t>(at)];
    const bool is_rank = at < bundle_.nranks;
    const std::uint64_t offset = line.aligned(name, 0, segment);
    if (bytes != 0 && count > (segment - offset) / bytes) {
      expected(std::string("'") + name + "' to end within the " + std::to_string(segment) + " bytes of " +
                   (is_rank ? "rank " + std::to_string(at) + "'s segment"
                            : "memory " + std::to_string(at - bundle_.nranks)),
               std::to_string(count) + " × " + std::to_string(bytes) + " bytes from " + std::to_string(offset));
    }
    if (bytes != 0) areas_.push_back({at, offset, offset + count * bytes, bundle_.connections.size(), name});
    return offset;
  }

  void find_overlaps() {
    const auto before = [](const Area& a, const Area& b) {
      return a.segment != b.segment ? a.segment < b.segment : a.begin < b.begin;
    };
    std::sort(areas_.begin(), areas_.end(), before);
    for (std::size_t i = 1; i < areas_.size(); ++i) {
      const Area &one = areas_[i - 1], &two = areas_[i];
      if (one.segment != two.segment || one.end <= two.begin) continue;
      expected("connections that do not overlap", "'" + std::string(two.name) + "' of connection " +
               std::to_string(two.connection) + " within '" + one.name + "' of connection " +
               std::to_string(one.connection));
    }
  }

  void image(Line& line) {
    line.index("image", bundle_.images.size());
    Bundle::Image image;
    line.key("arch");
    image.arch = line.word("an architecture");
    if (!is_word(image.arch, "_")) expected("an architecture such as sm_90", image.arch);
    line.key("file");
    const std::string file = line.word("a file");
    // Images lie in the bundle: what another user can write is not run.
    if (!is_word(file, "_-.") || file[0] == '.') expected("the name of a file in the bundle", file);
    image.file = bundle_.directory + "/" + file;
    struct stat about {};
    if (stat(image.file.c_str(), &about) != 0 || !S_ISREG(about.st_mode) || access(image.file.c_str(), R_OK) != 0) {
      expected("a file that can be read", image.file);
    }
    bundle_.images.push_back(image);
  }

  int root_of(const std::string& text) const {
    if (text == "-1") return -1;
    return static_cast<int>(number_in(text, "a root", 0, static_cast<std::uint64_t>(bundle_.nranks - 1)));
  }

  Collective collective(Line& line) {
    line.key("collective");
    return static_cast<Collective>(line.one_of("a collective", kCollectives));
  }

  void program(Line& line) {
    line.index("program", bundle_.programs.size());
    Bundle::Program program;
    program.collective = collective(line);
    line.key("root");
    const std::string root = line.word("a root");
    program.root = root_of(root);
    if (has_root(program.collective) != (program.root >= 0)) {
      expected(has_root(program.collective) ? "the rank of the root" : "root -1, as this collective has none", root);
    }
    program.channels = static_cast<std::uint32_t>(line.named("channels", 1, kMostChannels));
    line.key("image");
    program.images = image_ids(line.word("numbers of images"));
    for (std::size_t protocol = 0; protocol < Bundle::kProtocols.size(); ++protocol) {
      if (protocol == Bundle::kCopies && !line.has_more()) continue;
      line.key(Bundle::kProtocols[protocol]);
      const std::string kernel = line.word("a kernel or -");
      if (kernel == "-") continue;
      if (!is_word(kernel, "_")) expected("a kernel's name or -", kernel);
      if (protocol == Bundle::kCopies && bundle_.copy_slots == 0) expected("slots for copies in the geometry", "");
      program.kernel[protocol] = kernel;
    }
    bundle_.programs.push_back(program);
  }

  std::vector<int> image_ids(const std::string& text) const {
    std::vector<int> ids;
    if (bundle_.images.empty()) expected("an image before its program", "");
    std::istringstream stream(text + ",");  // so that an empty last entry is one
    for (std::string id; std::getline(stream, id, ',');) {
      ids.push_back(static_cast<int>(number_in(id, "an image", 0, bundle_.images.size() - 1)));
    }
    if (std::set<int>(ids.begin(), ids.end()).size() != ids.size()) expected("every image once", text);
    return ids;
  }

  void choice(Line& line) {
    Bundle::Choice choice;
    choice.collective = collective(line);
    line.key("root");
    const std::string root = line.word("a root");
    choice.root = root == "any" ? -1 : root_of(root);
    if (choice.root >= 0 && !has_root(choice.collective)) expected("root -1 or any, as this collective has none", root);
    choice.least = line.named("least", 0, kAnySize);
    choice.most = line.named("most", choice.least, kAnySize);
    line.key("program");
    const std::string program = line.word("a program or -1");
    if (program != "-1") choice.program = program_id(program);
    line.key("protocol");
    const std::string protocol = line.word("a protocol");
    const std::uint64_t chunk_bytes = line.named("chunk", 0, kMostBytes);
    choice.search = line.named("search", 0, 1) == 1;
    if (line.comes("other")) other(line, &choice);
    line.key("why");
    choice.why = line.rest("the reason");
    if (choice.program < 0) {
      if (protocol != "-") expected("protocol -, as nothing of ours runs", protocol);
      if (choice.search) expected("search 0, as nothing of ours runs", "1");
      if (choice.other.program >= 0) expected("no other program, as nothing of ours runs", "one");
    } else {
      choose(choice, &choice, protocol, chunk_bytes);
    }
    bundle_.choices.push_back(choice);
  }

  int program_id(const std::string& text) const {
    if (bundle_.programs.empty()) expected("a program before the choice of it", text);
    return static_cast<int>(number_in(text, "a program", 0, bundle_.programs.size() - 1));
  }

  void other(Line& line, Bundle::Choice* choice) const {
    line.key("other");
    choice->other.program = program_id(line.word("a program"));
    line.key("protocol");
    const std::string protocol = line.word("a protocol");
    choose(*choice, &choice->other, protocol, line.named("chunk", 0, kMostBytes));
  }

  // A program for a choice must do what is asked for, and have room for the chunk.
  void choose(const Bundle::Choice& choice, Bundle::Way* way, const std::string& protocol,
              std::uint64_t chunk_bytes) const {
    const Bundle::Program& program = bundle_.programs[static_cast<std::size_t>(way->program)];
    if (program.collective != choice.collective || program.root != choice.root) {
      const auto text = [](Collective collective, int root) {
        return std::string(name_of(collective)) + " with root " + std::to_string(root);
      };
      expected("a program for " + text(choice.collective, choice.root), text(program.collective, program.root));
    }
    const auto found = std::find(Bundle::kProtocols.begin(), Bundle::kProtocols.end(), protocol);
    if (found == Bundle::kProtocols.end()) expected("simple, ll or ll128, or copies", protocol);
    way->protocol = static_cast<Bundle::Protocol>(found - Bundle::kProtocols.begin());
    if (program.kernel[way->protocol].empty()) {
      expected("a protocol that program " + std::to_string(way->program) + " has a kernel for", protocol);
    }
    // Copy engines do not serve graphs: the kernel does.
    if (way->protocol == Bundle::kCopies && program.kernel[Bundle::kSimple].empty()) {
      expected("a program that also has a kernel for simple", protocol);
    }
    const std::uint64_t most = bundle_.capacity(way->protocol);
    way->chunk_bytes = chunk_bytes;
    if (chunk_bytes == 0 || chunk_bytes % kGroup != 0 || chunk_bytes > most) {
      expected("a chunk of a multiple of 16 bytes up to the " + std::to_string(most) + " of a message",
               std::to_string(chunk_bytes));
    }
  }

  struct Area {
    int segment;
    std::uint64_t begin, end;
    std::size_t connection;
    const char* name;
  };
  Bundle& bundle_;
  std::vector<std::string> lines_;
  std::size_t number_ = 1;
  std::vector<Area> areas_;
};

// False if it cannot be read or is larger than any plan.
bool contents(const std::string& path, std::string* text) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  if (file == nullptr) return false;
  std::array<char, 1 << 16> buffer;
  for (std::size_t got; (got = std::fread(buffer.data(), 1, buffer.size(), file.get())) > 0;) {
    text->append(buffer.data(), got);
    if (text->size() > kMostFileBytes) return false;
  }
  return std::ferror(file.get()) == 0;
}

}  // namespace

std::uint64_t Bundle::memory_bytes() const {
  return std::accumulate(segments.begin() + nranks, segments.end(), std::uint64_t{0});
}

std::uint64_t Bundle::capacity(Protocol protocol) const {
  if (protocol == kSimple) return slot_bytes;
  if (protocol == kCopies) return copy_slot_bytes;
  return protocol == kLL ? line_bytes / 2 : line_bytes / 128 * 120;
}

const char* name_of(Collective collective) {
  if (is_message(collective)) return collective == Collective::kSend ? "send" : "recv";
  return kCollectives[static_cast<std::size_t>(collective)];
}

bool has_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

bool read_bundle(const std::string& directory, Bundle* bundle, std::string* why) {
  const std::string path = directory + "/bundle.txt";
  *bundle = {};
  bundle->directory = directory;
  std::string text;
  if (!contents(path, &text)) {
    *why = path + ": expected a file of at most " + std::to_string(kMostFileBytes) + " bytes that can be read";
    return false;
  }
  Reader reader(text, bundle);
  try {
    // The last line, too, has its end, or part of it is missing.
    if (text.empty() || text.back() != '\n') expected("a file that ends with a line's end", "a part of it");
    reader.read();
    return true;
  } catch (const Malformed& malformed) {
    *why = path + ", line " + std::to_string(reader.number()) + ": " + malformed.text;
    *bundle = {};
    return false;
  }
}

}  // namespace blink::shim
