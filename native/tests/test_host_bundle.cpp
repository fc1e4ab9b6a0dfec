// Bundles: valid ones serve calls by their rows. Truncated or altered ones are rejected with a reason. Those with
// forged numbers and correct checksums may serve calls, but without invalid memory accesses.
// Sanitizers: address.
#include <fcntl.h>
#include <sys/stat.h>

#include <memory>
#include <random>
#include <string>

#include "check.h"
#include "directory.h"
#include "plans.h"
#include "ranks.h"

namespace {

using namespace blink_test;

constexpr int kRanks = 3;
constexpr std::size_t kHeaderWords = sizeof(blink_bundle_header) / 8;
constexpr std::size_t kHeaderSummed = offsetof(blink_bundle_header, checksum) / 8 + 1;
constexpr std::size_t kRowsEnd = kHeaderWords + (3 * sizeof(blink_bundle_choice) + 2 * sizeof(blink_bundle_plan)) / 8;
constexpr std::int64_t kSmallest = 64;  // bytes from which the second plan serves

struct Free {
  void operator()(blink_bundle* bundle) const { blink_bundle_close(bundle); }
  void operator()(blink_op* op) const { blink_op_destroy(op); }
};
using Held = std::unique_ptr<blink_bundle, Free>;

// An AllReduce in one step for small sizes, otherwise in rings.
Words bundle_words() {
  const Words plans[] = {plan_words(Kind::kOneShot, kRanks, true, 2), plan_words(Kind::kRing, kRanks, false, 2)};
  blink_bundle_header h{};
  h.magic = BLINK_BUNDLE_MAGIC;
  h.version = BLINK_BUNDLE_VERSION;
  h.abi = blink_abi_version();
  std::strncpy(reinterpret_cast<char*>(h.package), blink_host_version(), sizeof h.package - 1);
  h.ranks = kRanks, h.lines = 60, h.staging_bytes = 8 << 10, h.inline_bytes = 6 * 4160, h.stream_bytes = 64;
  h.choice_count = 3, h.plan_count = 2;
  Words words;
  append(words, std::vector<blink_bundle_choice>{{BLINK_ALLREDUCE, 1, kSmallest, 0, 0, 0, 1, 64, 0},
                                                 {BLINK_ALLREDUCE, 1, INT64_MAX, 0, 0, 1, 0, 1 << 12, 3},
                                                 {BLINK_ALLREDUCE, 1, INT64_MAX, 1, 0, 1, 0, 1 << 10, 0}});
  std::int64_t first = static_cast<std::int64_t>(kHeaderWords + words.size() + 2 * sizeof(blink_bundle_plan) / 8);
  for (std::int64_t i = 0; i < 2; ++i) {
    const auto size = static_cast<std::int64_t>(plans[i].size());
    append(words, std::vector<blink_bundle_plan>{{BLINK_ALLREDUCE, 0, i, 1 - i, first, size}});
    first += size;
  }
  h.words = first;
  Words whole;
  append(whole, std::vector<blink_bundle_header>{h});
  whole.insert(whole.end(), words.begin(), words.end());
  for (const Words& plan : plans) whole.insert(whole.end(), plan.begin(), plan.end());
  return whole;
}


void sum_rows(Words& words) {
  const auto* first = reinterpret_cast<const unsigned char*>(words.data() + kHeaderSummed);
  const std::uint64_t sum = blink::checksum(first, kRowsEnd - kHeaderSummed);
  std::memcpy(&words[kHeaderSummed - 1], &sum, sizeof sum);
}

class File {
 public:
  explicit File(const std::string& path) : path_(path) {}
  Held open(const void* bytes, std::size_t size, blink_error& error, std::int32_t ranks = kRanks) const {
    const int file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, bytes, size) != static_cast<ssize_t>(size)) give_up("a bundle's file");
    close(file);
    error = blink_error{};
    return Held(blink_bundle_open(path_.c_str(), ranks, &error));
  }
  Held open(const Words& words, blink_error& error) const { return open(words.data(), words.size() * 8, error); }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

