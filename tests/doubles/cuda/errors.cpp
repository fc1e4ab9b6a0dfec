// Names and texts of errors.
#include "api.h"

namespace {

struct Name { CUresult code; const char* name; const char* text; };
constexpr Name kNames[] = {
    {0, "CUDA_SUCCESS", "no error"},
#define CUDA_DOUBLE_NAME(our_name, code, name, text) {code, "CUDA_ERROR_" name, text},
    CUDA_DOUBLE_ERRORS(CUDA_DOUBLE_NAME)
#undef CUDA_DOUBLE_NAME
};

CUresult tell(CUresult error, const char* Name::*what, const char** out) {
  if (out) *out = nullptr;
  for (const Name& name : kNames) {
    if (name.code == error && out) return *out = name.*what, cuda_double::kSuccess;
  }
  return cuda_double::kInvalidValue;
}

}  // namespace

CU_API cuGetErrorName(CUresult error, const char** out) { return tell(error, &Name::name, out); }

CU_API cuGetErrorString(CUresult error, const char** out) { return tell(error, &Name::text, out); }
