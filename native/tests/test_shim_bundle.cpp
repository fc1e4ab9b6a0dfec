// A plan's file is read unchanged. Truncated or damaged files, and those of another version or with invalid references,
// are rejected with the file, the row, the expected value and the actual one.
// Sanitizers: address.
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "bundle.h"
#include "check.h"
#include "directory.h"
#include "sha256.h"

namespace {

using namespace blink_test;
using namespace blink::shim;

// Writes the digest in the header's form.
void digest_into(std::uint8_t* digest, const std::string& bytes) {
  const std::string digits = sha256(bytes.data(), bytes.size());
  for (std::size_t i = 0; i < 32; ++i) digest[i] = static_cast<std::uint8_t>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
}

// A file that a planner might write.
struct File {
  blink_gpu_bundle head{};
  std::vector<blink_gpu_segment> segments;
  std::vector<blink_gpu_connection> connections;
  std::vector<blink_gpu_part> parts;
  std::vector<blink_gpu_split> splits;
  std::vector<blink_gpu_image> images;
  std::vector<blink_gpu_program_image> program_images;
  std::vector<blink_gpu_program> programs;
  std::vector<blink_gpu_choice> choices;
  std::string texts = std::string(1, '\0');
  std::function<void(std::string*)> spoil = [](std::string*) {};