void right(const File& file, const Words& words) {
  blink_error error;
  const Held bundle = file.open(words, error);
  if (!expect(bundle != nullptr, "a valid bundle is rejected: %s", error.text)) return;
  expect(blink_bundle_check(bundle.get(), &error) == BLINK_OK, "a valid plan is rejected: %s", error.text);
  blink_shape shape;
  blink_bundle_shape(bundle.get(), &shape);
  const Room room(shape, 4096, 64);
  as_threads(room, [&](blink_comm* comm, int rank) {
    for (const std::int64_t count : {0, 1, 15, 16, 17, 3000}) {
      const blink_request request{BLINK_ALLREDUCE, 0, count, BLINK_UINT32, BLINK_SUM, 0};
      blink_error why{};
      const std::unique_ptr<blink_op, Free> op(blink_bundle_op(bundle.get(), comm, &request, &why));
      if (!expect(op != nullptr, "%ld elements: %s", static_cast<long>(count), why.text)) return;
      std::vector<std::uint32_t> data(static_cast<std::size_t>(count), static_cast<std::uint32_t>(rank) + 1);
      expect(blink_op_run(op.get(), data.data(), data.data(), 0, 1, kPatience) == BLINK_OK, "the call fails");
      expect(std::all_of(data.begin(), data.end(), [](std::uint32_t x) { return x == 6; }), "the sum is wrong");
    }
    const std::uint64_t small = rank == 0 ? 3 : 0;  // calls with flags inside: 0, 1 and 15 elements
    blink_stats stats;
    blink_get_stats(comm, &stats);
    expect(rank != 0 || (stats.inline_bytes == 2 * 16 * 4 && stats.calls == 2 * small), "not served by its rows: %lu, %lu",
           static_cast<unsigned long>(stats.inline_bytes), static_cast<unsigned long>(stats.calls));
  });
}

void cut_off(const File& file, const Words& words) {
  blink_error error;
  for (std::size_t size = 0; size < words.size() * 8; size += size % 8 == 0 ? 1 : 7) {
    if (!expect(file.open(words.data(), size, error) == nullptr && error.text[0] != 0, "%zu bytes are a bundle", size)) {
      return;
    }
  }
  expect(file.open(words.data(), words.size() * 8, error, 4) == nullptr, "a bundle for another number of ranks is accepted");
}

void altered(const File& file, Words words) {
  blink_error error;
  for (std::size_t i = 0; i < words.size(); i += i < kRowsEnd ? 1 : 7) {
    words[i] ^= std::int64_t{1} << i % 64;
    const Held bundle = file.open(words, error);
    const bool sound = bundle != nullptr && blink_bundle_check(bundle.get(), &error) == BLINK_OK;
    expect(!sound && error.text[0] != 0, "a change of word %zu is not detected", i);
    expect((bundle != nullptr) == (i >= kRowsEnd), "a change of word %zu is detected too late", i);
    words[i] ^= std::int64_t{1} << i % 64;
  }
}

void not_ours(const File& file, const Words& words) {
  blink_error error;
  expect(file.open(words, error) != nullptr, "a valid bundle is rejected");
  chmod(file.path(), 0620);
  expect(blink_bundle_open(file.path(), kRanks, &error) == nullptr && error.code == BLINK_SYSTEM, "a bundle writable by others is accepted");
  chmod(file.path(), 0600);
  expect(blink_bundle_open("/", kRanks, &error) == nullptr && error.code == BLINK_SYSTEM, "a directory is a bundle");
  expect(blink_bundle_open("/nowhere", kRanks, &error) == nullptr && error.code == BLINK_SYSTEM, "nothing is a bundle");
}

void forged(const File& file) {
  std::mt19937_64 random(3);
  const Room room({kRanks, 60, 8 << 10, 6 * 4160, 64}, 4096, 64);
  blink_comm* comm = room.attach(0, false);
  const Words right_words = bundle_words();
  long served = 0, refused = 0;
  for (int i = 0; i < 300 * kEffort; ++i) {
    Words words = right_words;
    for (bool more = true; more; more = random() % 3 == 0) {
      std::int64_t& word = words[kHeaderSummed + random() % (kRowsEnd - kHeaderSummed)];
      const std::int64_t choices[] = {-1, 0, 1, 2, 64, word ^ 1, std::int64_t{1} << 40, INT64_MAX, INT64_MIN,
                                      static_cast<std::int64_t>(random())};
      word = choices[random() % (sizeof choices / sizeof choices[0])];
    }
    sum_rows(words);
    blink_error error;
    const Held bundle = file.open(words, error);
    expect(bundle != nullptr || error.text[0] != 0, "refused without a reason");
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{20}, std::int64_t{1} << 40}) {
      if (bundle == nullptr) break;
      const blink_request request{BLINK_ALLREDUCE, 0, count, BLINK_FLOAT64, BLINK_SUM, 1};
      const std::unique_ptr<blink_op, Free> op(blink_bundle_op(bundle.get(), comm, &request, &error));
      expect(op != nullptr || error.text[0] != 0, "not served, without a reason");
      ++(op == nullptr ? refused : served);
    }
  }
  expect(served > 100 && refused > 100, "%ld served, %ld refused", served, refused);
  blink_detach(comm);
}

}  // namespace

int main() {
  limit_seconds(290);
  const Directory directory;
  const File file(directory.path() + "/a.bundle");
  Words words = bundle_words();
  sum_rows(words);
  right(file, words);
  cut_off(file, words);
  altered(file, words);
  not_ours(file, words);
  forged(file);
  return verdict();
}
