// Opens a library with RTLD_LOCAL, as Python opens torch, and runs it. NCCL's name is not in the global scope then.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void* driver;

static int find(const char* name, void** function) {
  *function = dlsym(driver, name);
  return *function ? 0 : 1;
}

int main(int count, char** words) {
  const char* path = getenv("BLINK_CUDA_LIB");
  driver = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* library = count == 2 ? dlopen(words[1], RTLD_LAZY | RTLD_LOCAL) : NULL;
  int (*run)(int (*)(const char*, void**)) = NULL;
  if (library) *(void**)&run = dlsym(library, "torch_like_run");
  if (!driver || !run) {
    fprintf(stderr, "torch_like_loader: %s\n", dlerror());
    return 9;
  }
  return run(find);
}
