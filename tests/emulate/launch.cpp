#include "emulate/launch.h"

#include <cstring>

extern "C" __attribute__((visibility("default"))) int blink_emulate(
    void (*entry)(const blink::Call*, uint32_t block), const blink::Call* calls, uint32_t ranks, uint32_t blocks,
    uint32_t threads, uint64_t seed, char* text, uint32_t room) {
  blink::emulate::Options options;
  options.seed = seed;
  const std::string finding = blink::emulate::run(
      {ranks, blocks, threads}, [&](uint32_t rank, uint32_t block) { entry(calls + rank, block); }, options);
  if (!finding.empty()) {
    std::strncpy(text, finding.c_str(), room - 1);
    text[room - 1] = '\0';
    return 2;
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const blink::Status* const status = calls[rank].status;
    if (status != nullptr && status->code != 0) return 1;
  }
  return 0;
}
