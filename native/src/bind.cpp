// Binds a plan to a size, a type and an operation. Only here the host engine computes sizes. All ranks get the same
// extents, chunks and places, because these depend only on numbers that are equal on all ranks.
//
// No element is ever cut: the boundary of a slice is rounded down to a multiple of 16 bytes (or of one element, if that
// is larger); the end of the block is not rounded. schedule/chunking.py defines the same slices for all engines.
#include <algorithm>
#include <utility>

#include "comm.h"
#include "kernels.h"
#include "op.h"
#include "plan.h"

namespace blink {
namespace {

constexpr std::int64_t kAlignment = 16;  // the width of vector loads and stores on every CPU supported so far
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;  // limit of a rank's messages, so that sums do not overflow

std::int64_t divided_up(std::int64_t number, std::int64_t by) { return (number + by - 1) / by; }
std::int64_t rounded_up(std::int64_t number, std::int64_t to) { return divided_up(number, to) * to; }

std::int64_t scaled(std::int64_t number, std::int64_t times, std::int64_t by) {
  std::int64_t product;
  if (!__builtin_mul_overflow(number, times, &product)) return product / by;
  return static_cast<std::int64_t>(static_cast<__int128>(number) * times / by);
}

// part / parts · count, rounded down to whole groups where it is neither 0 nor all.
std::int64_t boundary(std::int64_t part, std::int64_t parts, std::int64_t count, std::int64_t group) {
  if (part >= parts) return count;
  return part <= 0 ? 0 : scaled(part, count, parts) / group * group;
}

struct Extent {
  std::int64_t offset, length;
};

struct Place {
  std::int64_t staging, stride, slots;
};

class Binder {
 public:
  // With `blocks` the places are those of the longest possible blocks, so that they are equal on all ranks, although no
  // rank knows all lengths.
  Binder(const blink_plan& plan, const blink_shape& shape, const blink_binding& binding, const blink_blocks* blocks,
         std::int64_t item)
      : plan_(plan), shape_(shape), binding_(binding), blocks_(blocks), item_(item),
        inline_(plan.header.inline_messages != 0) {
    const std::int64_t count = blocks == nullptr ? binding.count : kMostElements;
    for (const blink_plan_slice& slice : plan.slices) extents_.push_back(extent(slice, count));
    for (const Extent& slice : extents_) longest_ = std::max(longest_, slice.length);
    for (const blink_plan_reader& reader : plan.readers) on_rails_ = on_rails_ || reader.rail != 0;
    places_.resize(plan.rings.size());
    // More than a block has for any group, so that the whole slice is one chunk.
    const std::int64_t whole = count * item + kAlignment;
    place(inline_ ? whole : std::min(binding.chunk_bytes, whole));
  }

  // Shrinks the chunks until everything fits; false and `why` if even the smallest chunks do not fit.
  bool fit(blink_error& why) {
    std::int64_t chunk_bytes = chunk_bytes_;
    while (needed_ > area()) {
      if (inline_) {
        refuse(why, BLINK_UNSUPPORTED,
               "%lld elements of %lld bytes are too many for protocol 'll': a rank's messages need %lld bytes, the "
               "segment has %lld; use protocol 'simple'",
               static_cast<long long>(binding_.count), static_cast<long long>(item_), static_cast<long long>(needed_),
               static_cast<long long>(area()));
        return false;
      }
      const std::int64_t least = std::max(kAlignment, item_);
      if (chunk_bytes <= least) {
        refuse(why, BLINK_UNSUPPORTED,
               "the program's rings need %lld bytes on one rank even in the smallest chunks; the segment has %lld: use "
               "a plan with fewer trees",
               static_cast<long long>(needed_), static_cast<long long>(area()));
        return false;
      }
      chunk_bytes = std::max(least, std::min(scaled(chunk_bytes, area(), needed_), chunk_bytes - kAlignment));
      place(chunk_bytes);
    }
    return true;
  }

