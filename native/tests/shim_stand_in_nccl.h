// How does a test drive the stand-in for NCCL?
#pragma once

#include "nccl_types.h"

extern "C" {

// From now on this function returns `result`; one at a time, "" for none.
void stand_in_fail(const char* name, int result);
// A communicator that does not block is complete, and so are the children that waited for it.
void stand_in_complete(ncclComm_t comm);
// What ncclCommGetAsyncError says in a thread of NCCL's own.
int stand_in_thread_sees(ncclComm_t comm);
// Frees a communicator in a way that nobody else sees.
void stand_in_free(ncclComm_t comm);
// A plugin of NCCL, code of another library that NCCL calls: in ncclCommResume.
void stand_in_plug(void (*function)(ncclComm_t));
// Frees the handles that were given back.
void stand_in_clear();

}  // extern "C"
