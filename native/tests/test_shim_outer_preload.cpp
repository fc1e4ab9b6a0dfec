// Preloaded, does it find an NCCL that only a library loaded at run time needs, in a scope of its own, as PyTorch's?
// And does a process that calls no NCCL notice nothing?

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "check.h"

using blink_test::expect;

namespace {

bool mapped(const char* name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(name) != std::string::npos) return true;
  }
  return false;
}

std::string folder_of(const std::string& file) { return file.substr(0, file.rfind('/')); }

void run_again_with_it() {
  setenv("LD_PRELOAD", STAND_IN_BLINK, 1);
  setenv("LD_LIBRARY_PATH", folder_of(STAND_IN_NCCL).c_str(), 1);
  unsetenv("BLINK_NCCL_LIB");
  // The sanitizer's library now comes after ours, which does no harm: ours is built with it.
  const char* const options = std::getenv("ASAN_OPTIONS");
  setenv("ASAN_OPTIONS", (std::string(options != nullptr ? options : "") + ":verify_asan_link_order=0").c_str(), 1);
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) std::abort();
  execl(self, self, "preloaded", static_cast<char*>(nullptr));
  std::abort();
}

int preloaded() {
  expect(mapped("stand_in_blink"), "preloaded");
  expect(!mapped("libnccl") && !mapped("libcuda"), "nothing was opened");
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int version = 0;
  setenv("BLINK_NCCL_LIB", STAND_IN_BLINK, 1);
  expect(get_version != nullptr && get_version(&version) == 2, "it does not take itself for NCCL");
  unsetenv("BLINK_NCCL_LIB");
  void* const torch = dlopen(STAND_IN_TORCH, RTLD_LOCAL | RTLD_LAZY);
  if (!expect(torch != nullptr, "%s", torch == nullptr ? dlerror() : "")) return blink_test::verdict();
  expect(dlsym(RTLD_NEXT, "stand_in_fail") == nullptr, "NCCL is in a scope of its own");
  const auto torch_like = reinterpret_cast<int (*)(std::size_t)>(dlsym(torch, "torch_like"));
  expect(torch_like != nullptr && torch_like(11) == 23203, "the real version");
  // What the preloaded library saw, in its own words.
  const auto events = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "shim_events_text"));
  const std::string all = events != nullptr ? events() : "";
  const std::string wanted =
      "announce k0.128 0; nccl init 0 of 2 id 0 0; begin k0.128 0 of 2 on 10 grace 0; settle 0; "
      "takes? allreduce 11 type 7 op 0 in place on rank 0; run allreduce 11 type 7 op 0 in place on rank 0; "
      "finalize 0; nccl deregister; nccl destroy";
  expect(all == wanted, "'%s'", all.c_str());
  if (const auto clear = reinterpret_cast<void (*)()>(dlsym(torch, "stand_in_clear"))) clear();
  return blink_test::verdict();
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1 && std::strcmp(arguments[1], "preloaded") == 0) return preloaded();
  run_again_with_it();
}
