#include "planner.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "environment.h"
#include "log.h"
#include "memory_file.h"

namespace blink::shim {
namespace {

constexpr int kTickMs = 20;        // between two checks of the child
constexpr double kReapS = 2;       // for a killed process to end, except if it hangs in the kernel
constexpr int kFirstDescriptor = 3;
constexpr std::size_t kMostOutBytes = 64 << 10, kMostFileBytes = 64 << 20, kMostErrBytes = 16 << 10;
constexpr char kWarning[] = "blink planner: warning: ";
constexpr const char* kModule = "blinkccl.nccl.planner";
constexpr const char* kOurs[] = {"libblink.so", "libblink_mpi.so", "libblink_mpi4.so"};
constexpr int kMostLogged = 20;  // lines of the child's stderr

struct Ended {
  bool started = false, in_time = false, too_much = false;
  bool known = false;  // false: this program's own code has reaped it, and the status is lost
  int status = 0;      // of waitpid
  std::string why;     // the reason if it did not start
  std::string out, err;  // its output; the last kMostErrBytes of err
};

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

// One of the child's standard files: in memory, so that the child never waits for a reader. It appends, since others
// may open it again by its name. Its number is above 0, 1 and 2: these may be free if the program has closed its own,
// and the child's files must not overwrite each other.
int standard_file(const std::string& content) {
  const Descriptor low(memory_file("blink-planner"));
  const int file = fcntl(low.get(), F_DUPFD_CLOEXEC, kFirstDescriptor);
  if (file < 0 || !write_all(file, content) || lseek(file, 0, SEEK_SET) != 0) return file;
  fcntl(file, F_SETFL, O_APPEND);
  return file;
}

std::size_t size_of(const Descriptor& file) { return static_cast<std::size_t>(std::max<off_t>(lseek(file.get(), 0, SEEK_END), 0)); }

// The last `most` bytes of a file.
std::string end_of(const Descriptor& file, std::size_t most) {
  const std::size_t size = size_of(file);
  std::string text(std::min(size, most), '\0');
  const ssize_t got = pread(file.get(), &text[0], text.size(), static_cast<off_t>(size - text.size()));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

// Descriptors that the child would inherit. One that another thread opens meanwhile may be missed.
std::vector<int> inherited() {
  std::vector<int> found;
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return found;
  while (const dirent* entry = readdir(directory)) {
    const int descriptor = std::atoi(entry->d_name);
    if (descriptor < kFirstDescriptor || descriptor == dirfd(directory)) continue;
    const int flags = fcntl(descriptor, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) found.push_back(descriptor);
  }
  closedir(directory);
  return found;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> all;
  for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
  all.push_back(nullptr);
  return all;
}

// posix_spawn's arguments, initialised and destroyed together.
class Settings {
 public:
  Settings() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~Settings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

// Starts the child and returns 0 or an error. It gets a new process group and default signal handling, independent of
// the signals that this thread blocks and this program ignores.
int start(const std::vector<std::string>& words, const std::vector<std::string>& variables,
          const std::array<int, 3>& standard, pid_t* pid) {
  Settings settings;
  int error = 0;
  const auto must = [&error](int result) { error = error != 0 ? error : result; };
  for (std::size_t i = 0; i < standard.size(); ++i) {
    must(posix_spawn_file_actions_adddup2(&settings.actions, standard[i], static_cast<int>(i)));
  }
  for (const int descriptor : inherited()) must(posix_spawn_file_actions_addclose(&settings.actions, descriptor));
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  sigdelset(&all, SIGKILL);
  sigdelset(&all, SIGSTOP);
  must(posix_spawnattr_setsigmask(&settings.attributes, &none));
  must(posix_spawnattr_setsigdefault(&settings.attributes, &all));
  must(posix_spawnattr_setpgroup(&settings.attributes, 0));
  must(posix_spawnattr_setflags(&settings.attributes,
                                POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP));
  if (error != 0) return error;
  return posix_spawnp(pid, words[0].c_str(), &settings.actions, &settings.attributes, pointers(words).data(),
                      pointers(variables).data());
}

// A child process, from its start until it is reaped.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}

  // True if the child has ended. It stays unreaped: until then its process id is not reused, and kill() is safe.
  bool has_ended() {
    siginfo_t about{};
    int result;
    do {
      result = waitid(P_PID, static_cast<id_t>(pid_), &about, WEXITED | WNOHANG | WNOWAIT);
    } while (result != 0 && errno == EINTR);
    if (result != 0) lost_ = true;  // the program ignores SIGCHLD, or waits for any child
    return lost_ || about.si_pid == pid_;
  }

  // Kills the rest of the child's process group and reaps the child.
  void end(Ended* ended) {
    if (!lost_) kill(-pid_, SIGKILL);
    const Deadline patience(kReapS);
    while (!has_ended()) {
      if (patience.passed()) {
        // It hangs in the kernel, perhaps in a driver. No caller should wait for that, so a thread reaps it later.
        const pid_t pid = pid_;
        std::thread([pid] { reap(pid, nullptr); }).detach();
        return;
      }
      poll(nullptr, 0, kTickMs);
    }
    if (!lost_) ended->known = reap(pid_, &ended->status);
  }

 private:
  static bool reap(pid_t pid, int* status) {
    pid_t result;
    do {
      result = waitpid(pid, status, 0);
    } while (result < 0 && errno == EINTR);
    return result == pid;
  }

  const pid_t pid_;
  bool lost_ = false;
};

// Runs `words` (the first is searched on PATH) with the environment `variables` and `input` on stdin until it ends.
// Kills it and its children after the timeout, or if it writes more than kMostOutBytes to stdout.
Ended run_child(const std::vector<std::string>& words, const std::vector<std::string>& variables,
                const std::string& input, const Deadline& deadline) {
  Ended ended;
  const Descriptor in(standard_file(input)), out(standard_file("")), err(standard_file(""));
  pid_t pid = -1;
  const bool have_files = in.get() >= 0 && out.get() >= 0 && err.get() >= 0;
  const int error = have_files ? start(words, variables, {in.get(), out.get(), err.get()}, &pid) : errno;
  if (error != 0) {
    ended.why = std::strerror(error);
    return ended;
  }
  ended.started = true;
  Child child(pid);
  const auto written_too_much = [&] { return size_of(out) > kMostOutBytes || size_of(err) > kMostFileBytes; };
  while (!(ended.in_time = child.has_ended()) && !deadline.passed() && !written_too_much()) {
    poll(nullptr, 0, std::min(kTickMs, deadline.left_ms()));
  }
  child.end(&ended);
  ended.too_much = written_too_much();
  ended.out = end_of(out, kMostOutBytes);
  ended.err = end_of(err, kMostErrBytes);
  return ended;
}

// LD_PRELOAD's list, separated by colons or spaces, without Blink's libraries.
std::string without_us(const std::string& list) {
  std::string rest;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find_first_of(": ", at), list.size());
    const std::string entry = list.substr(at, end - at);
    const std::string name = entry.substr(entry.rfind('/') + 1);  // npos + 1 is 0
    if (!entry.empty() && std::find(std::begin(kOurs), std::end(kOurs), name) == std::end(kOurs)) rest += (rest.empty() ? "" : ":") + entry;
    at = end + 1;
  }
  return rest;
}

// This process's environment, for a child in which Blink must not interpose.
std::vector<std::string> variables_of_child() {
  const std::string preload = "LD_PRELOAD=";
  std::vector<std::string> variables;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    std::string variable = *at;
    if (variable.compare(0, preload.size(), preload) == 0) {
      const std::string others = without_us(variable.substr(preload.size()));
      if (others.empty()) continue;
      variable = preload + others;
    }
    variables.push_back(std::move(variable));
  }
  variables.push_back("PYTHONSAFEPATH=1");  // the job's directory may contain a types.py
  return variables;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// True if `line` begins with `word`; stores the remainder in `rest`.
bool begins(const std::string& line, const std::string& word, std::string* rest) {
  if (line.compare(0, word.size(), word) != 0) return false;
  *rest = line.substr(word.size());
  return true;
}

std::string how_it_ended(int status) {
  if (WIFEXITED(status)) return "ended with status " + std::to_string(WEXITSTATUS(status));
  return "was ended by signal " + std::to_string(WTERMSIG(status));
}

// The reason why a child that has run gave no answer; empty if it gave one, stored in `line`.
std::string trouble(const Ended& ended, std::string* line) {
  if (ended.too_much) return "wrote too much output";
  if (!ended.in_time) return "did not end within its timeout (BLINK_PLAN_TIMEOUT)";
  const std::vector<std::string> lines = lines_of(ended.out);
  const std::string last = lines.empty() ? "" : lines.back();
  std::string reason;
  if (begins(last, "refused ", &reason)) return "says: " + reason;
  if (ended.known && ended.status != 0) return how_it_ended(ended.status);
  *line = last;
  return "";
}

}  // namespace

