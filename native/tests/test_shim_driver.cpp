// Does a missing or too old CUDA driver lead to a sentence that says what is wrong? Each case in a process of its own,
// since the driver is opened once. A driver that works is played by the tests of the whole library.
// Sanitizers: address.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "check.h"
#include "driver.h"

namespace {

using namespace blink_test;
using namespace blink::shim;

void is_refused(const char* library, const char* part) {
  const pid_t pid = fork();
  if (pid == 0) {
    failures = 0;
    setenv("BLINK_CUDA_LIB", library, 1);
    for (int i = 0; i < 2; ++i) {
      std::string why;
      const bool is_null = driver(&why) == nullptr;
      expect(is_null && why.find(part) != std::string::npos, "%s: expected '%s', got '%s'", library, part, why.c_str());
    }
    _exit(failures == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  expect(status == 0, "%s: ended with %d", library, status);
}

CUresult name_of_error(CUresult result, const char** name) {
  *name = "CUDA_ERROR_OUT_OF_MEMORY";
  return result == 2 ? kCudaSuccess : 1;
}
CUresult text_of_error(CUresult result, const char** text) {
  *text = "out of memory";
  return result == 2 ? kCudaSuccess : 1;
}

void errors_have_names() {
  Driver fake;
  expect(describe(fake, 2, "cuX") == "CUDA error 2 from cuX", "without functions");
  fake.error_name = name_of_error;
  fake.error_string = text_of_error;
  expect(describe(fake, 2, "cuX") == "CUDA_ERROR_OUT_OF_MEMORY (out of memory) from cuX", "with name and text");
  expect(describe(fake, 9999, "cuX") == "CUDA error 9999 from cuX", "one that the driver does not know");
}

}  // namespace

int main() {
  is_refused("/no/such/libcuda.so.1", "no CUDA driver: /no/such/libcuda.so.1");
  is_refused("libc.so.6", "libc.so.6 is too old for Blink: it has no cuInit");
  errors_have_names();
  return verdict();
}
