// Measurement in the first calls of a size: the faster of two programs, where a row of the plan has two, then a chunk
// size. All ranks time calls and write their rates to the shared page. Rank 0 takes the slowest rank's rate, compares,
// steps MIAD, and writes the next value to the page with the number of the first call that uses it. Every rank looks
// the value up by the number of its call.
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
    CUevent before = nullptr, after = nullptr;  // events recorded around the launch; null: not timed
  };
  // The way of the next call of this choice. Captured calls are not timed.
  Use next(int choice, bool captured);
  // Notes that the launch of `use` is enqueued; `bytes` is its S.
  void launched(int choice, const Use& use, std::uint64_t bytes);

 private:
  // Calls of a rank per median. Each time includes the wait for the last rank, for either program. So if ranks arrive
  // far apart, a small gain stays below the noise, and the row's own program stays.
  static constexpr int kTries = 3;

  struct Timing {
    CUevent before = nullptr, after = nullptr;
    bool pending = false;
    std::uint64_t bytes = 0, number = 0;
  };
  struct Search {
    int slot = -1;  // on the page; −1: nothing to measure
    std::uint64_t calls = 0;
    Agreement::Reading agreed;  // of the last call
    bool settled = false;       // final: this rank times no more calls
    Timing timing;
    std::array<double, kTries> gb_per_s{};
    int tries = 0;
    // Of rank 0 only.
    std::uint64_t decisions = 0;  // number on the page
    bool compares = false;  // the two programs are still being compared
    bool other = false;     // the other program is in use
    double own_gb_per_s = 0;
    blink_miad miad{};
  };

  void measure(Search* search);
  void decide(int choice, Search* search);
  // The next value, after the current one reached `gb_per_s`.
  std::uint64_t next_value(int choice, Search* search, double gb_per_s) const;
  void begin_miad(const Bundle::Way& way, blink_miad* miad) const;

  const Driver& driver_;
  const Bundle& bundle_;
  SharedPage* page_;
  int rank_;  // 0 decides
  std::vector<Search> searches_;
};

}  // namespace blink::shim