  std::unique_ptr<const blink_bound> rows(int rank) const {
    const blink_plan_rank& own = plan_.ranks[static_cast<std::size_t>(rank)];
    auto made = std::make_unique<blink_bound>();
    for (std::int64_t i = own.first_role; i < own.first_role + own.roles; ++i) add(*made, own, at(plan_.roles, i));
    for (std::int64_t i = own.first_ring; i < own.first_ring + own.rings; ++i) add(*made, i);
    describe(*made, own);
    return made;
  }

 private:
  template <class Row>
  static const Row& at(const std::vector<Row>& rows, std::int64_t number) {
    return rows[static_cast<std::size_t>(number)];
  }

  std::int64_t area() const { return inline_ ? shape_.inline_bytes : shape_.staging_bytes; }
  std::int64_t unit() const { return inline_ ? BLINK_BLOCK_BYTES : static_cast<std::int64_t>(kLineBytes); }
  std::int64_t group() const { return std::max<std::int64_t>(1, kAlignment / item_); }
  // On stated rails every slice has as many chunks as the largest, so that trees share a link by their weights. A rank
  // does not know all lengths of different blocks.
  std::int64_t chunk_elements(std::int64_t length) const {
    if (!on_rails_ || blocks_ != nullptr) return chunk_elements_;
    const std::int64_t own = divided_up(length, std::max<std::int64_t>(1, divided_up(longest_, chunk_elements_)));
    return std::min(chunk_elements_, std::max<std::int64_t>(1, rounded_up(own, group())));
  }
  std::int64_t chunks(std::int64_t length) const { return divided_up(length, chunk_elements(length)); }

  Extent extent(const blink_plan_slice& slice, std::int64_t count) const {
    const std::int64_t offset = boundary(slice.start, slice.start_parts, count, group());
    const std::int64_t stop = boundary(slice.stop, slice.stop_parts, count, group());
    return {offset, std::max<std::int64_t>(0, stop - offset)};
  }

  // The extent of a role's slice. A role with a block contributes it or keeps it.
  Extent extent(const blink_plan_role& role) const {
    if (blocks_ == nullptr) return at(extents_, role.slice);
    return extent(at(plan_.slices, role.slice), role.source_block != BLINK_NOWHERE
                                                    ? blocks_->source_lengths[role.source_block]
                                                    : blocks_->target_lengths[role.target_block]);
  }

  // The byte offset of an element of a block in a buffer.
  std::int64_t bytes(std::int64_t block, std::int64_t offset) const {
    return block == BLINK_NOWHERE ? BLINK_NOWHERE : (block * binding_.count + offset) * item_;
  }
  // The byte offset of a role's own data. For an empty slice any offset is valid.
  std::int64_t bytes(std::int64_t block, const Extent& slice, const std::int64_t* blink_blocks::*places) const {
    if (blocks_ == nullptr || block == BLINK_NOWHERE) return bytes(block, slice.offset);
    return slice.length == 0 ? 0 : ((blocks_->*places)[block] + slice.offset) * item_;
  }

  // Computes the place of every ring in its rank's area for chunks of this size, and the bytes that the fullest rank
  // needs.
  void place(std::int64_t chunk_bytes) {
    chunk_bytes_ = chunk_bytes;
    chunk_elements_ = std::min(kMostElements, std::max<std::int64_t>(1, chunk_bytes / item_));
    if (chunk_elements_ >= group()) chunk_elements_ -= chunk_elements_ % group();
    needed_ = 0;
    for (const blink_plan_rank& rank : plan_.ranks) {
      std::int64_t used = 0;
      for (std::int64_t i = rank.first_ring; i < rank.first_ring + rank.rings; ++i) {
        const blink_plan_ring& ring = at(plan_.rings, i);
        Place& placed = places_[static_cast<std::size_t>(i)];
        placed = {used, 0, 0};
        measure(ring, placed);
        if (ring.answers != BLINK_NOWHERE) continue;
        std::int64_t size;
        if (__builtin_mul_overflow(placed.stride, placed.slots, &size)) size = kMostBytes;
        used = std::min(kMostBytes, used + std::min(kMostBytes, size));
      }
      needed_ = std::max(needed_, used);
    }
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (plan_.rings[i].answers != BLINK_NOWHERE) places_[i] = at(places_, plan_.rings[i].answers);
    }
  }

