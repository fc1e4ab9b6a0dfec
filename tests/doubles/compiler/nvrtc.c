// NVRTC of CUDA 13.0 for machines without it: it supports sm_80 and sm_90, and compiles only an empty kernel.
//
// Like the wheels of 13.0 it has no run path: unless libnvrtc-builtins.so.13.0 is loaded already, every compilation
// ends with NVRTC_ERROR_BUILTIN_OPERATION_FAILURE.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kSuccess = 0, kCompilation = 6, kBuiltinFailure = 7 };
struct Program {
  char name[64];
};
static const char kLog[] = "blink.cu(1): error: no licence\n";

const char* nvrtcGetErrorString(int result) {
  return result == kCompilation ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
}

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return kSuccess;
}

int nvrtcGetNumSupportedArchs(int* count) {
  *count = 2;
  return kSuccess;
}

int nvrtcGetSupportedArchs(int* numbers) {
  numbers[0] = 80;
  numbers[1] = 90;
  return kSuccess;
}

int nvrtcCreateProgram(struct Program** program, const char* text, const char* name, int headers, const char* const* texts,
                       const char* const* names) {
  (void)text, (void)headers, (void)texts, (void)names;
  *program = malloc(sizeof **program);
  snprintf((*program)->name, sizeof (*program)->name, "%s", name);
  return kSuccess;
}

int nvrtcCompileProgram(struct Program* program, int count, const char* const* options) {
  (void)count, (void)options;
  if (dlopen("libnvrtc-builtins.so.13.0", RTLD_LAZY | RTLD_NOLOAD) == NULL) return kBuiltinFailure;
  return strcmp(program->name, "nothing.cu") == 0 ? kSuccess : kCompilation;
}

int nvrtcGetProgramLogSize(struct Program* program, size_t* size) {
  (void)program;
  *size = sizeof kLog;
  return kSuccess;
}

int nvrtcGetProgramLog(struct Program* program, char* log) {
  (void)program;
  memcpy(log, kLog, sizeof kLog);
  return kSuccess;
}
