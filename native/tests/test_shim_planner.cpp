// The planner's process: its input and environment, and its end in all situations. Shell scripts play Python.
// Sanitizers: address.
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "directory.h"
#include "planner.h"

namespace {

using namespace blink_test;
using namespace blink;
using namespace blink::shim;

constexpr double kLongS = 60;

struct Result {
  bool good = false;
  std::string directory, why;
};

// A script in Python's place, run with these cards.
class Script {
 public:
  explicit Script(const std::string& body) {
    const std::string start = "#!/bin/sh\ncd '" + directory.path() + "'\n";
    const std::string path = directory.write("python", start + body + "\n", 0700);
    setenv("BLINK_PYTHON", path.c_str(), 1);
  }
  ~Script() {
    unsetenv("BLINK_PYTHON");
    // Neither a child nor a zombie is left.
    expect(waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD, "no child is left");
  }
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  Result run(const std::vector<std::string>& cards = {"{}"}, double seconds = kLongS) const {
    Result result;
    result.good = run_planner(cards, Deadline(seconds), &result.directory, &result.why);
    return result;
  }
  Directory directory;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void expect_bundle(const char* test, const Result& result) {
  expect(result.good && result.directory == "some where/x", "%s: '%s', %s", test, result.directory.c_str(),
         result.why.c_str());
}

void expect_refused(const char* test, const Result& result, const std::string& part) {
  expect(!result.good && contains(result.why, part), "%s: '%s'; expected '%s'", test, result.why.c_str(), part.c_str());
}

void is_told_the_cards() {
  const Script script("cat > input; echo \"$@\" > words; echo 'bundle some where/x'");
  expect_bundle("cards", script.run({"{\"rank\": 0}", "{\"rank\": 1}"}));
  expect(script.directory.read("input") == "[{\"rank\": 0},\n{\"rank\": 1}]\n", "a JSON array: %s",
         script.directory.read("input").c_str());
  expect(script.directory.read("words") == "-m blinkccl.nccl.planner\n", "the module");
}

void answers() {
  expect_bundle("noise before it", Script("echo noise; echo 'bundle some where/x'").run());
  expect_bundle("without a line's end", Script("printf 'bundle some where/x'").run());
  expect_refused("refused", Script("echo 'refused no links'; exit 1").run(), "no links");
  expect_refused("no code", Script("echo 'uncompiled no compiler'").run(), "says: no compiler");
  expect_refused("silent", Script("exit 0").run(), "expected bundle DIRECTORY");
  expect_refused("noise", Script("echo bundles").run(), "\"bundles\"");
  expect_refused("no directory", Script("echo 'bundle '").run(), "expected bundle DIRECTORY");
  const Result failed = Script("echo one >&2; echo 'ModuleNotFoundError: blinkccl' >&2; echo 'bundle x'; exit 3").run();
  expect_refused("status", failed, "status 3");
  expect_refused("status", failed, "ModuleNotFoundError");
  expect_refused("signal", Script("kill -9 $$").run(), "signal 9");
  expect_refused("too much", Script("while true; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done").run(), "too much");
  expect_bundle("much on stderr",
                Script("i=0; while [ $i -lt 20000 ]; do echo aaaaaaaaaaaa >&2; i=$((i+1)); done; "
                       "echo x > /dev/stderr; echo 'bundle some where/x'").run());
  setenv("BLINK_PYTHON", "/no/such/python", 1);
  Result result;
  result.good = run_planner({}, Deadline(kLongS), &result.directory, &result.why);
  expect_refused("no interpreter", result, "cannot be started");
  unsetenv("BLINK_PYTHON");
}

// A child that does not read its input, which exceeds every buffer.
void input_is_not_wanted() {
  const std::vector<std::string> cards(100, std::string(60000, ' '));
  expect_bundle("not read", Script("exec < /dev/null; sleep 0.1; echo 'bundle some where/x'").run(cards));
  expect_bundle("read late", Script("sleep 0.2; cat > /dev/null; echo 'bundle some where/x'").run(cards));
  expect_refused("dies at once", Script("exit 4").run(cards), "status 4");
}

bool runs(const std::string& pid) {
  std::FILE* const file = std::fopen(("/proc/" + pid + "/stat").c_str(), "re");
  if (file == nullptr) return false;
  char state = 'Z';
  const bool known = std::fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
  std::fclose(file);
  return known && state != 'Z' && state != 'X';
}

// Waits for the end of a process that has received a signal.
bool ends_soon(const std::string& pid) {
  for (int i = 0; i < 1000 && runs(pid); ++i) usleep(10000);
  return !runs(pid);
}

// Killing ends all processes that the planner has started, also after a timeout.
void all_are_killed() {
  const auto first_line = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  {
    const Script script("sleep 100 & echo $! > started; echo $$ > itself; sleep 100");
    expect_refused("late", script.run({"{}"}, 1), "timeout");
    const std::string started = first_line(script.directory.read("started"));
    expect(!started.empty() && ends_soon(started), "its child is killed");
    expect(ends_soon(first_line(script.directory.read("itself"))), "it is killed");
  }
  {
    const Script script("trap '' TERM INT HUP PIPE; while true; do sleep 0.1; done");
    expect_refused("stubborn", script.run({"{}"}, 0.5), "timeout");
  }
  {
    // The background process keeps stdout open.
    const Script script("sleep 100 & echo $! > started; echo 'bundle some where/x'");
    expect_bundle("background", script.run());
    const std::string started = first_line(script.directory.read("started"));
    expect(!started.empty(), "it was started");
    expect(ends_soon(started), "the background process is killed");
  }
  const Script script("sleep 100");
  expect_refused("no time at all", script.run({"{}"}, 0), "timeout");
}

void environment_is_ours_less_us() {
  const Script script("echo \"$LD_PRELOAD|${LD_PRELOAD-none}|$BLINK_REPORT\" > seen; echo 'bundle some where/x'");
  setenv("BLINK_REPORT", "kept", 1);
  // Libraries that do not exist: the child's loader reports those that it is given, and continues.
  const char* const lists[][2] = {{"/a/libblink.so", "|none|kept\n"},
                                  {"libblink.so", "|none|kept\n"},
                                  {":/x/libblink.so: ", "|none|kept\n"},
                                  {"/a/libother.so:/a/libblink.so", "/a/libother.so|/a/libother.so|kept\n"},
                                  {"/b/libblink.so /a/one.so two.so", "/a/one.so:two.so|/a/one.so:two.so|kept\n"},
                                  {"/a/notlibblink.so", "/a/notlibblink.so|/a/notlibblink.so|kept\n"}};
  for (const auto& list : lists) {
    setenv("LD_PRELOAD", list[0], 1);
    const Result result = script.run();
    unsetenv("LD_PRELOAD");
    expect_bundle("environment", result);
    const std::string seen = script.directory.read("seen");
    expect(seen == list[1], "'%s' becomes '%s'", list[0], seen.c_str());
  }
  unsetenv("BLINK_REPORT");
}

void descriptors_are_not_inherited() {
  const Script script("ls -l /proc/self/fd > seen; echo 'bundle some where/x'");
  script.directory.write("marker", "");
  const int open_one = open(script.directory.at("marker").c_str(), O_RDONLY);  // not closed on exec
  const int high = fcntl(open_one, F_DUPFD, 500);
  expect_bundle("descriptors", script.run());
  const std::string seen = script.directory.read("seen");
  expect(!seen.empty() && !contains(seen, "marker"), "the child sees %s", seen.c_str());
  expect(fcntl(open_one, F_GETFD) == 0 && fcntl(high, F_GETFD) == 0, "this process's descriptors stay open");
  close(open_one);
  close(high);
}

// Runs `body` in its own process, whose state it may change.
void apart(const char* test, const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    failures = 0;
    body();
    _exit(failures == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  expect(status == 0, "%s: ended with %d", test, status);
}

void odd_hosts() {
  for (int kept = 0; kept < 8; ++kept) {
    apart("closed descriptors", [kept] {
      const Script script("cat > input; echo out; echo err >&2; echo 'bundle some where/x'");
      for (int i = 0; i < 3; ++i) {
        if ((kept >> i & 1) == 0) close(i);
      }
      expect_bundle("closed descriptors", script.run());
      expect(script.directory.read("input") == "[{}]\n", "the cards have come");
      for (int i = 0; i < 3; ++i) {
        if ((kept >> i & 1) == 0) expect(fcntl(i, F_GETFD) < 0, "%d is closed still", i);
      }
    });
  }
  apart("children are ignored", [] {
    signal(SIGCHLD, SIG_IGN);
    const Script script("echo 'bundle some where/x'");
    expect_bundle("children are ignored", script.run());
    expect_refused("children are ignored", Script("exit 0").run(), "expected");
    expect_refused("late", Script("sleep 100").run({"{}"}, 0.3), "timeout");
  });
  apart("children are reaped by others", [] {
    struct sigaction action {};
    action.sa_handler = [](int) {
      const int error = errno;
      while (waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      errno = error;
    };
    sigaction(SIGCHLD, &action, nullptr);
    expect_bundle("reaped", Script("echo 'bundle some where/x'").run());
  });
  apart("signals", [] {
    signal(SIGINT, SIG_IGN);
    sigset_t some;
    sigemptyset(&some);
    sigaddset(&some, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &some, nullptr);
    const Script script("grep -E '^Sig(Blk|Ign)' /proc/self/status | cut -f 2 > seen; echo 'bundle some where/x'");
    expect_bundle("signals", script.run(std::vector<std::string>(100, std::string(60000, ' '))));
    // In hexadecimal; the signals above 31 are the C library's own.
    const std::string seen = script.directory.read("seen");
    char* at = nullptr;
    const unsigned long long blocked = std::strtoull(seen.c_str(), &at, 16), ignored = std::strtoull(at, nullptr, 16);
    expect(seen.size() == 34 && blocked == 0 && (ignored & 0x7fffffff) == 0, "the child's signals: %s", seen.c_str());
    struct sigaction action {};
    sigaction(SIGPIPE, nullptr, &action);
    expect(action.sa_handler == SIG_DFL, "this process's signals are unchanged");
    sigaction(SIGINT, nullptr, &action);
    expect(action.sa_handler == SIG_IGN, "this process's signals are unchanged");
  });
}

}  // namespace

int main() {
  odd_hosts();
  is_told_the_cards();
  answers();
  input_is_not_wanted();
  all_are_killed();
  environment_is_ours_less_us();
  descriptors_are_not_inherited();
  return verdict();
}