  void measure(const blink_plan_ring& ring, Place& placed) const {
    std::int64_t longest = 0, largest = 0, messages = 0;
    for (std::int64_t i = ring.first_source; i < ring.first_source + ring.sources; ++i) {
      const std::int64_t length = at(extents_, at(plan_.sources, i)).length;
      longest = std::max(longest, length);
      largest = std::max(largest, std::min(length, chunk_elements(length)));
      messages = std::min(ring.slots, messages + chunks(length));
    }
    placed.stride = inline_ ? divided_up(longest * item_, BLINK_PAYLOAD_BYTES) * BLINK_BLOCK_BYTES
                            : rounded_up(largest * item_, unit());
    placed.slots = std::max<std::int64_t>(1, messages);
  }

  void add(blink_bound& made, const blink_plan_rank& own, const blink_plan_role& role) const {
    const bool averages = (binding_.op & BLINK_AVERAGES) != 0;
    const Extent own_slice = extent(role);
    made.roles.push_back({role.offset, chunks(own_slice.length), chunk_elements(own_slice.length), own_slice.length,
                          bytes(role.source_block, own_slice, &blink_blocks::sources),
                          bytes(role.target_block, own_slice, &blink_blocks::targets),
                          averages ? role.contributions : 1, role.own_operand_index,
                          static_cast<std::int64_t>(made.receives.size()), role.receives,
                          static_cast<std::int64_t>(made.sends.size()), role.sends, role.channel, role.share, role.stage});
    for (std::int64_t i = 0; i < role.receives; ++i) {
      made.receives.push_back(receive(at(plan_.receives, role.first_receive + i)));
    }
    for (std::int64_t i = 0; i < role.sends; ++i) {
      made.sends.push_back(at(plan_.sends, role.first_send + i) - own.first_ring);
    }
  }

  std::int64_t reply_to(const blink_plan_ring& ring) const {
    return ring.answers == BLINK_NOWHERE ? 0 : at(plan_.rings, ring.answers).rank + 1;
  }

  blink_receive receive(const blink_plan_receive& row) const {
    const blink_plan_ring& ring = at(plan_.rings, row.ring);
    const blink_plan_reader& reader = at(plan_.readers, row.reader);
    const Place& placed = at(places_, row.ring);
    const std::int64_t at_sender = direct_read(ring) == BLINK_READ_NONE ? 0 : bytes(ring.direct_block, offset_in(ring));
    return {ring.rank, ring.line, reader.ack_line, placed.staging, placed.stride, placed.slots, direct_read(ring),
            at_sender, write_block(reader) != BLINK_NOWHERE, row.queue, reply_to(ring), splits(ring)};
  }

  // Adds a ring and its readers.
  void add(blink_bound& made, std::int64_t number) const {
    const blink_plan_ring& ring = at(plan_.rings, number);
    const Place& placed = at(places_, number);
    made.rings.push_back({ring.line, placed.staging, placed.stride, placed.slots,
                          static_cast<std::int64_t>(made.readers.size()), ring.readers, direct_read(ring),
                          direct_read(ring) == BLINK_READ_NONE ? 0 : ring.drain, reply_to(ring), splits(ring)});
    for (std::int64_t i = ring.first_reader; i < ring.first_reader + ring.readers; ++i) {
      const blink_plan_reader& reader = at(plan_.readers, i);
      made.readers.push_back({reader.rank, reader.ack_line, bytes(write_block(reader), offset_in(ring)), reader.rail});
    }
  }

  // A direct message has one sender, and so one slice.
  std::int64_t offset_in(const blink_plan_ring& ring) const {
    return at(extents_, at(plan_.sources, ring.first_source)).offset;
  }
  // The places of other ranks' blocks are unknown, so no message is direct.
  std::int64_t direct_read(const blink_plan_ring& ring) const { return blocks_ == nullptr ? ring.direct_read : 0; }
  std::int64_t splits(const blink_plan_ring& ring) const { return blocks_ == nullptr ? ring.split : 0; }
  std::int64_t write_block(const blink_plan_reader& reader) const {
    return blocks_ == nullptr ? reader.write_block : BLINK_NOWHERE;
  }

