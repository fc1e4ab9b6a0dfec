#include "segment.h"

#include <cstring>

namespace blink {
namespace {

bool on_page(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory) % kPage == 0; }

struct Offsets {
  std::uint64_t ranks, lines, staging, inline_area, streams, stream_data, variants, variant_times, end;
};

std::uint64_t page_up(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

Offsets offsets(const blink_shape& s) {
  const auto n = static_cast<std::uint64_t>(s.ranks);
  Offsets at{};
  at.ranks = sizeof(Header);
  at.lines = page_up(at.ranks + n * sizeof(RankBlock));
  at.staging = page_up(at.lines + kBanks * n * static_cast<std::uint64_t>(s.lines) * sizeof(Line));
  at.inline_area = page_up(at.staging + kBanks * n * static_cast<std::uint64_t>(s.staging_bytes));
  at.streams = page_up(at.inline_area + kBanks * n * static_cast<std::uint64_t>(s.inline_bytes));
  at.stream_data = page_up(at.streams + n * n * sizeof(Stream));
  at.variants = page_up(at.stream_data + n * n * static_cast<std::uint64_t>(s.stream_bytes));
  at.variant_times = page_up(at.variants + kVariantLines * sizeof(VariantLine));
  at.end = page_up(at.variant_times + kVariantLines * n * sizeof(VariantTimes));
  return at;
}

bool sensible(const blink_shape& s) {
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  const auto whole = [](std::int64_t bytes, std::size_t unit) {
    return bytes >= 0 && bytes <= kMost && bytes % static_cast<std::int64_t>(unit) == 0;
  };
  return s.ranks >= 1 && s.ranks <= 4096 && s.lines >= 1 && s.lines <= (1 << 20) &&
         whole(s.staging_bytes, kLineBytes) && whole(s.inline_bytes, BLINK_BLOCK_BYTES) &&
         whole(s.stream_bytes, kLineBytes) && s.stream_bytes > 0;
}

}  // namespace

std::uint64_t Segment::bytes_needed(const blink_shape& shape) { return sensible(shape) ? offsets(shape).end : 0; }

bool Segment::open(void* memory, std::uint64_t bytes, const std::uint8_t* token) {
  const auto* header = static_cast<const Header*>(memory);
  if (bytes < sizeof(Header) || !on_page(memory) || header->magic != kMagic || header->version != blink_abi_version() ||
      !sensible(header->shape) || header->bytes != offsets(header->shape).end || header->bytes > bytes ||
      (token != nullptr && std::memcmp(header->token, token, sizeof header->token) != 0)) {
    return false;
  }
  base_ = static_cast<unsigned char*>(memory);
  shape_ = header->shape;
  const Offsets at = offsets(shape_);
  ranks_ = reinterpret_cast<RankBlock*>(base_ + at.ranks);
  lines_ = reinterpret_cast<Line*>(base_ + at.lines);
  staging_ = base_ + at.staging;
  inline_ = base_ + at.inline_area;
  streams_ = reinterpret_cast<Stream*>(base_ + at.streams);
  stream_data_ = base_ + at.stream_data;
  variants_ = reinterpret_cast<VariantLine*>(base_ + at.variants);
  variant_times_ = reinterpret_cast<VariantTimes*>(base_ + at.variant_times);
  return true;
}

}  // namespace blink

extern "C" uint64_t blink_segment_bytes(const blink_shape* shape) { return blink::Segment::bytes_needed(*shape); }

extern "C" int blink_segment_format(void* memory, uint64_t bytes, const blink_shape* shape, const uint8_t token[16],
                                    int32_t cores) {
  const std::uint64_t needed = blink::Segment::bytes_needed(*shape);
  if (needed == 0 || bytes < needed || !blink::on_page(memory)) return BLINK_INVALID;
  auto* header = static_cast<blink::Header*>(memory);
  header->version = blink_abi_version();
  header->cores = cores;
  std::memcpy(header->token, token, sizeof header->token);
  header->shape = *shape;
  header->bytes = needed;
  header->magic = blink::kMagic;
  return BLINK_OK;
}
