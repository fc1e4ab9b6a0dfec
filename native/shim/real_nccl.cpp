#include "real_nccl.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "environment.h"
#include "exports.h"
#include "log.h"

namespace blink::shim {
namespace {

enum Function : std::size_t {
#define BLINK_FUNCTION(result, name, count, types, absent) k_##name,
#include "nccl_functions.def"
  kFunctions
};

const char* const kNames[] = {
#define BLINK_FUNCTION(result, name, count, types, absent) #name,
#include "nccl_functions.def"
};

constexpr ncclTeam_t kAlone = {1, 0, 1};  // not zero ranks, so that callers can divide

struct Library {
  void* handle = nullptr;
  std::uintptr_t begin = 0, end = 0;  // its mapping
};

// No locks: dlopen and dlsym take the loader's lock, and a thread that holds it may be in the constructor of a library
// that calls Blink. Threads that search at the same time get the same result.
std::atomic<const Library*> library{nullptr};
std::atomic<void*> addresses[kFunctions];
std::atomic<bool> told{false};
char lacking;  // its address marks a function that the library lacks

thread_local int depth = 0;  // this thread's nested calls into the real library

class Inside {
 public:
  Inside() { ++depth; }
  ~Inside() { --depth; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

void* base_of(const void* address) {
  Dl_info found{};
  return dladdr(address, &found) != 0 ? found.dli_fbase : nullptr;
}

bool is_ours(const void* address) { return base_of(address) == base_of(&lacking); }

// A function by its name; nullptr for Blink's own wrapper.
void* symbol(void* handle, const char* name) {
  void* const address = dlsym(handle, name);
  return address == nullptr || is_ours(address) ? nullptr : address;
}

struct Search {
  std::uintptr_t address;
  Library* found;
};

int visit(dl_phdr_info* object, std::size_t, void* data) {
  const auto* search = static_cast<Search*>(data);
  std::uintptr_t begin = UINTPTR_MAX, end = 0;
  bool inside = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& part = object->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t first = object->dlpi_addr + part.p_vaddr, last = first + part.p_memsz;
    inside = inside || (first <= search->address && search->address < last);
    begin = first < begin ? first : begin;
    end = last > end ? last : end;
  }
  if (!inside) return 0;
  search->found->begin = begin;
  search->found->end = end;
  return 1;
}

// True if NCCL can be reached through this handle. Another copy of Blink does not count.
bool holds_nccl(void* handle, Library* found) {
  void* const address = symbol(handle, "ncclGetVersion");
  if (address == nullptr) return false;
  void* const blink = dlsym(handle, "blink_shim_version");
  if (blink != nullptr && base_of(blink) == base_of(address)) return false;
  found->handle = handle;
  Search search{reinterpret_cast<std::uintptr_t>(address), found};
  dl_iterate_phdr(visit, &search);
  return true;
}

bool look_everywhere(Library* found, std::string* tried) {
  if (void* const handle = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_LAZY); handle == nullptr) {
    *tried = "no libnccl.so.2 is loaded";
  } else if (holds_nccl(handle, found)) {
    return true;
  } else {
    *tried = "the loaded libnccl.so.2 is Blink or has no ncclGetVersion";
  }
  const char* const file = variable("BLINK_NCCL_LIB");
  if (file == nullptr) {
    *tried += "; BLINK_NCCL_LIB is not set";
  } else if (void* const handle = dlopen(file, RTLD_LOCAL | RTLD_NOW); handle == nullptr) {
    const char* const why = dlerror();
    *tried += std::string("; BLINK_NCCL_LIB cannot be opened: ") + (why != nullptr ? why : file);
  } else if (holds_nccl(handle, found)) {
    return true;
  } else {
    *tried += std::string("; BLINK_NCCL_LIB=") + file + " is Blink or has no ncclGetVersion";
  }
  if (holds_nccl(RTLD_NEXT, found)) return true;
  *tried += "; no library after libblink.so has NCCL's functions";
  return false;
}

const Library* find_library(std::string* tried) {
  if (const Library* const known = library.load(std::memory_order_acquire)) return known;
  auto found = std::make_unique<Library>();
  // A failure is not cached, since the program may load NCCL later.
  if (!look_everywhere(found.get(), tried)) return nullptr;
  const Library* expected = nullptr;
  if (library.compare_exchange_strong(expected, found.get(), std::memory_order_acq_rel)) return found.release();
  return expected;
}

// Printed at any NCCL_DEBUG: without NCCL nothing works, and the caller's own error text lacks the reason.
void say_that_there_is_none(const char* name, const std::string& tried) {
  if (told.exchange(true)) return;
  const std::string line = "libblink.so: there is no NCCL to call for " + std::string(name) + ": " + tried +
                           ". Set BLINK_NCCL_LIB to the file of a libnccl.so.2 (nvidia/nccl/lib in the "
                           "site-packages of nvidia-nccl-cu13), or load NCCL before it is called.\n";
  const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  static_cast<void>(written);
}

void* look_up(Function function, ncclResult_t* refusal) {
  const KeepErrno keep;
  void* address = nullptr;
  try {
    std::string tried;
    if (const Library* const found = find_library(&tried); found == nullptr) {
      *refusal = ncclSystemError;
      say_that_there_is_none(kNames[function], tried);
    } else {
      address = symbol(found->handle, kNames[function]);
      void* expected = nullptr;
      const bool first = addresses[function].compare_exchange_strong(expected, address ? address : &lacking);
      if (address == nullptr) {
        *refusal = ncclInvalidUsage;
        if (first) {
          warn(std::string("this NCCL (version code ") + std::to_string(real_version()) + ") has no " +
               kNames[function] + ": the call returns an error");
        }
      }
    }
  } catch (const std::exception&) {  // no memory for a text
    *refusal = ncclSystemError;
  }
  return address;
}

// The real function, or nullptr and the result to return.
void* find(Function function, ncclResult_t* refusal) {
  void* const address = addresses[function].load(std::memory_order_acquire);
  if (address == nullptr) return look_up(function, refusal);
  if (address != &lacking) return address;
  *refusal = ncclInvalidUsage;
  return nullptr;
}

bool disabled() {
  static const bool yes = is_disabled();
  return yes;
}

const char* last_words() {
  return library.load(std::memory_order_acquire) == nullptr ? "there is no NCCL library: see BLINK_NCCL_LIB" : "";
}

}  // namespace

// The parameters `A a, B b, …` for a number of types, and the arguments `a, b, …`.
#define BLINK_TAKES_0()
#define BLINK_TAKES_1(A) A a
#define BLINK_TAKES_2(A, B) A a, B b
#define BLINK_TAKES_3(A, B, C) A a, B b, C c
#define BLINK_TAKES_4(A, B, C, D) A a, B b, C c, D d
#define BLINK_TAKES_5(A, B, C, D, E) A a, B b, C c, D d, E e
#define BLINK_TAKES_6(A, B, C, D, E, F) A a, B b, C c, D d, E e, F f
#define BLINK_TAKES_7(A, B, C, D, E, F, G) A a, B b, C c, D d, E e, F f, G g
#define BLINK_TAKES_8(A, B, C, D, E, F, G, H) A a, B b, C c, D d, E e, F f, G g, H h
#define BLINK_TAKES_9(A, B, C, D, E, F, G, H, I) A a, B b, C c, D d, E e, F f, G g, H h, I i
#define BLINK_TAKES_11(A, B, C, D, E, F, G, H, I, J, K) A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K k
#define BLINK_GIVES_0
#define BLINK_GIVES_1 a
#define BLINK_GIVES_2 a, b
#define BLINK_GIVES_3 a, b, c
#define BLINK_GIVES_4 a, b, c, d
#define BLINK_GIVES_5 a, b, c, d, e
#define BLINK_GIVES_6 a, b, c, d, e, f
#define BLINK_GIVES_7 a, b, c, d, e, f, g
#define BLINK_GIVES_8 a, b, c, d, e, f, g, h
#define BLINK_GIVES_9 a, b, c, d, e, f, g, h, i
#define BLINK_GIVES_11 a, b, c, d, e, f, g, h, i, j, k

#define BLINK_FUNCTION(result, name, count, types, absent)           \
  result real::name(BLINK_TAKES_##count types) {                     \
    [[maybe_unused]] ncclResult_t refusal = ncclSuccess;             \
    const auto function = reinterpret_cast<result(*) types>(find(k_##name, &refusal)); \
    if (function == nullptr) return absent;                          \
    const Inside inside;                                             \
    return function(BLINK_GIVES_##count);                            \
  }
#include "nccl_functions.def"

int real_version() {
  const KeepErrno keep;
  try {
    std::string tried;
    int version = 0;
    return find_library(&tried) != nullptr && real::ncclGetVersion(&version) == ncclSuccess ? version : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

bool passes(const void* caller) {
  if (depth > 0 || disabled()) return true;
  // NCCL's own threads call its functions for their own purposes and need the real ones.
  const Library* const known = library.load(std::memory_order_acquire);
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  return known != nullptr && known->begin <= address && address < known->end;
}

}  // namespace blink::shim

// The exports: functions with Blink's own version, and functions that only forward.
#define BLINK_HANDLED(name, count, types)                                                  \
  ncclResult_t name(BLINK_TAKES_##count types) {                                           \
    using namespace blink::shim;                                                           \
    const void* const caller = __builtin_extract_return_addr(__builtin_return_address(0)); \
    if (passes(caller)) return real::name(BLINK_GIVES_##count);                            \
    return guarded([&] { return ours::name(BLINK_GIVES_##count); });                       \
  }
#define BLINK_FUNCTION(result, name, count, types, absent) \
  result name(BLINK_TAKES_##count types) { return blink::shim::real::name(BLINK_GIVES_##count); }
#include "nccl_functions.def"

extern "C" const char* blink_shim_version();

// The version in pyproject.toml, passed in by CMake and read by `blink run`. The text is never freed.
extern "C" const char* blink_shim_version() { return BLINK_VERSION; }