  void describe(blink_bound& made, const blink_plan_rank& own) const {
    blink_tables& t = made.tables;
    const blink_plan_header& h = plan_.header;
    t.what = static_cast<std::uint64_t>(h.collective + 1) | std::uint64_t{binding_.dtype} << 8 |
             std::uint64_t{binding_.op} << 16 | static_cast<std::uint64_t>(h.root) << 24;
    t.count = binding_.count;
    t.dtype = binding_.dtype;
    t.op = binding_.op & ~std::uint32_t{BLINK_AVERAGES | BLINK_SCALES};
    t.shift_bytes = std::max(unit(), rounded_up(needed_, unit()));
    t.shifts = std::max<std::int64_t>(1, std::min<std::int64_t>(BLINK_SMALL_CALLS_BYTES, area()) / t.shift_bytes);
    t.signature = signature(t.what);
    t.inline_messages = h.inline_messages;
    t.direct_read_in_place = own.direct_read_in_place;
    t.direct_write_in_place = own.direct_write_in_place;
    t.cross_memory = blocks_ == nullptr && binding_.cross_memory != 0;
    t.input_bytes = own.input_blocks * binding_.count * item_;
    t.output_bytes = own.output_blocks * binding_.count * item_;
    if (blocks_ != nullptr) {
      t.input_bytes = item_ * end_of(blocks_->source_lengths, blocks_->sources, own.input_blocks);
      t.output_bytes = item_ * end_of(blocks_->target_lengths, blocks_->targets, own.output_blocks);
    }
    t.queue_count = own.queues;
    const auto size = [](const auto& rows) { return static_cast<std::int64_t>(rows.size()); };
    t.roles = made.roles.data(), t.role_count = size(made.roles);
    t.receives = made.receives.data(), t.receive_count = size(made.receives);
    t.sends = made.sends.data(), t.send_count = size(made.sends);
    t.rings = made.rings.data(), t.ring_count = size(made.rings);
    t.readers = made.readers.data(), t.reader_count = size(made.readers);
  }

  static std::int64_t end_of(const std::int64_t* lengths, const std::int64_t* places, std::int64_t blocks) {
    std::int64_t end = 0;
    for (std::int64_t i = 0; i < blocks; ++i) end = std::max(end, lengths[i] == 0 ? 0 : places[i] + lengths[i]);
    return end;
  }

  // Equal on all ranks that make the same call, different otherwise. Small messages contain its low bits.
  std::uint64_t signature(std::uint64_t what) const {
    const std::int64_t words[] = {BLINK_PLAN_VERSION,    plan_.header.digest,          static_cast<std::int64_t>(what),
                                  plan_.header.dst,      blocks_ == nullptr ? binding_.count : known_lengths(), chunk_elements_,
                                  shape_.staging_bytes,  shape_.inline_bytes,          shape_.lines,
                                  blocks_ == nullptr && binding_.cross_memory != 0};
    return checksum(reinterpret_cast<const unsigned char*>(words), sizeof words / sizeof words[0]);
  }

  // The block lengths that all ranks know.
  std::int64_t known_lengths() const {
    const std::int64_t* const known = plan_.header.collective == BLINK_ALLGATHER        ? blocks_->target_lengths
                                      : plan_.header.collective == BLINK_REDUCE_SCATTER ? blocks_->source_lengths
                                                                                        : nullptr;
    return known == nullptr ? -1 : static_cast<std::int64_t>(checksum(reinterpret_cast<const unsigned char*>(known), plan_.ranks.size()));
  }

