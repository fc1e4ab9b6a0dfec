// What the first calls of a size find out: which of two programs is faster, where a row of the plan has two, and then a
// chunk size. All ranks time calls and say on the shared page what these reached; rank 0 takes the slowest rank's word,
// compares, asks MIAD, and writes there from which call on what it wants next is in force; every rank looks it up by
// the number of its call.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "blink/simulate.h"
#include "bundle.h"
#include "driver.h"
#include "shared_page.h"

namespace blink::shim {

class ChunkSearches {
 public:
  ChunkSearches(const Driver& driver, const Bundle& bundle, SharedPage* page, int rank);
  ~ChunkSearches();
  ChunkSearches(const ChunkSearches&) = delete;
  ChunkSearches& operator=(const ChunkSearches&) = delete;

  struct Use {
    Bundle::Way way;
    CUevent before = nullptr, after = nullptr;  // to be recorded around the launch; null: it is not timed
  };
  // The next call of this choice. In a captured call nothing is timed.
  Use next(int choice, bool captured);
  // The launch that `use` was for is enqueued; `bytes` is its S.
  void launched(int choice, const Use& use, std::uint64_t bytes);

 private:
  // What is tried counts with the median of so many calls of a rank: each also waits for whichever rank comes last.
  // That holds up either program alike, so where ranks come far apart a small gain is not seen, and the other is not
  // kept.
  static constexpr int kTries = 3;

  struct Timing {
    CUevent before = nullptr, after = nullptr;
    bool pending = false;
    std::uint64_t bytes = 0, number = 0;
  };
  struct Search {
    int slot = -1;  // on the page; −1: nothing is searched for
    std::uint64_t calls = 0;
    Agreement::Reading agreed;  // of the last call
    bool settled = false;       // for good: nobody times calls any more
    Timing timing;
    std::array<double, kTries> gb_per_s{};
    int tries = 0;
    // Rank 0's.
    std::uint64_t decisions = 0;  // so many are on the page
    bool compares = false;  // two programs are being compared still
    bool other = false;     // of which this is the other one
    double own_gb_per_s = 0;
    blink_miad miad{};
  };

  void measure(Search* search);
  void decide(int choice, Search* search);
  // What is to be in force after what is reached so much.
  std::uint64_t next_value(int choice, Search* search, double gb_per_s) const;
  void begin_miad(const Bundle::Way& way, blink_miad* miad) const;

  const Driver& driver_;
  const Bundle& bundle_;
  SharedPage* page_;
  int rank_;  // 0 decides
  std::vector<Search> searches_;
};

}  // namespace blink::shim
