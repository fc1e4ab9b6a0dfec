// Which device does the calling thread work on? Contexts are the primary ones, one for each device.
#pragma once

#include "api.h"

namespace cuda_double {

CUresult current_usable();  // 0, or why the current context cannot be used
int current_device();       // -1 without a context
int device_of(CUcontext context);  // -1: no context
bool may_reach(int device, int peer);  // peer access was enabled

}  // namespace cuda_double