  const blink_plan& plan_;
  const blink_shape& shape_;
  const blink_binding& binding_;
  const blink_blocks* const blocks_;
  const std::int64_t item_;
  const bool inline_;
  std::vector<Extent> extents_;  // of slices, in elements
  std::vector<Place> places_;    // of rings
  bool on_rails_ = false;
  std::int64_t chunk_bytes_ = 0, chunk_elements_ = 0, longest_ = 0, needed_ = 0;
};

// The reason why a rank's blocks are invalid; nullptr: they are valid.
const char* fault_of(const blink_plan& plan, const blink_plan_rank& own, const blink_blocks& blocks) {
  const auto is_far = [](const std::int64_t* numbers, std::int64_t count) {
    return std::any_of(numbers, numbers + count, [](std::int64_t n) { return n < 0 || n > kMostElements; });
  };
  if (is_far(blocks.source_lengths, own.input_blocks) || is_far(blocks.sources, own.input_blocks) ||
      is_far(blocks.target_lengths, own.output_blocks) || is_far(blocks.targets, own.output_blocks)) {
    return "a length or offset is outside 0 to 2^40";
  }
  if (plan.header.inline_messages != 0) return "protocol 'll' needs blocks of equal length";
  for (std::int64_t i = own.first_role; i < own.first_role + own.roles; ++i) {
    const blink_plan_role& role = plan.roles[static_cast<std::size_t>(i)];
    const bool gives = role.source_block != BLINK_NOWHERE, keeps = role.target_block != BLINK_NOWHERE;
    if (!gives && !keeps) return "the plan forwards blocks whose lengths this rank does not know";
    if (gives && keeps && blocks.source_lengths[role.source_block] != blocks.target_lengths[role.target_block]) {
      return "this rank's own block has different lengths in its input and output";
    }
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<const blink_bound> bind(const blink_plan& plan, const blink_shape& shape, int rank,
                                        const blink_binding& binding, const blink_blocks* blocks, blink_error& why) {
  constexpr std::uint32_t kBeside = BLINK_AVERAGES | BLINK_SCALES;
  const Kernel* kernel = find_kernel(binding.dtype, binding.op & ~kBeside);
  if (kernel == nullptr) {
    return refuse(why, BLINK_INVALID, "element type %u does not support operation %u", binding.dtype, binding.op & ~kBeside);
  }
  if (plan.header.rank_count != shape.ranks || rank < 0 || rank >= shape.ranks) {
    return refuse(why, BLINK_INVALID, "the plan is for %lld ranks, but the segment of rank %d has %lld",
                  static_cast<long long>(plan.header.rank_count), rank, static_cast<long long>(shape.ranks));
  }
  if (binding.count < 0 || binding.count > kMostElements || binding.chunk_bytes < 1) {
    return refuse(why, BLINK_INVALID, "blocks of %lld elements in chunks of %lld bytes: expected 0 to 2^40, and 1 or more",
                  static_cast<long long>(binding.count), static_cast<long long>(binding.chunk_bytes));
  }
  const char* fault = blocks == nullptr ? nullptr : fault_of(plan, plan.ranks[static_cast<std::size_t>(rank)], *blocks);
  if (fault != nullptr) return refuse(why, BLINK_INVALID, "blocks of different lengths: %s", fault);
  Binder binder(plan, shape, binding, blocks, static_cast<std::int64_t>(kernel->itemsize));
  return binder.fit(why) ? binder.rows(rank) : nullptr;
}

blink_op* bind_op(blink_comm& comm, const blink_plan& plan, const blink_binding& binding, const blink_blocks* blocks,
                  blink_error& why) {
  const auto bound = bind(plan, comm.segment().shape(), comm.rank(), binding, blocks, why);
  if (bound == nullptr) return nullptr;
  blink_op* op = blink_op_create(&comm, &bound->tables);
  if (op == nullptr) refuse(why, BLINK_INVALID, "the program's tables are invalid on rank %d", comm.rank());
  return op;
}

}  // namespace blink

extern "C" {

blink_bound* blink_bind(const blink_plan* plan, const blink_shape* shape, int32_t rank, const blink_binding* binding,
                        blink_error* error) {
  return const_cast<blink_bound*>(blink::bind(*plan, *shape, rank, *binding, nullptr, *error).release());
}

const blink_tables* blink_bound_tables(const blink_bound* bound) { return &bound->tables; }

void blink_bound_free(blink_bound* bound) { delete bound; }

blink_op* blink_op_bind(blink_comm* comm, const blink_plan* plan, const blink_binding* binding, blink_error* error) {
  return blink::bind_op(*comm, *plan, *binding, nullptr, *error);
}

}  // extern "C"
