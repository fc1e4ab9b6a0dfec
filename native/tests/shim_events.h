// What happened, in which order? One list of lines for the test, the stand-in for NCCL and that for our inner half.
#pragma once

extern "C" {

// Appends "text".
__attribute__((visibility("default"))) void shim_event(const char* text);
// All of them so far, joined by "; ", taken out of the list; good until the next call.
__attribute__((visibility("default"))) const char* shim_events_text();

}  // extern "C"
