// Variables of the environment, of which an empty one counts as none.
#pragma once

#include <cstdlib>
#include <cstring>

namespace blink {

// nullptr: it is not set.
inline const char* variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

// BLINK_DISABLE=1: everything is passed on.
inline bool is_disabled() {
  const char* const text = variable("BLINK_DISABLE");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

}  // namespace blink
