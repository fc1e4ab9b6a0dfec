// The search for chunk sizes across calls. Rank 0 times calls, asks MIAD, and writes into the shared page from which call
// on the next size is in force; every rank looks it up by the number of its call.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "bundle.h"
#include "driver.h"
#include "shared_page.h"

namespace blink::shim {

// Which chunk to try in the next iteration: multiplicative increase, additive decrease (Blink, MLSys 2020, §4.2.1). The
// state machine of blinkccl/simulate/miad.py, observation by observation; a test compares the two.
struct Miad {
  enum class Phase { kIncrease, kDecrease, kSteady };

  std::uint64_t first_bytes = 1 << 20, step_bytes = 1 << 20, least_bytes = 64 << 10, most_bytes = 64 << 20;
  double factor = 2.0, tolerance = 0.0;
  Phase phase = Phase::kIncrease;
  std::uint64_t chunk_bytes = 0;  // to use in the next iteration; set by start()
  std::uint64_t best_bytes = 0;
  double best_gb_per_s = -1.0, last_gb_per_s = -1.0;

  void start() { chunk_bytes = first_bytes; }
  bool steady() const { return phase == Phase::kSteady; }
  // An iteration with chunk_bytes reached so much.
  void observe(double throughput_gb_per_s);
};

class ChunkSearches {
 public:
  ChunkSearches(const Driver& driver, const Bundle& bundle, SharedPage* page, bool decides);
  ~ChunkSearches();
  ChunkSearches(const ChunkSearches&) = delete;
  ChunkSearches& operator=(const ChunkSearches&) = delete;

  struct Use {
    std::uint64_t chunk_bytes = 0;
    CUevent before = nullptr, after = nullptr;  // to be recorded around the launch; null: it is not timed
  };
  // The next call of this choice. False: rank 0 died in the middle of a decision. In a captured call nothing is timed.
  bool next(int choice, bool captured, Use* use);
  // The launch that `use` was for is enqueued; `bytes` is its S.
  void launched(int choice, const Use& use, std::uint64_t bytes);

 private:
  // One try counts with the median of so many calls: each of them also waits for whichever rank comes last.
  static constexpr int kTries = 3;

  struct Timing {
    CUevent before = nullptr, after = nullptr;
    bool pending = false;
    std::uint64_t bytes = 0;
  };
  struct Search {
    std::uint64_t calls = 0;
    std::uint64_t in_force = 0;  // the call from which the chunk that is being tried is used
    bool decided = true;         // it has been said on the page
    std::uint64_t used = 0;      // the chunk of the last call
    Miad miad;
    Timing timing;
    std::array<double, kTries> gb_per_s{};
    int tries = 0;
  };

  void measure(int choice, Search* search);
  void decide(int choice, Search* search);

  const Driver& driver_;
  const Bundle& bundle_;
  SharedPage* page_;
  bool decides_;
  std::vector<Search> searches_;
};

}  // namespace blink::shim
