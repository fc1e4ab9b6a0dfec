// What Python calls to run generated kernels on this CPU.
#pragma once

#include "blink/call.h"

extern "C" {

// Runs `blocks` blocks of each of `ranks` ranks, each in a thread of its own, and waits for all of them. calls[r] is
// rank r's. After `timeout_s` seconds (0 or less: never) the calls' abort words are set to 1, so that what waits ends.
// 0; 1 if some call's status is not 0; -1 if threads could not be started (those that were are aborted and done).
int blink_launch(void (*entry)(const blink::Call*, uint32_t block), const blink::Call* calls, uint32_t ranks,
                 uint32_t blocks, double timeout_s);

// A number made of the headers that this library was compiled with.
uint32_t blink_device_abi();

// The version in pyproject.toml that this library was built from. The text is never freed.
const char* blink_device_version();

}  // extern "C"