  std::uint32_t text(const std::string& words) {
    texts += words + '\0';
    return static_cast<std::uint32_t>(texts.size() - words.size() - 1);
  }
  std::string bytes() const {
    blink_gpu_bundle told = head;
    std::string rows;
    const auto table = [&rows](std::uint32_t* count, const auto& all) {
      if (*count == 0) *count = static_cast<std::uint32_t>(all.size());
      rows.append(reinterpret_cast<const char*>(all.data()), all.size() * sizeof all[0]);
    };
    table(&told.segment_rows, segments), table(&told.connection_rows, connections), table(&told.part_rows, parts);
    table(&told.split_rows, splits), table(&told.image_rows, images), table(&told.program_image_rows, program_images);
    table(&told.program_rows, programs), table(&told.choice_rows, choices), table(&told.text_bytes, texts);
    told.bytes = sizeof told + rows.size();
    constexpr std::size_t kDigested = offsetof(blink_gpu_bundle, digest) + sizeof told.digest;
    std::string all(reinterpret_cast<const char*>(&told), sizeof told);
    all += rows;
    digest_into(told.digest, all.substr(kDigested));
    std::memcpy(&all[0], &told, kDigested);
    spoil(&all);
    return all;
  }
};

// Three ranks and a memory: one connection pushed, one pulled, one staged; two paths of messages, over a third rank's
// GPU and over the memory; a program for the kernels, and one for copy engines too.
File good_one(const std::string& code) {
  File file;
  blink_gpu_bundle& head = file.head;
  head.magic = BLINK_GPU_BUNDLE_MAGIC;
  head.abi = BLINK_ABI;
  head.nranks = 3, head.parts = 2, head.slots = 2, head.threads = 64, head.copy_slots = 2, head.path_slots = 2;
  head.slot_bytes = 512, head.line_bytes = 256, head.copy_slot_bytes = 1024, head.path_slot_bytes = 128;
  head.first_path = 3;
  file.segments = {{1 << 20}, {1 << 20}, {1 << 20}, {1 << 19}};
  std::uint64_t place = 0;
  const auto next = [&place] { return place += 4096; };
  const int ends[][4] = {{0, 1, 1, 0}, {1, 2, 1, 0}, {2, 0, 3, 1}, {0, 1, 2, 0}, {0, 1, 3, 1}};
  for (const auto& end : ends) {
    file.connections.push_back({end[0], end[1], end[2], static_cast<std::uint32_t>(end[3]), next(), next(), next(), next(),
                                next(), next(), next(), next(), next(), next()});
  }
  file.parts = {{3, 1 << 19}, {4, 1 << 20}, {4, 1 << 20}};
  file.splits = {{0, 1, 1000, 1999, 1, 0, 2, file.text("over GPU 2 and the host")}, {0, 1, 2000, 9999, 4, 2, 1, 0}};
  const std::uint32_t name = file.text("kernels.cubin"), simple = file.text("run_simple"), ll = file.text("run_ll");
  file.images = {{code.size(), {}, file.text("sm_90"), name}, {code.size(), {}, file.text("host"), name}};
  for (blink_gpu_image& image : file.images) digest_into(image.digest, code);
  file.program_images = {{0}, {0}, {1}};
  file.programs = {{BLINK_ALLREDUCE, -1, 4, 1, 0, 1, 0, {simple, ll, 0, 0}},
                   {BLINK_BROADCAST, 1, 3, 2, 1, 2, 1, {simple, 0, 0, ll}}};
  file.choices = {{BLINK_ALLREDUCE, -1, 0, 4096, 128, 512, 0, 0, Bundle::kLL, Bundle::kSimple, 1, file.text("small")},
                  {BLINK_BROADCAST, 1, 0, 99, 1024, 0, 1, -1, Bundle::kCopies, 0, 0, 0},
                  {BLINK_REDUCE, -1, 0, ~std::uint64_t{0}, 0, 0, -1, -1, 0, 0, 0, file.text("NCCL wins")}};
  return file;
}

const std::string kCode = "machine code";

class Written {
 public:
  Written() { directory.write("kernels.cubin", kCode); }
  bool read(const std::string& bytes, Bundle* bundle, std::string* why) const {
    directory.write("bundle", bytes);
    return read_bundle(directory.path(), bundle, why);
  }
  Directory directory;
};

void good_is_read(const Written& written) {
  Bundle bundle;
  std::string why, code;
  if (!expect(written.read(good_one(kCode).bytes(), &bundle, &why), "the good one is read: %s", why.c_str())) return;
  expect(bundle.nranks == 3 && bundle.threads == 64 && bundle.plan.size() == 64 && bundle.memory_bytes() == 1 << 19,
         "the header");
  const auto &pushed = bundle.connections.at(0), &pulled = bundle.connections.at(1), &staged = bundle.connections.at(2);
  expect(pushed.pushed() && pushed.copied() && pushed.ring == 4096 && pushed.copy_landing == 40960, "a connection");
  expect(!pulled.pushed() && !pulled.copied() && pulled.tail_at() == 2 && pulled.head_at() == 1, "one that is pulled");
  expect(staged.staged() && staged.tail_at() == 3 && staged.head_at() == 3, "one that is staged");
  expect(bundle.is_path(3) && !bundle.is_path(2) && bundle.slots_of(3) == 2 && bundle.slot_bytes_of(3) == 128, "paths");
  const auto& split = bundle.splits.at(0);
  std::uint32_t stops = 0;
  for (const Bundle::Part& part : bundle.parts_of(split)) stops += part.stop;
  expect(stops == (3 << 19) && bundle.text(split.why) == std::string("over GPU 2 and the host"), "a split");
  const auto &kernels = bundle.programs.at(0), &copies = bundle.programs.at(1);
  expect(kernels.kind() == Collective::kAllReduce && kernels.has(Bundle::kLL) && !kernels.has(Bundle::kLL128) &&
             bundle.kernel_of(kernels, Bundle::kLL) == std::string("run_ll"), "a program");
  expect(kernels.parts == 1 && copies.parts == 2 && bundle.blocks() == 6, "blocks of programs");
  expect(bundle.images_of(copies).end() - bundle.images_of(copies).begin() == 2, "images of another");
  expect(bundle.read_image(bundle.images.at(1), &code, &why) && code == kCode, "code");
  const auto &one = bundle.choices.at(0), &left = bundle.choices.at(2);
  expect(one.compares() && one.own_way().protocol == Bundle::kLL && one.other_way().chunk_bytes == 512, "two ways");
  expect(left.program < 0 && !left.compares() && bundle.text(left.why) == std::string("NCCL wins"), "NCCL's");
  const char* const names[] = {"broadcast",      "reduce", "allreduce", "allgather",
                               "reduce_scatter", "gather", "scatter",   "alltoall"};
  for (int i = 0; i < 8; ++i) expect(name_of(static_cast<Collective>(i)) == std::string(names[i]), "name %d", i);
  for (const char* const other : {"", "machine", "machine cod!"}) {
    written.directory.write("kernels.cubin", other);
    std::string spoilt;
    expect(!bundle.read_image(bundle.images.at(0), &spoilt, &why) && why.find("kernels.cubin: expected") != std::string::npos,
           "other code: %s", why.c_str());
  }
  written.directory.write("kernels.cubin", kCode);
}

struct Wrong {
  void (*change)(File&);
  const char* said;
};

// All but the first ones have a correct digest.
const Wrong kWrong[] = {
    {[](File& f) { f.spoil = [](std::string* all) { all->clear(); }; }, "and more, got 0"},
    {[](File& f) { f.spoil = [](std::string* all) { all->pop_back(); }; }, "as many bytes as it says"},
    {[](File& f) { f.spoil = [](std::string* all) { *all += '\0'; }; }, "as many bytes as it says"},
    {[](File& f) { f.spoil = [](std::string* all) { (*all)[400] ^= 1; }; }, "what was written, digest "},
    {[](File& f) { f.head.magic = 0; }, "begins with"},
    {[](File& f) { f.head.abi ^= 1; }, "this version of blink-ccl, ABI"},
    {[](File& f) { f.head.connection_rows = 1u << 31; }, "tables that end with the file"},
    {[](File& f) { f.head.choice_rows = 2; }, "tables that are all of the file"},
    {[](File& f) { f.head.nranks = 0; }, "header 0: expected nranks of 1 to 4096, got 0"},
    {[](File& f) { f.head.nranks = 5; }, "segment_rows of 5"},
    {[](File& f) { f.head.first_path = 6; }, "first_path of 0 to 5, got 6"},
    {[](File& f) { f.head.parts = 0; }, "parts of 1"},
    {[](File& f) { f.head.slots = 1u << 31; }, "slots of 1"},
    {[](File& f) { f.head.slot_bytes = 520; }, "slot_bytes of 128 to 1099511627776 in steps of 128, got 520"},
    {[](File& f) { f.head.line_bytes = 100; }, "line_bytes of"},
    {[](File& f) { f.head.threads = 33; }, "threads of 1 to 512 in steps of 32, got 33"},
    {[](File& f) { f.head.threads = 1024; }, "threads of"},
    {[](File& f) { f.head.copy_slot_bytes = 0; }, "copy_slot_bytes of 128"},
    {[](File& f) { f.head.path_slots = 0; }, "path_slots of 1"},
    {[](File& f) { f.texts += 'x'; }, "texts that begin and end with 0"},
    {[](File& f) { f.segments[1].bytes = ~std::uint64_t{0}; }, "segment 1: expected bytes of 0"},
    {[](File& f) { f.segments[3].bytes = 100; }, "segment 3: expected bytes of 0"},
    {[](File& f) { f.connections[1].src = 3; }, "connection 1: expected src of 0 to 2, got 3"},
    {[](File& f) { f.connections[1].dst = -1; }, "dst of 0 to 2, got -1"},
    {[](File& f) { f.connections[1].dst = 1; }, "two ranks"},
    {[](File& f) { f.connections[0].home = 2; }, "a home where it may be, got 2"},
    {[](File& f) { f.connections[0].home = 3; }, "home of 0 to 2, got 3"},
    {[](File& f) { f.connections[2].home = 1; }, "home of 3 to 3, got 1"},
    {[](File& f) { f.connections[3].home = 0; }, "a home where it may be, got 0"},
    {[](File& f) { f.connections[0].ring = 1; }, "ring of 0 to 1048576 in steps of 128, got 1"},
    {[](File& f) { f.connections[0].ring = (1 << 20) - 1920; }, "ring to end within the 1048576 bytes of segment 1"},
    {[](File& f) { f.connections[2].ring = (1 << 19) - 1920; }, "ring to end within the 524288 bytes of segment 3"},
    {[](File& f) { f.connections[0].lines = ~std::uint64_t{127}; }, "lines of 0"},
    {[](File& f) { f.connections[0].tail = 1 << 20; }, "tail to end within"},
    {[](File& f) { f.connections[0].head = (1 << 20) - 128; }, "head to end within"},
    {[](File& f) { f.connections[0].src_position = 2 << 20; }, "src_position of"},
    {[](File& f) { f.connections[0].dst_position = 2 << 20; }, "dst_position of"},
    {[](File& f) { f.connections[0].copy_ring = (1 << 20) - 1024; }, "copy_ring to end within"},
    {[](File& f) { f.connections[2].copy_tail = 1 << 19; }, "copy_tail to end within"},
    {[](File& f) { f.connections[4].copy_head = 1 << 19; }, "connection 4: expected copy_head to end within"},
    {[](File& f) { f.connections[2].copy_landing = 1 << 20; }, "copy_landing to end within"},
    {[](File& f) { f.splits[0].chunks = 0; }, "split 0: expected chunks of 1"},
    {[](File& f) { f.splits[0].part_rows = 0; }, "parts of 1"},
    {[](File& f) { f.splits[1].first_part = ~0u; }, "split 1: expected parts of 0 to 3"},
    {[](File& f) { f.splits[1].part_rows = 2; }, "parts of 0 to 3, got 4"},
    {[](File& f) { f.splits[1].why = 1u << 20; }, "why of 0"},
    {[](File& f) { f.parts[0].path = 2; }, "path of 3 to 4, got 2"},
    {[](File& f) { f.parts[0].path = 5; }, "path of 3 to 4, got 5"},
    {[](File& f) { f.parts[0].path = 4; }, "every path once"},
    {[](File& f) { f.connections[3].dst = 2, f.connections[3].home = 1; }, "paths between its two ranks"},
    {[](File& f) { f.parts[1].stop = 1 << 19; }, "stop of 524289"},
    {[](File& f) { f.parts[2].stop = 1 << 19; }, "parts that are all of a message"},
    {[](File& f) { f.images[0].bytes = 0; }, "image 0: expected bytes of 1"},
    {[](File& f) { f.images[1].arch = 1u << 31; }, "image 1: expected arch of"},
    {[](File& f) { f.images[0].file = f.text("../kernels.cubin"); }, "the name of a file in the bundle, got ../kernels.cubin"},
    {[](File& f) { f.images[0].file = 0; }, "the name of a file in the bundle"},
    {[](File& f) { f.programs[0].collective = 8; }, "program 0: expected collective of 0 to 7, got 8"},
    {[](File& f) { f.programs[0].root = 0; }, "root of -1 to -1, got 0"},
    {[](File& f) { f.programs[1].root = 3; }, "root of 0 to 2, got 3"},
    {[](File& f) { f.programs[0].channels = 0; }, "channels of 1"},
    {[](File& f) { f.programs[1].parts = 3; }, "parts of 1 to 2, got 3"},
    {[](File& f) { f.programs[1].parts = 0; }, "parts of 1 to 2, got 0"},
    {[](File& f) { f.programs[1].image_rows = 3; }, "images of 0 to 3, got 4"},
    {[](File& f) { f.programs[1].number = 2; }, "number of 0 to 1, got 2"},
    {[](File& f) { f.program_images[2].image = 2; }, "image of 0 to 1, got 2"},
    {[](File& f) { f.programs[0].kernel[2] = 1u << 20; }, "kernel of"},
    {[](File& f) { f.head.copy_slots = 0; }, "slots for what copy engines run"},
    {[](File& f) { f.choices[0].program = 2; }, "choice 0: expected program of -1 to 1, got 2"},
    {[](File& f) { f.choices[2].other_program = 0; }, "other_program of -1 to -1, got 0"},
    {[](File& f) { f.choices[0].program = 1; }, "a program with this collective, root and protocol, got program 1"},
    {[](File& f) { f.choices[1].root = 0; }, "a program with this collective, root and protocol"},
    {[](File& f) { f.choices[0].protocol = Bundle::kLL128; }, "a program with this collective, root and protocol"},
    {[](File& f) { f.choices[0].protocol = 4; }, "protocol of 0 to 3, got 4"},
    {[](File& f) { f.choices[0].other_protocol = Bundle::kCopies; }, "a program with this collective, root and protocol"},
    {[](File& f) { f.programs[1].kernel[0] = 0; }, "a program with this collective, root and protocol"},
    {[](File& f) { f.choices[0].chunk_bytes = 144; }, "chunk_bytes of 16 to 128 in steps of 16, got 144"},
    {[](File& f) { f.choices[0].chunk_bytes = 120; }, "got 120"},
    {[](File& f) { f.choices[0].other_chunk_bytes = 0; }, "chunk_bytes of 16 to 512 in steps of 16, got 0"},
    {[](File& f) { f.choices[2].why = 1u << 20; }, "choice 2: expected why of 0"},
};

void wrong_is_refused(const Written& written) {
  for (const Wrong& wrong : kWrong) {
    File file = good_one(kCode);
    wrong.change(file);
    Bundle bundle;
    std::string why;
    const bool good = written.read(file.bytes(), &bundle, &why);
    expect(!good && why.find(written.directory.at("bundle") + ": ") == 0 && why.find(wrong.said) != std::string::npos,
           "expected '%s', got '%s'", wrong.said, good ? "a bundle" : why.c_str());
    expect(bundle.nranks == 0 && bundle.choices.empty(), "a rejected bundle is freed");
  }
  const Directory empty;
  Bundle bundle;
  std::string why;
  expect(!read_bundle(empty.path(), &bundle, &why) && why.find("that can be read") != std::string::npos, "no file");
  expect(!read_bundle(empty.at("nowhere"), &bundle, &why), "no directory");
}

// Truncated anywhere, or with any bit flipped: rejected. With a recomputed digest: rejected, or all references are
// valid.
void noise_is_survived(const Written& written) {
  const std::string whole = good_one(kCode).bytes();
  constexpr std::size_t kDigested = offsetof(blink_gpu_bundle, digest) + 32;
  std::mt19937 random(5);
  int refused = 0;
  const int rounds = 200 * kEffort;
  for (int i = 0; i < rounds; ++i) {
    Bundle bundle;
    std::string why;
    const std::size_t cut = random() % whole.size();
    expect(!written.read(whole.substr(0, cut), &bundle, &why), "cut off at %zu", cut);
    std::string spoilt = whole;
    spoilt[random() % spoilt.size()] ^= static_cast<char>(1u << random() % 8);
    expect(!written.read(spoilt, &bundle, &why), "a flipped bit is not detected");
    for (unsigned changes = random() % 3; changes > 0; --changes) spoilt[kDigested + random() % (spoilt.size() - kDigested)] = static_cast<char>(random());
    std::uint8_t digest[32];
    digest_into(digest, spoilt.substr(kDigested));
    std::memcpy(&spoilt[offsetof(blink_gpu_bundle, digest)], digest, sizeof digest);
    if (!written.read(spoilt, &bundle, &why)) {
      ++refused;
      continue;
    }
    std::size_t length = 0;
    for (const auto& split : bundle.splits) {
      length += std::strlen(bundle.text(split.why));
      for (const auto& part : bundle.parts_of(split)) length += static_cast<std::size_t>(bundle.connections.at(part.path).src);
    }
    for (const auto& program : bundle.programs) {
      for (const std::uint32_t image : bundle.images_of(program)) length += bundle.file_of(bundle.images.at(image)).size();
      for (const auto protocol : {Bundle::kSimple, Bundle::kCopies}) length += std::strlen(bundle.kernel_of(program, protocol));
    }
    expect(length > 0, "all references are valid");
  }
  expect(refused > rounds / 10 && refused < rounds, "%d of %d were refused", refused, rounds);
}

}  // namespace

int main() {
  const Written written;
  good_is_read(written);
  wrong_is_refused(written);
  noise_is_survived(written);
  return verdict();
}
