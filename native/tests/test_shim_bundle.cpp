// A plan's file is read as it was written, and everything else refused with file, line, what was expected and got.
// Sanitizers: address.
#include <random>
#include <string>

#include "bundle.h"
#include "check.h"
#include "directory.h"

namespace {

using namespace blink_test;
using namespace blink::shim;

// Two ranks, one connection each way. In a segment: ring 4 × 512, lines 4 × 256, counters of two parts.
const std::string kGood =
    "blink-bundle 2\n"
    "plan 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"                                    // 2
    "ranks 2\n"                                                                                                  // 3
    "geometry parts 2 slots 2 slot_bytes 512 line_bytes 256 threads 64\n"                                        // 4
    "segment 0 4096\n"                                                                                           // 5
    "segment 1 8192\n"                                                                                           // 6
    "connection 0 src 0 dst 1 ring 0 lines 2048 tail 3072 head 3072 src_position 3328 dst_position 3328\n"       // 7
    "connection 1 src 1 dst 0 ring 0 lines 2048 tail 3584 head 3584 src_position 3840 dst_position 3840\n"       // 8
    "image 0 arch sm_90 file kernels.cubin\n"                                                                    // 9
    "image 1 arch any file kernels.ptx\n"                                                                        // 10
    "program 0 collective allreduce root -1 channels 4 image 0,1 simple run_simple ll run_ll ll128 -\n"          // 11
    "program 1 collective broadcast root 1 channels 2 image 1 simple run_b ll run_b_ll ll128 run_b_ll128\n"      // 12
    "choice collective allreduce root any least 0 most 4096 program 0 protocol ll chunk 128 search 0 why small\n"  // 13
    "choice collective allreduce root -1 least 4097 most 18446744073709551615 program 0 protocol simple chunk 512 "
    "search 1 why 2 trees, 50 GB/s against 33\n"                                                                 // 14
    "choice collective broadcast root 1 least 0 most 99 program 1 protocol ll128 chunk 240 search 0 why x\n"     // 15
    "choice collective reduce root any least 0 most 1000 program -1 protocol - chunk 0 search 0 why NCCL wins\n";  // 16

class Written {
 public:
  Written() {
    directory.write("kernels.cubin", "x");
    directory.write("kernels.ptx", "x");
  }
  bool read(const std::string& text, Bundle* bundle, std::string* why) const {
    directory.write("bundle.txt", text);
    return read_bundle(directory.path(), bundle, why);
  }
  Directory directory;
};

void good_is_read(const Written& written) {
  Bundle bundle;
  std::string why;
  if (!expect(written.read(kGood, &bundle, &why), "the good one is read: %s", why.c_str())) return;
  expect(bundle.plan.substr(0, 4) == "0123" && bundle.plan.size() == 64 && bundle.nranks == 2, "plan and ranks");
  expect(bundle.parts == 2 && bundle.slots == 2 && bundle.slot_bytes == 512 && bundle.line_bytes == 256 &&
             bundle.threads == 64,
         "geometry");
  expect(bundle.segments == std::vector<std::uint64_t>({4096, 8192}), "segments");
  const auto& connection = bundle.connections.at(1);
  expect(bundle.connections.size() == 2 && connection.src == 1 && connection.dst == 0 && connection.ring == 0 &&
             connection.lines == 2048 && connection.tail == 3584 && connection.head == 3584 &&
             connection.src_position == 3840 && connection.dst_position == 3840,
         "connection 1");
  expect(bundle.images.size() == 2 && bundle.images[0].arch == "sm_90" &&
             bundle.images[1].file == written.directory.at("kernels.ptx"),
         "images");
  const auto &one = bundle.programs.at(0), &two = bundle.programs.at(1);
  expect(one.collective == Collective::kAllReduce && one.root == -1 && one.channels == 4 &&
             one.images == std::vector<int>({0, 1}) && one.kernel[Bundle::kSimple] == "run_simple" &&
             one.kernel[Bundle::kLL] == "run_ll" && one.kernel[Bundle::kLL128].empty(),
         "program 0");
  expect(two.collective == Collective::kBroadcast && two.root == 1 && two.kernel[Bundle::kLL128] == "run_b_ll128",
         "program 1");
  expect(bundle.choices.size() == 4, "choices");
  const auto& large = bundle.choices.at(1);
  expect(large.root == -1 && large.least == 4097 && large.most == ~std::uint64_t{0} && large.program == 0 &&
             large.protocol == Bundle::kSimple && large.chunk_bytes == 512 && large.search &&
             large.why == "2 trees, 50 GB/s against 33",
         "choice 1");
  const auto& left = bundle.choices.at(3);
  expect(left.collective == Collective::kReduce && left.program == -1 && !left.search && left.why == "NCCL wins",
         "choice 3");
  const char* const names[] = {"broadcast",      "reduce", "allreduce", "allgather",
                               "reduce_scatter", "gather", "scatter",   "alltoall"};
  for (int i = 0; i < 8; ++i) {
    expect(name_of(static_cast<Collective>(i)) == std::string(names[i]), "name of collective %d", i);
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

void memories_are_read(const Written& written) {
  std::string text = replaced(kGood, "segment 1 8192\n", "segment 1 8192\nmemory 0 256\nmemory 1 4096\n");
  text = replaced(text, "src 0 dst 1 ring 0 lines 2048 tail 3072 head 3072",
                  "src 0 dst 1 memory 1 ring 0 lines 2048 tail 3072 head 3328");
  Bundle bundle;
  std::string why;
  if (!expect(written.read(text, &bundle, &why), "a plan with memories is read: %s", why.c_str())) return;
  expect(bundle.nranks == 2 && bundle.segments.size() == 4 && bundle.memory_bytes() == 256 + 4096, "memories");
  const auto &staged = bundle.connections.at(0), &pushed = bundle.connections.at(1);
  expect(staged.staged() && staged.home == 3 && staged.tail_at() == 3 && staged.head_at() == 3, "a staged connection");
  expect(pushed.pushed() && pushed.home == 0 && pushed.tail_at() == 0 && pushed.head_at() == 1, "one that is not");
  const auto refused = [&](const char* from, const char* to, const char* said) {
    why.clear();
    const bool is_read = written.read(replaced(text, from, to), &bundle, &why);
    expect(!is_read && why.find(said) != std::string::npos, "expected '%s', got '%s'", said, why.c_str());
  };
  Bundle other;
  const bool is_read = written.read(replaced(kGood, "dst 0 ring", "dst 0 pulled ring"), &other, &why);
  expect(!is_read && why.find("do not overlap") != std::string::npos, "two rings of one segment: %s", why.c_str());
  std::string pulled = replaced(kGood, "segment 1 8192", "segment 1 16384");
  pulled = replaced(pulled, "dst 0 ring 0 lines 2048", "dst 0 pulled ring 8192 lines 12288");
  if (expect(written.read(pulled, &other, &why), "a pulled connection is read: %s", why.c_str())) {
    const auto& one = other.connections.at(1);
    expect(one.home == 1 && !one.pushed() && !one.staged() && one.tail_at() == 0 && one.head_at() == 1, "pulled");
  }
  refused("memory 1 ring", "memory 2 ring", "0 to 1, got '2'");
  refused("memory 1 ring", "memory 0 ring", "'ring' to end within the 256 bytes of memory 0");
  refused("memory 1 4096", "memory 2 4096", "memory 1, got '2'");
  refused("memory 1 4096", "memory 1 4095", "whole lines, got '4095'");
  refused("memory 0 256\nmemory 1 4096\n", "", "a plan with memories, got 'none'");
  refused("head 3328", "head 3072", "do not overlap");
  // What copy engines fetch lands in the receiver's memory; all else of theirs lies on the host.
  text = replaced(text, "threads 64", "threads 64 copy_slots 2 copy_slot_bytes 128");
  text = replaced(text, "dst_position 3328",
                  "dst_position 3328 copy_ring 3584 copy_tail 3840 copy_head 3968 copy_landing 4096");
  text = replaced(text, "dst_position 3840", "dst_position 3840 copy_ring 4096 copy_tail 4352 copy_head 5120");
  text = replaced(replaced(text, "segment 0 4096", "segment 0 8192"), "segment 1 8192", "segment 1 16384");
  const bool copies_are_read = written.read(text, &bundle, &why);
  if (expect(copies_are_read, "staged copies are read: %s", why.c_str())) {
    const auto& one = bundle.connections.at(0);
    expect(one.copied() && one.copy_ring == 3584 && one.copy_tail == 3840 && one.copy_head == 3968, "their ring");
    expect(one.copy_landing == 4096 && bundle.connections.at(1).copy_landing == 0, "their landing");
  }
  refused(" copy_landing 4096", "", "copy_landing");
  refused("copy_landing 4096", "copy_landing 16384", "'copy_landing' to end within the 16384 bytes of rank 1");
  refused("copy_tail 3840", "copy_tail 4096", "'copy_tail' to end within the 4096 bytes of memory 1");
}

// Messages between three ranks: over the GPU of the third, and over the host in two streams.
void paths_are_read(const Written& written) {
  std::string text = replaced(replaced(kGood, "ranks 2", "ranks 3"), "segment 0 4096", "segment 0 8192");
  text = replaced(text, "segment 1 8192\n", "segment 1 8192\nsegment 2 1024\nmemory 0 2048\n");
  text = replaced(text, "image 0 arch",
                  "paths slots 2 slot_bytes 256\n"
                  "path 0 src 0 dst 1 home 2 ring 128 tail 7936 head 4096\n"
                  "path 1 src 0 dst 1 memory 0 ring 0 tail 512 head 640\n"
                  "path 2 src 0 dst 1 memory 0 ring 1024 tail 768 head 896\n"
                  "split src 0 dst 1 least 1000 most 1999 chunks 1 parts 0:1048576 why over GPU 2\n"
                  "split src 0 dst 1 least 2000 most 9999 chunks 4 parts 0:524288,1:786432,2:1048576 why all\n"
                  "image 0 arch");
  Bundle bundle;
  std::string why;
  if (!expect(written.read(text, &bundle, &why), "paths are read: %s", why.c_str())) return;
  expect(bundle.first_path == 2 && bundle.connections.size() == 5 && bundle.path_slots == 2, "paths");
  const auto &relayed = bundle.connections.at(2), &staged = bundle.connections.at(4);
  expect(relayed.home == 2 && !relayed.staged() && relayed.copied() && relayed.tail_at() == 1 &&
             relayed.head_at() == 0 && relayed.copy_ring == 128 && relayed.copy_tail == 7936,
         "over a third rank's GPU, whose counters are with the two ends");
  expect(staged.home == 3 && staged.staged() && staged.tail_at() == 3 && staged.head_at() == 3, "over the host");
  expect(bundle.slots_of(4) == 2 && bundle.slot_bytes_of(4) == 256 && bundle.slots_of(1) == 0, "slots");
  const auto& split = bundle.splits.at(1);
  expect(split.least == 2000 && split.most == 9999 && split.chunks == 4 && split.why == "all", "a split");
  expect(split.parts.size() == 3 && split.parts[1].path == 3 && split.parts[1].stop == 786432, "its parts");
  const auto refused = [&](const char* from, const char* to, const char* said) {
    why.clear();
    const bool is_read = written.read(replaced(text, from, to), &bundle, &why);
    expect(!is_read && why.find(said) != std::string::npos, "expected '%s', got '%s'", said, why.c_str());
  };
  refused("paths slots 2 slot_bytes 256\n", "", "a line of 'paths' before a path");
  refused("slot_bytes 256\npath", "slot_bytes 256\npaths slots 2 slot_bytes 256\npath", "one line of 'paths'");
  refused("home 2 ring", "home 0 ring", "a path that ends on another than the first");
  refused("home 2 ring", "home 3 ring", "'home' of 0 to 2, got '3'");
  refused("home 2 ring 128", "home 2 ring 640", "'ring' to end within the 1024 bytes of rank 2");
  refused("ring 0 tail 512", "ring 128 tail 512", "do not overlap");
  refused("path 1 src 0", "path 1 src 2", "a path between the two ranks");
  refused("path 1 src 0 dst 1", "path 1 src 0 dst 2", "a path between the two ranks");
  refused("path 1 src 0 dst 1", "path 1 src 0 dst 0", "two ranks, and a path that ends");
  refused("paths slots 2", "paths slots 0", "'slots' of 1");
  refused("slot_bytes 256\npath", "slot_bytes 192\npath", "'slot_bytes'");
  refused("most 9999", "most 1999", "'most' of 2000");
  refused("path 0 src 0 dst 1 home 2 ring 128 tail 7936 head 4096\n"
          "path 1 src 0 dst 1 memory 0 ring 0 tail 512 head 640\n"
          "path 2 src 0 dst 1 memory 0 ring 1024 tail 768 head 896\n",
          "", "a path before its split");
  refused("0:524288", "0:1048576", "the end of a part of 1048577");
  refused("2:1048576", "2:1048575", "parts that are all of a message");
  refused("2:1048576", "1:1048576", "every path once");
  refused("2:1048576", "3:1048576", "a path of 0 to 2, got '3'");
  refused("2:1048576", "2", "the end of a part");
  refused("2:1048576 ", "2:1048576, ", "a path of 0 to 2, got nothing");
  refused("chunks 4", "chunks 0", "'chunks' of 1");
  refused("least 2000", "least 0", "'least' of 1");
  refused("why over GPU 2", "why", "a reason");
}

void other_programs_are_read(const Written& written) {
  const std::string last = "ll128 run_b_ll128\n", two = "program 2 collective allreduce root -1 channels 4 image 0 ";
  std::string text = replaced(kGood, last, last + two + "simple run_c ll run_c_ll ll128 -\n");
  text = replaced(text, "search 1 why", "search 1 other 2 protocol ll chunk 112 why");
  Bundle bundle;
  std::string why;
  if (!expect(written.read(text, &bundle, &why), "a choice of two programs is read: %s", why.c_str())) return;
  const auto &row = bundle.choices.at(1), &alone = bundle.choices.at(0);
  expect(row.program == 0 && row.protocol == Bundle::kSimple && row.chunk_bytes == 512 && row.search, "the first");
  expect(row.other.program == 2 && row.other.protocol == Bundle::kLL && row.other.chunk_bytes == 112, "the other");
  expect(row.why == "2 trees, 50 GB/s against 33" && alone.other.program < 0, "the rest as before");
  const auto refused = [&](const char* from, const char* to, const char* said) {
    why.clear();
    const bool is_read = written.read(replaced(text, from, to), &bundle, &why);
    expect(!is_read && why.find(said) != std::string::npos, "expected '%s', got '%s'", said, why.c_str());
  };
  refused("other 2", "other 3", "a program of 0 to 2, got '3'");
  refused("other 2", "other -1", "a program of 0 to 2, got '-1'");
  refused("other 2", "other 1", "a program for allreduce with root -1, got 'broadcast with root 1'");
  refused("protocol ll chunk 112", "protocol ll128 chunk 112", "that program 2 has a kernel for, got 'll128'");
  refused("protocol ll chunk 112", "protocol ll chunk 144", "up to the 128 of a message, got '144'");
  refused("protocol ll chunk 112", "protocol ll chunk 111", "a multiple of 16");
  refused("chunk 112 why", "why", "'chunk', got 'why'");
  refused("why NCCL wins", "other 2 protocol ll chunk 112 why NCCL wins", "a program for reduce");
  const char* const theirs = "reduce root any least 0 most 1000 program -1";
  text = replaced(text, theirs, "allreduce root any least 0 most 1000 program -1");
  refused("why NCCL wins", "other 2 protocol ll chunk 112 why NCCL wins", "no other program, as nothing of ours runs");
}

struct Wrong {
  const char *from, *to;  // in the good one
  int line;
  const char* said;
};

const Wrong kWrong[] = {
    {"blink-bundle 2", "blink-bundle 1", 1, "'blink-bundle 2', got 'blink-bundle 1'"},
    {"blink-bundle 2\n", "", 1, "got 'plan 0123"},
    {"plan 0123", "plan 012x", 2, "64 hexadecimal"},
    {"plan 0123456789abcdef", "plan ", 2, "64 hexadecimal"},
    {"\nplan", "\nplans", 2, "'plan', got 'plans'"},
    {"ranks 2\n", "ranks 2\nranks 2\n", 4, "'geometry', got 'ranks'"},
    {"ranks 2", "ranks 0", 3, "1 to 4096, got '0'"},
    {"ranks 2", "ranks 4097", 3, "1 to 4096, got '4097'"},
    {"ranks 2", "ranks -2", 3, "got '-2'"},
    {"ranks 2", "ranks +2", 3, "got '+2'"},
    {"ranks 2", "ranks 2 3", 3, "the end of the line, got '3'"},
    {"ranks 2", "ranks 2 ", 3, "a word after '2'"},
    {"ranks 2", "ranks  2", 3, "two spaces"},
    {"ranks 2", "ranks 2\r", 3, "1 to 4096"},
    {"ranks 2", "ranks 0x2", 3, "1 to 4096"},
    {"ranks 2", "ranks", 3, "got nothing"},
    {"ranks 2", "ranks 3", 7, "'segment', got 'connection'"},
    {"ranks 2", "ranks 99999999999999999999999", 3, "1 to 4096"},
    {"ranks 2\n", "", 3, "'ranks', got 'geometry'"},
    {"geometry parts 2", "geometry parts 0", 4, "'parts' of 1 to"},
    {"geometry parts 2", "geometry slots 2", 4, "'parts', got 'slots'"},
    {"slot_bytes 512", "slot_bytes 520", 4, "multiple of 128"},
    {"line_bytes 256", "line_bytes 100", 4, "multiple of 128"},
    {"threads 64", "threads 33", 4, "a multiple of 32, got '33'"},
    {"threads 64", "threads 1024", 4, "1 to 512"},
    {"segment 1 8192", "segment 2 8192", 6, "segment 1, got '2'"},
    {"segment 1 8192\n", "", 6, "'segment', got 'connection'"},
    {"segment 1 8192\n", "segment 1 8192\nsegment 2 1\n", 7, "'choice', got 'segment'"},
    {"segment 1 8192", "segment 1 3400", 7, "'dst_position' to end within the 3400 bytes of rank 1"},
    {"connection 1", "connection 2", 8, "connection 1, got '2'"},
    {"src 0 dst 1", "src 0 dst 2", 7, "0 to 1, got '2'"},
    {"src 0 dst 1", "src 1 dst 1", 7, "two ranks"},
    {"lines 2048 tail 3072", "lines 2047 tail 3072", 7, "multiple of 128, got '2047'"},
    {"ring 0 lines 2048 tail 3072", "ring 99999872 lines 2048 tail 3072", 7, "'ring' of 0 to 8192"},
    {"ring 0 lines 2048 tail 3072", "ring 6272 lines 2048 tail 3072", 7, "'ring' to end within"},
    {"tail 3584", "tail 3072", 8, "do not overlap"},
    {"src_position 3840 dst_position 3840", "src_position 3328 dst_position 3840", 8, "do not overlap"},
    {" dst_position 3840", "", 8, "'dst_position', got nothing"},
    {"arch sm_90", "arch sm-90", 9, "such as sm_90"},
    {"file kernels.cubin", "file ../kernels.cubin", 9, "in the bundle"},
    {"file kernels.cubin", "file /kernels.cubin", 9, "in the bundle"},
    {"file kernels.cubin", "file ..", 9, "in the bundle"},
    {"file kernels.cubin", "file other.cubin", 9, "can be read, got '"},
    {"image 0,1", "image 0,2", 11, "0 to 1, got '2'"},
    {"image 0,1", "image 0,", 11, "got nothing"},
    {"image 0,1", "image 1,1", 11, "every image once"},
    {"collective allreduce root -1 channels", "collective allreduse root -1 channels", 11, "a collective, got 'allreduse'"},
    {"collective allreduce root -1 channels 4", "collective allreduce root 0 channels 4", 11, "has none"},
    {"collective broadcast root 1 channels 2", "collective broadcast root -1 channels 2", 12, "the rank of the root"},
    {"collective broadcast root 1 channels 2", "collective broadcast root 2 channels 2", 12, "a root of 0 to 1"},
    {"channels 4", "channels 0", 11, "'channels' of 1"},
    {"simple run_simple", "simple run-simple", 11, "a kernel's name"},
    {"root any least 0 most 4096", "root 1 least 0 most 4096", 13, "has none"},
    {"least 4097 most 18446744073709551615", "least 4097 most 4096", 14, "4097 to"},
    {"least 4097 most 18446744073709551615", "least 4097 most 18446744073709551616", 14, "4097 to"},
    {"root 1 least 0 most 99", "root any least 0 most 99", 15, "broadcast with root -1, got 'broadcast with root 1'"},
    {"root 1 least 0 most 99 program 1", "root 1 least 0 most 99 program 0", 15, "got 'allreduce with root -1'"},
    {"most 99 program 1", "most 99 program 2", 15, "a program of 0 to 1"},
    {"protocol ll chunk", "protocol ll128 chunk", 13, "has a kernel for"},
    {"protocol ll chunk", "protocol - chunk", 13, "simple, ll or ll128"},
    {"protocol ll chunk 128", "protocol ll chunk 144", 13, "up to the 128 of a message"},
    {"chunk 240", "chunk 256", 15, "up to the 240 of a message"},
    {"chunk 512", "chunk 528", 14, "up to the 512 of a message"},
    {"chunk 512", "chunk 500", 14, "multiple of 16"},
    {"chunk 512", "chunk 0", 14, "multiple of 16"},
    {"search 1", "search 2", 14, "'search' of 0 to 1"},
    {"protocol - chunk 0 search 0", "protocol ll chunk 0 search 0", 16, "protocol -, as nothing of ours"},
    {"protocol - chunk 0 search 0", "protocol - chunk 0 search 1", 16, "search 0, as nothing of ours"},
    {" why small", " why", 13, "the reason, got nothing"},
    {" why small", "", 13, "'why', got nothing"},
    {"why NCCL wins\n", "why NCCL wins", 1, "ends with a line's end"},
    {"choice collective reduce", "choise collective reduce", 16, "'choice', got 'choise'"},
};

void wrong_is_refused(const Written& written) {
  for (const Wrong& wrong : kWrong) {
    std::string text = kGood;
    const std::size_t at = text.find(wrong.from);
    if (!expect(at != std::string::npos, "'%s' is in the good one", wrong.from)) continue;
    text.replace(at, std::string(wrong.from).size(), wrong.to);
    Bundle bundle;
    std::string why;
    const bool good = written.read(text, &bundle, &why);
    const std::string line = ", line " + std::to_string(wrong.line) + ": expected ";
    const std::string where = written.directory.at("bundle.txt") + line;
    expect(!good && why.compare(0, where.size(), where) == 0 && why.find(wrong.said) != std::string::npos,
           "'%s' for '%s': line %d, '%s'; got '%s'", wrong.to, wrong.from, wrong.line, wrong.said,
           good ? "yes" : why.c_str());
    expect(bundle.nranks == 0 && bundle.choices.empty(), "nothing is left of a refused bundle");
  }
}

void missing_is_refused() {
  const Directory empty;
  Bundle bundle;
  std::string why;
  const bool there = read_bundle(empty.path(), &bundle, &why);
  expect(!there && why.find(empty.at("bundle.txt")) == 0, "no file: %s", why.c_str());
  expect(!read_bundle(empty.at("nowhere"), &bundle, &why), "no directory");
  empty.write("bundle.txt", "");
  const bool full = read_bundle(empty.path(), &bundle, &why);
  expect(!full && why.find("line 1") != std::string::npos, "empty: %s", why.c_str());
  if (geteuid() != 0) {
    empty.write("bundle.txt", kGood, 0);
    expect(!read_bundle(empty.path(), &bundle, &why), "not to be read");
  }
}

// A bundle without messages in lines needs no memory for them.
void lines_are_not_needed(const Written& written) {
  std::string text = kGood.substr(0, kGood.find("program 0"));
  const std::string lines = "line_bytes 256";
  text.replace(text.find(lines), lines.size(), "line_bytes 0");
  const std::string one = "threads 64";
  text.replace(text.find(one), one.size(), "threads 1");
  text += "choice collective reduce root 1 least 5 most 5 program -1 protocol - chunk 0 search 0 why NCCL\n";
  Bundle bundle;
  std::string why;
  if (!expect(written.read(text, &bundle, &why), "no lines: %s", why.c_str())) return;
  expect(bundle.line_bytes == 0 && bundle.threads == 1 && bundle.choices[0].root == 1, "as it was written");
}

// Whatever bytes there are: it is read and consistent, or refused with the file's name.
void noise_is_survived(const Written& written) {
  std::mt19937 random(5);
  int refused = 0;
  const int rounds = 150 * kEffort;
  for (int i = 0; i < rounds; ++i) {
    std::string text = kGood;
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, 1 + random() % 40); break;
        case 2: text.insert(at, 1, "0123456789 -\n"[random() % 13]); break;
        default: text.resize(at + 1); break;
      }
    }
    Bundle bundle;
    std::string why;
    if (!written.read(text, &bundle, &why)) {
      ++refused;
      expect(why.find(written.directory.at("bundle.txt")) == 0, "the file is named: %s", why.c_str());
      continue;
    }
    for (const auto& choice : bundle.choices) {
      expect(choice.program < static_cast<int>(bundle.programs.size()) && choice.least <= choice.most, "consistent");
    }
    for (const auto& connection : bundle.connections) {
      expect(connection.src < bundle.nranks && connection.dst < bundle.nranks &&
                 connection.ring < bundle.segments[static_cast<std::size_t>(connection.dst)],
             "within");
    }
  }
  expect(refused > rounds / 3 && refused < rounds, "%d of %d were refused", refused, rounds);
}

}  // namespace

int main() {
  const Written written;
  good_is_read(written);
  memories_are_read(written);
  paths_are_read(written);
  other_programs_are_read(written);
  wrong_is_refused(written);
  missing_is_refused();
  lines_are_not_needed(written);
  noise_is_survived(written);
  return verdict();
}