bool run_python(const std::string& module, const std::vector<std::string>& words, const std::string& input,
                const Deadline& deadline, std::string* line, std::string* why) {
  const char* named = variable("BLINK_PYTHON");
  const std::string python = named != nullptr ? named : "python3";
  const std::string planner = "the planner (" + python + " -m " + module + ") ";
  std::vector<std::string> command = {python, "-m", module};
  command.insert(command.end(), words.begin(), words.end());
  const Ended ended = run_child(command, variables_of_child(), input, deadline);
  if (!ended.started) {
    *why = planner + "cannot be started: " + ended.why;
    return false;
  }
  const std::string problem = trouble(ended, line);
  const std::vector<std::string> lines = lines_of(ended.err);
  const std::size_t first = lines.size() > kMostLogged ? lines.size() - kMostLogged : 0;
  for (std::size_t i = first; i < lines.size(); ++i) {
    const bool quiet = problem.empty() && lines[i].compare(0, sizeof kWarning - 1, kWarning) != 0;
    log(quiet ? Level::kInfo : Level::kWarn, "planner: " + lines[i]);
  }
  if (problem.empty()) return true;
  *why = planner + problem;
  // Python's last line names the error; a refusal already contains its reason.
  const bool refused = ended.in_time && (!ended.known || ended.status == 0);
  if (!lines.empty() && !refused) *why += "; its last line of output: " + lines.back().substr(0, 500);
  return false;
}

bool run_planner(const std::vector<std::string>& infos, const Deadline& deadline, std::string* directory,
                 std::string* why) {
  std::string input = "[", line, reason;
  for (const std::string& info : infos) input += (input.size() == 1 ? "" : ",\n") + info;
  if (!run_python(kModule, {}, input + "]\n", deadline, &line, why)) return false;
  if (begins(line, "bundle ", directory) && !directory->empty()) return true;
  *why = std::string("the planner (") + kModule + ") ";
  if (!begins(line, "uncompiled ", &reason)) {
    *why += "wrote " + quoted(line.substr(0, 200)) + "; expected bundle DIRECTORY or refused REASON";
    return false;
  }
  static std::once_flag once;
  std::call_once(once, [&reason] { warn("Blink runs no call: " + reason); });
  *why += "says: " + reason;
  return false;
}

}  // namespace blink::shim
