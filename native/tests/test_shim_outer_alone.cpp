// Without NCCL every function returns an error and one line says why; with BLINK_DISABLE=1 Blink is not there.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "check.h"
#include "exports.h"
#include "real_nccl.h"
#include "shim_stand_in_inner.h"

using blink_test::expect;
using namespace blink::shim;

// Two copies of Blink in one process are one of the cases here; the address sanitizer takes their globals for a mistake.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "detect_odr_violation=0"; }

namespace {

// Runs `body` in a child process, which has looked for nothing yet; what it wrote to stderr. Its failures are ours.
template <class Body>
std::string told_by(Body body) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    body();
    _exit(blink_test::failures == 0 ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child: %d, '%s'", status, text.c_str());
  return text;
}

void every_kind_of_call() {
  int number = -1;
  ncclComm_t comm = nullptr;
  errno = 55;
  expect(real_version() == 0, "no version");
  expect(ncclGetVersion(&number) == ncclSystemError && number == -1, "version");
  expect(ncclCommInitRank(&comm, 2, {}, 0) == ncclSystemError && comm == nullptr, "init");
  expect(ncclCommInitAll(&comm, 2, nullptr) == ncclSystemError, "init all");
  expect(ncclAllReduce(nullptr, nullptr, 1, kFloat, kSum, nullptr, nullptr) == ncclSystemError, "allreduce");
  expect(ncclGroupStart() == ncclSystemError && ncclGroupEnd() == ncclSystemError, "group");
  expect(ncclMemFree(nullptr) == ncclSystemError, "forwarded");
  expect(ncclCommGetAsyncError(nullptr, &number) == ncclSystemError, "state");
  expect(ncclCommDestroy(nullptr) == ncclSystemError, "destroy");
  expect(ncclTeamRankToWorld(nullptr, {1, 0, 1}, 0) == -1 && ncclTeamWorld(nullptr).nRanks == 1, "teams");
  ncclParamDumpAll();
  for (int code = -1; code < 12; ++code) expect(std::strlen(ncclGetErrorString(code)) > 5, "text of %d", code);
  expect(std::strstr(ncclGetLastError(nullptr), "no NCCL") != nullptr, "last error");
  expect(errno == 55, "errno %d", errno);
}

int lines_in(const std::string& text) {
  int lines = 0;
  for (const char c : text) lines += c == '\n';
  return lines;
}

void has(const std::string& text, const char* what) {
  expect(text.find(what) != std::string::npos, "'%s' lacks '%s'", text.c_str(), what);
}

void absent() {
  const std::string nowhere = told_by(every_kind_of_call);
  expect(lines_in(nowhere) == 1, "one line: '%s'", nowhere.c_str());
  has(nowhere, "no libnccl.so.2 is loaded; BLINK_NCCL_LIB is not set; no library after libblink.so");
  has(nowhere, "Set BLINK_NCCL_LIB to the file");
  setenv("BLINK_NCCL_LIB", "/nonexistent/libnccl.so.2", 1);
  has(told_by(every_kind_of_call), "BLINK_NCCL_LIB cannot be opened: /nonexistent/libnccl.so.2");
  setenv("BLINK_NCCL_LIB", "libc.so.6", 1);
  has(told_by(every_kind_of_call), "BLINK_NCCL_LIB=libc.so.6 is Blink or has no ncclGetVersion");
  setenv("BLINK_NCCL_LIB", STAND_IN_BLINK, 1);
  has(told_by(every_kind_of_call), "is Blink or has no ncclGetVersion");
}

void disabled() {
  setenv("BLINK_NCCL_LIB", STAND_IN_NCCL, 1);
  setenv("BLINK_DISABLE", "1", 1);
  expect(told_by([] {
           float data = 0;
           ncclComm_t comm = nullptr;
           expect(ncclCommInitRank(&comm, 2, {}, 1) == ncclSuccess, "init");
           ncclGroupStart();
           expect(ncclAllReduce(&data, &data, 1, kFloat, kSum, comm, nullptr) == ncclSuccess, "allreduce");
           ncclGroupEnd();
           const std::string all = shim_test::history();
           expect(all.find("nccl init 1 of 2") == all.find("nccl "), "NCCL alone: %s", all.c_str());
           expect(all.find("announce") == std::string::npos && all.find("run") == std::string::npos, "not there: %s",
                  all.c_str());
           ncclCommDestroy(comm);
         }).empty(),
         "silent");
  // Any other value is none.
  setenv("BLINK_DISABLE", "0", 1);
  told_by([] {
    ncclComm_t comm = nullptr;
    ncclCommInitRank(&comm, 2, {}, 1);
    const std::string all = shim_test::history();
    expect(all.find("announce") == 0, "there: %s", all.c_str());
    ncclCommDestroy(comm);
  });
}

}  // namespace

int main() {
  unsetenv("BLINK_NCCL_LIB");
  unsetenv("BLINK_DISABLE");
  absent();
  disabled();
  return blink_test::verdict();
}
