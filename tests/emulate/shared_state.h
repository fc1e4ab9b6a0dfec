// The last accesses to a block's shared memory. Two accesses, one of them a write, by threads without an order between
// them are a race.
#pragma once

#include <vector>

#include "emulate/memory.h"

namespace blink {
namespace emulate {

class SharedState {
 public:
  explicit SharedState(std::size_t bytes) : granules_((bytes + kGranule - 1) / kGranule) {}

  // Whether the access is ordered after all earlier ones.
  bool touch(std::size_t offset, std::size_t bytes, bool write, const Stamp& by, const Order& order) {
    bool right = true;
    for (std::size_t i = offset / kGranule; i <= (offset + bytes - 1) / kGranule && i < granules_.size(); ++i) {
      Granule& of = granules_[i];
      right = right && (!of.written || order.before(of.writer, by));
      if (write) {
        right = right && (of.readers == 0 || (order.before(of.reader, by) && order.before(of.other, by)));
        of.written = true;
        of.writer = by;
        of.readers = 0;
      } else {
        // Two readers are enough: of those that no writer may overtake, the latest and one of another thread.
        if (of.readers == 0 || order.before(of.reader, by)) {
          if (of.readers == 0 || order.before(of.other, by)) of.other = by;
          of.reader = by;
        } else if (order.before(of.other, by)) {
          of.other = by;
        }
        of.readers = 1;
      }
    }
    return right;
  }

 private:
  static constexpr std::size_t kGranule = 4;
  struct Granule {
    Stamp writer, reader, other;
    uint32_t readers = 0;
    bool written = false;
  };
  std::vector<Granule> granules_;
};

}  // namespace emulate
}  // namespace blink
