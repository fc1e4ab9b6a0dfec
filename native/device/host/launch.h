// The functions with which Python runs generated kernels on this CPU.
#pragma once

#include "blink/call.h"

extern "C" {

// Runs `blocks` blocks of each of `ranks` ranks, one thread per block, and waits for all of them. calls[r] is rank r's.
// After `timeout_s` seconds (0 or less: never) it sets the calls' abort words to 1, which ends all waits. Returns 0; 1
// if some call's status is not 0; -1 if threads could not be started (those that started have been aborted).
int blink_launch(void (*entry)(const blink::Call*, uint32_t block), const blink::Call* calls, uint32_t ranks,
                 uint32_t blocks, double timeout_s);

// A number derived from the headers of this library's build.
uint32_t blink_device_abi();

// The version in pyproject.toml of this library's build. The text is never freed.
const char* blink_device_version();

}  // extern "C"
