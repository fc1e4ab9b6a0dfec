// The threads that run blocks and graph nodes, one per running task: a spinning task must not wait for a thread.
#pragma once

#include <functional>

namespace cuda_double {

void run_in_thread(std::function<void()> work);

}  // namespace cuda_double
