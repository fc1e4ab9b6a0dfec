// SHA-256 (FIPS 180-4), of keys, which must be unique and unpredictable, and of files.
#pragma once

#include <cstddef>
#include <string>

namespace blink::shim {

// The digest as 64 hexadecimal digits.
std::string sha256(const void* bytes, std::size_t size);

}  // namespace blink::shim
