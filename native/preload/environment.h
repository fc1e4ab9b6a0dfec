// Environment variables, where an empty value counts as unset.
#pragma once

#include <cstdlib>
#include <cstring>

namespace blink {

// The value, or nullptr if the variable is unset.
inline const char* variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

// True if BLINK_DISABLE=1, which makes Blink forward all calls.
inline bool is_disabled() {
  const char* const text = variable("BLINK_DISABLE");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

}  // namespace blink
