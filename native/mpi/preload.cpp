// libblink_mpi.so's exports: MPI's functions, which search at the first call for the program's MPI library and its
// binding. A program that never calls MPI is not affected.
//
// A call costs one more indirect jump. Its arguments are passed as words: the callee ignores the upper halves of
// narrower ones (calling conventions of x86-64 and AArch64).
#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core.h"
#include "environment.h"
#include "forward.h"
#include "report.h"

namespace blink::mpi {
namespace {

const char* const kNames[] = {
#define BOTH(name, ...) #name, #name "_c",
#define ONE(name, ...) #name,
    BLINK_MPI_FUNCTIONS(BOTH, ONE, BOTH, ONE)
#undef BOTH
#undef ONE
};

using Function = blink_mpi_any;
std::atomic<Function> functions[kFunctions];  // the destination of MPI_…; null: not known yet

// A function that only the MPI library has; libblink_mpi_fortran.so has some of PMPI_.
constexpr const char* kProof = "PMPI_Get_library_version";

// The handle in which the caller's MPI library is searched: the libraries that the caller was linked with, else any.
void* place_of(void* caller) {
  Dl_info about{};
  link_map* map = nullptr;
  if (dladdr1(caller, &about, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0 && map != nullptr) {
    const char* name = map->l_name;  // empty: the program itself
    void* handle = dlopen(*name == '\0' ? nullptr : name, RTLD_NOLOAD | RTLD_LAZY);
    if (handle != nullptr && dlsym(handle, kProof) != nullptr) return handle;
  }
  if (dlsym(RTLD_NEXT, kProof) != nullptr) return RTLD_NEXT;
  // A wrapper that tail-calls leaves no address of its own, and a library loaded for it alone is not in the global
  // scope. So all loaded libraries are searched.
  void* const whole = dlopen(nullptr, RTLD_NOLOAD | RTLD_LAZY);
  link_map* loaded = nullptr;
  if (whole == nullptr || dlinfo(whole, RTLD_DI_LINKMAP, &loaded) != 0) return nullptr;
  for (; loaded != nullptr; loaded = loaded->l_next) {
    void* const handle = *loaded->l_name == '\0' ? nullptr : dlopen(loaded->l_name, RTLD_NOLOAD | RTLD_LAZY);
    if (handle == nullptr) continue;
    if (dlsym(handle, kProof) != nullptr) return handle;
    dlclose(handle);
  }
  return nullptr;
}

// The MPI library itself, so that interposed functions are not found before its own.
void* handle_of(void* caller) {
  void* const place = place_of(caller);
  Dl_info about{};
  if (place == nullptr || dladdr(dlsym(place, kProof), &about) == 0) return place;
  void* const handle = dlopen(about.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
  return handle != nullptr ? handle : place;
}

std::string version_of(void* library) {
  char text[8192] = {};  // MPICH and its derivatives have the largest MPI_MAX_LIBRARY_VERSION_STRING
  int length = 0;
  auto* tell = reinterpret_cast<int (*)(char*, int*)>(dlsym(library, kProof));
  return tell != nullptr && tell(text, &length) == 0 ? std::string(text) : "an MPI library without a version";
}

bool is_of(const std::string& version, const std::string& family) {
  const auto has = [&](const char* word) { return version.find(word) != std::string::npos; };
  // These share one ABI (mpich.org/abi).
  if (family == "MPICH") return has("MPICH") || has("Intel(R) MPI") || has("MVAPICH");
  return !family.empty() && has(family.c_str());
}

// The binding in BLINK_MPI_BINDING, if it is for this library; else null and `why`.
void* open_binding(void* library, std::string* why) {
  const char* file = variable("BLINK_MPI_BINDING");
  if (file == nullptr) {
    *why = "BLINK_MPI_BINDING is not set: start the program with blink run --mpi";
    return nullptr;
  }
  // The binding's names are resolved in the global scope, which lacks a library that was loaded for one module (as
  // Python's modules are).
  Dl_info about{};
  if (dladdr(dlsym(library, kProof), &about) != 0) dlopen(about.dli_fname, RTLD_NOLOAD | RTLD_LAZY | RTLD_GLOBAL);
  void* const binding = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (binding == nullptr) {
    *why = std::string("the binding does not fit this MPI library: ") + dlerror();
    return nullptr;
  }
  const auto* family = static_cast<const char*>(dlsym(binding, "blink_mpi_built_for"));
  const auto* number = static_cast<const int*>(dlsym(binding, "blink_mpi_binding_version"));
  const std::string version = version_of(library);
  if (number == nullptr || *number != BLINK_MPI_BINDING_VERSION) {
    *why = std::string(file) + " belongs to another version of Blink; start the program with blink run --mpi";
  } else if (!is_of(version, family)) {
    *why = "the binding was built for " + std::string(*family != '\0' ? family : "an MPI library unknown to Blink") +
           ", the program uses " + version.substr(0, version.find('\n')) + "; name its compiler with blink run --mpicc";
  } else {
    return binding;
  }
  return nullptr;
}

[[noreturn]] void end_without(int function) {
  const std::string line = std::string("libblink_mpi.so: the program calls MPI_") + kNames[function] +
                           ", but has loaded no MPI library that contains it\n";
  say(line);
  std::abort();
}

struct Found {
  void* library = nullptr;
  void* binding = nullptr;
};

const Found& find(void* caller) {
  static const Found found = [caller] {
    Found first;
    first.library = handle_of(caller);
    if (first.library == nullptr) return first;
    std::string why;
    first.binding = open_binding(first.library, &why);
    begin_report(version_of(first.library), why);
    return first;
  }();
  return found;
}

Function look_up_own(int function, void* caller) {
  const Found& found = find(caller);
  const std::string name = std::string("PMPI_") + kNames[function];
  void* const address = found.library == nullptr ? nullptr : dlsym(found.library, name.c_str());
  if (address == nullptr) end_without(function);
  return reinterpret_cast<Function>(address);
}

Function look_up(int function, void* caller) {
  const Found& found = find(caller);
  void* address = nullptr;
  if (found.binding != nullptr) address = dlsym(found.binding, (std::string("blink_bound_") + kNames[function]).c_str());
  const Function to = address != nullptr ? reinterpret_cast<Function>(address) : look_up_own(function, caller);
  functions[function].store(to, std::memory_order_release);
  return to;
}

inline Function target(int function, void* caller) {
  const Function known = functions[function].load(std::memory_order_acquire);
  return __builtin_expect(known != nullptr, 1) ? known : look_up(function, caller);
}

}  // namespace
}  // namespace blink::mpi

#undef BLINK_MPI_TARGET
#define BLINK_MPI_TARGET blink::mpi::target
#define SERVED(name, n) FORWARD(name, n, )
#define COUNTED(name, n, why) FORWARD(name, n, blink_mpi_passed(k_##name, why))

extern "C" {

blink_mpi_any blink_mpi_target(int function, void* caller) {
  return blink::mpi::target(function, caller);
}
blink_mpi_any blink_mpi_own(int function, void* caller) { return blink::mpi::look_up_own(function, caller); }
BLINK_MPI_COLLECTIVES(SERVED, COUNTED)
BLINK_MPI_ALONE(SERVED, COUNTED)

long MPI_Finalize() { return blink::mpi::target(k_Finalize, __builtin_return_address(0))(); }
}
