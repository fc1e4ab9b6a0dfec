// The user's messages: levels, targets and form. Each case is a process of its own, because levels are read once.
// Sanitizers: address.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap.h"
#include "check.h"
#include "deadline.h"
#include "directory.h"
#include "log.h"
#include "sha256.h"

namespace {

using namespace blink_test;
using namespace blink;
using namespace blink::shim;
using Variables = std::vector<std::pair<const char*, std::string>>;

// Returns the stderr output of `body` under these variables.
std::string stderr_of(const Variables& variables, const std::function<void()>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  const pid_t pid = fork();
  if (pid == 0) {
    for (const char* name : {"BLINK_DEBUG", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "BLINK_REPORT"}) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
    dup2(ends[1], 2);
    body();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  for (char c; read(ends[0], &c, 1) == 1;) text += c;
  close(ends[0]);
  int status = -1;
  waitpid(pid, &status, 0);
  expect(status == 0, "ended with %d", status);
  return text;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string short_host() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return std::string(host).substr(0, std::string(host).find('.'));
}

void all_levels() {
  log(Level::kVersion, "version");
  warn("warning");
  info("information");
  log(Level::kTrace, "trace");
}

void levels() {
  const struct {
    Variables variables;
    int lines;
  } cases[] = {{{}, 0},
               {{{"NCCL_DEBUG", "VERSION"}}, 1},
               {{{"NCCL_DEBUG", "WARN"}}, 2},
               {{{"NCCL_DEBUG", "info"}}, 3},
               {{{"NCCL_DEBUG", "TRACE"}}, 4},
               {{{"NCCL_DEBUG", "nonsense"}}, 0},
               {{{"NCCL_DEBUG", "WARN"}, {"BLINK_DEBUG", "Info"}}, 3},
               {{{"NCCL_DEBUG", "INFO"}, {"BLINK_DEBUG", "NONE"}}, 0},
               {{{"NCCL_DEBUG", "INFO"}, {"BLINK_DEBUG", ""}}, 3},
               {{{"BLINK_REPORT", "/dev/null"}}, 2},
               {{{"BLINK_REPORT", "/dev/null"}, {"NCCL_DEBUG", "VERSION"}}, 1},
               {{{"BLINK_REPORT", "/dev/null"}, {"BLINK_DEBUG", "NONE"}}, 0}};
  for (const auto& each : cases) {
    const std::string text = stderr_of(each.variables, all_levels);
    expect(count(text, "\n") == each.lines && count(text, " BLINK ") == each.lines, "%d lines: %s", each.lines,
           text.c_str());
  }
  const std::string text = stderr_of({{"NCCL_DEBUG", "INFO"}}, [] { info("one\ntwo"); });
  expect(text.find(short_host() + ":") == 0 && count(text, " BLINK INFO one\n") == 1 &&
             count(text, " BLINK INFO two\n") == 1,
         "lines as NCCL writes them: %s", text.c_str());
}

void files() {
  const Directory directory;
  std::string text = stderr_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_FILE", directory.at("100%%-%q")}}, all_levels);
  expect(text.empty() && count(directory.read("100%-%q.blink"), "\n") == 3, "a file beside NCCL's: %s", text.c_str());
  text = stderr_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_FILE", directory.at("%h.%p")}}, [&directory] {
    info("x");
    const std::string name = short_host() + "." + std::to_string(getpid());
    if (directory.read(name + ".blink").find("INFO x\n") == std::string::npos) _exit(1);
  });
  expect(text.empty(), "host and process are filled in: %s", text.c_str());
  text = stderr_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_FILE", directory.at("no/such/place")}}, all_levels);
  expect(count(text, "\n") == 3, "stderr replaces a file that cannot be opened");
  text = stderr_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_FILE", "/dev/stderr"}}, all_levels);
  expect(count(text, "\n") == 3, "a device is not replaced");
}

