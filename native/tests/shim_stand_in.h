// The stand-in for NCCL as a test drives it: functions of a library that is opened as Blink opens it.
#pragma once

#include <dlfcn.h>

#include <cstdlib>

namespace shim_test {

// A function of the library that BLINK_NCCL_LIB names.
template <class Type>
Type* stand_in(const char* name) {
  void* const library = dlopen(std::getenv("BLINK_NCCL_LIB"), RTLD_LOCAL | RTLD_NOW);
  void* const address = library != nullptr ? dlsym(library, name) : nullptr;
  if (address == nullptr) std::abort();
  dlclose(library);  // Blink has it open
  return reinterpret_cast<Type*>(address);
}

// From now on this function of NCCL returns `result`; "" for none.
inline void fail(const char* name, int result) { stand_in<void(const char*, int)>("stand_in_fail")(name, result); }

}  // namespace shim_test
