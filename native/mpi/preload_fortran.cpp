// libblink_mpi_fortran.so, beside libblink_mpi.so, which knows the destinations. Fortran functions of MPI libraries may
// call PMPI_ (all of Open MPI's, some of MPICH's), which counts as MPI_. Other callers of PMPI_ get the library's own.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "core.h"
#include "forward.h"

namespace {

std::atomic<blink_mpi_any> own[kFunctions];

// A cache by the calling address, since callers are few: an address, with 1 in its lowest bit for Fortran's libraries.
constexpr std::size_t kPlaces = 1024;
std::atomic<std::uintptr_t> places[kPlaces];

// Names of Open MPI's and MPICH's libraries, and of MPICH's derivatives.
constexpr const char* kFortran[] = {"libmpi_mpifh", "libmpi_usempi", "libmpichfort", "libmpifort"};

bool is_fortran(void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(caller) << 1;
  std::atomic<std::uintptr_t>& place = places[(address >> 3 ^ address >> 13) % kPlaces];
  const std::uintptr_t known = place.load(std::memory_order_relaxed);
  if (__builtin_expect((known & ~std::uintptr_t{1}) == address, 1)) return (known & 1) != 0;
  Dl_info about{};
  bool fortran = false;
  if (dladdr(caller, &about) != 0 && about.dli_fname != nullptr) {
    for (const char* name : kFortran) fortran = fortran || std::strstr(about.dli_fname, name) != nullptr;
  }
  place.store(address | (fortran ? 1 : 0), std::memory_order_relaxed);
  return fortran;
}

blink_mpi_any target(int function, void* caller) {
  if (is_fortran(caller)) return blink_mpi_target(function, caller);
  blink_mpi_any known = own[function].load(std::memory_order_acquire);
  if (__builtin_expect(known == nullptr, 0)) own[function].store(known = blink_mpi_own(function, caller), std::memory_order_release);
  return known;
}

}  // namespace

#undef BLINK_MPI_NAME
#define BLINK_MPI_NAME(name) PMPI_##name
#undef BLINK_MPI_TARGET
#define BLINK_MPI_TARGET target
#define SERVED(name, n) FORWARD(name, n, )
#define COUNTED(name, n, why) \
  FORWARD(name, n, if (is_fortran(__builtin_return_address(0))) blink_mpi_passed(k_##name, why))

extern "C" {
BLINK_MPI_COLLECTIVES(SERVED, COUNTED)
BLINK_MPI_ALONE(SERVED, COUNTED)
long PMPI_Finalize() { return target(k_Finalize, __builtin_return_address(0))(); }
}