void host_is_left_alone() {
  const std::string text = stderr_of({{"NCCL_DEBUG", "INFO"}}, [] {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) _exit(1);
    close(ends[0]);
    const int before = dup(2);
    dup2(ends[1], 2);  // a pipe without a reader
    errno = 77;
    all_levels();
    if (errno != 77) _exit(2);
    sigset_t pending, mask;
    sigpending(&pending);
    sigprocmask(SIG_BLOCK, nullptr, &mask);
    if (sigismember(&pending, SIGPIPE) != 0 || sigismember(&mask, SIGPIPE) != 0) _exit(3);
    close(2);
    all_levels();  // without stderr
    dup2(before, 2);
    info("still here");
  });
  expect(count(text, "still here\n") == 1, "no signal, no errno: %s", text.c_str());
}

void reports() {
  const Directory directory;
  const std::string path = directory.at("report");
  std::string text = stderr_of({{"BLINK_REPORT", path}}, [] {
    report("{\"a\": 1}");
    if (fork() == 0) _exit((report("{\"b\": 2}"), 0));
    wait(nullptr);
  });
  expect(text.empty() && directory.read("report") == "{\"a\": 1}\n{\"b\": 2}\n", "lines of JSON");
  text = stderr_of({}, [] { report("nothing"); });
  expect(text.empty(), "no variable, no report");
  text = stderr_of({{"BLINK_REPORT", directory.at("no/such")}, {"NCCL_DEBUG", "WARN"}}, [] { report("x"); });
  expect(count(text, "BLINK_REPORT") == 1, "it says that it cannot: %s", text.c_str());
}

void json() {
  expect(quoted("a\"b\\c\n\t\x01\x7f") == "\"a\\\"b\\\\c\\u000a\\u0009\\u0001\\u007f\"", "escapes");
  expect(quoted("é→😀") == "\"é→😀\"", "characters stay");
  expect(quoted("\xff(") == "\"\xff(\"" && quoted("") == "\"\"", "invalid bytes and empty texts are unchanged");
  expect(quoted(std::string("\0x", 2)) == "\"\\u0000x\"", "zero");
}

void seconds() {
  const struct {
    const char* text;
    double seconds;
  } cases[] = {{"2", 2}, {"0.5", 0.5}, {" 1e2 ", 100}, {"0", 9},   {"-1", 9},
               {"", 9},  {"x", 9},     {"1s", 9},      {"nan", 9}, {"1,5", 9}};
  for (const auto& each : cases) {
    setenv("BLINK_TEST_SECONDS", each.text, 1);
    const double got = seconds_from("BLINK_TEST_SECONDS", 9);
    expect(std::abs(got - each.seconds) < 1e-12, "'%s' is %g", each.text, got);
  }
  unsetenv("BLINK_TEST_SECONDS");
  expect(seconds_from("BLINK_TEST_SECONDS", 9) > 8.9, "missing");

  expect(Deadline(0).passed() && Deadline(-5).passed() && Deadline(std::nan("")).passed(), "passed already");
  const Deadline never(std::numeric_limits<double>::infinity());
  expect(!never.passed() && never.left() > 1e8 && never.left_ms() > 0, "for ever");
  expect(Deadline(0).left_ms() == 0 && !(Deadline(0).left() > 0) && Deadline(5).left_ms() > 0, "milliseconds");
}

void keys() {
  expect(derived_key("a", "bc") != derived_key("ab", "c"), "keys distinguish the ends of their parts");
  expect(derived_key("a", "b") == derived_key("a", "b") && key_of("a", 1) != key_of("b", 1), "keys are a function");
  expect(sha256("abc", 3) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "the hash is SHA-256");
  const std::string two(64, 'a');
  expect(sha256(two.data(), 64) == "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb", "of a block");
}

}  // namespace

int main() {
  keys();
  levels();
  files();
  host_is_left_alone();
  reports();
  json();
  seconds();
  return verdict();
}
