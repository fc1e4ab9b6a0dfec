// Would the real NCCL refuse this call? Then it gets it, and the caller gets NCCL's own error.
#pragma once

#include "table.h"

namespace blink::shim {

// Checks what NCCL checks of a collective's arguments: type, operation, root, and buffers where this rank needs them.
// `operation.op` as the caller gave it; afterwards a premul_sum has our own number.
bool acceptable(Member& member, Operation* operation);

}  // namespace blink::shim
