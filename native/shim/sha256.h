// SHA-256 (FIPS 180-4), for keys that must neither collide nor be guessed.
#pragma once

#include <cstddef>
#include <string>

namespace blink::shim {

// 64 hexadecimal digits.
std::string sha256(const void* bytes, std::size_t size);

}  // namespace blink::shim
