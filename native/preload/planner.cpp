#include "planner.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "log.h"

namespace blink::shim {
namespace {

constexpr int kTickMs = 20;        // between two looks whether it has ended
constexpr double kReapS = 2;       // for a killed process to end; one that hangs in the kernel may take longer
constexpr int kFirstDescriptor = 3;
constexpr std::size_t kMostOutBytes = 64 << 10, kMostErrBytes = 16 << 10;
constexpr char kWarning[] = "blink planner: warning: ";
constexpr const char* kModule = "blinkccl.nccl.planner";
constexpr const char* kOurs[] = {"libblink.so", "libblink_mpi.so", "libblink_mpi4.so"};
constexpr int kMostLogged = 20;  // lines of its stderr

struct Ended {
  bool started = false, in_time = false;
  bool known = false;  // false: the program that we are in has reaped it, and how it ended is lost
  int status = 0;      // of waitpid
  std::string why;     // where it did not start
  std::string out, err;  // what it wrote; of err the last kMostErrBytes
};

class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() { close(); }
  void close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }
  int get() const { return descriptor_; }
  bool open() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

// Above 0, 1 and 2, which are free where the program has closed its own: the child's must not land on each other.
Descriptor above_standard(int descriptor) {
  if (descriptor < 0 || descriptor >= kFirstDescriptor) return Descriptor(descriptor);
  const Descriptor low(descriptor);
  return Descriptor(fcntl(descriptor, F_DUPFD_CLOEXEC, kFirstDescriptor));
}

// What the child reads: a file without a name, so that nobody has to wait until it has read it.
Descriptor file_of(const std::string& input) {
  Descriptor file = above_standard(memfd_create("blink-planner-input", MFD_CLOEXEC));
  for (std::size_t at = 0; file.open() && at < input.size();) {
    const ssize_t written = write(file.get(), input.data() + at, input.size() - at);
    if (written > 0) at += static_cast<std::size_t>(written);
    if (written < 0 && errno != EINTR) file.close();
  }
  if (file.open()) lseek(file.get(), 0, SEEK_SET);
  return file;
}

// What the child writes to: our end, which does not block, and its own. A pipe, as a script may open it again by name.
struct Output {
  Descriptor ours, theirs;

  bool open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    ours = above_standard(ends[0]);
    theirs = above_standard(ends[1]);
    return ours.open() && theirs.open() && fcntl(ours.get(), F_SETFL, O_NONBLOCK) == 0;
  }
  // What is there to be read; the caller looks at it when it is much, and comes back.
  void take(std::string* text) {
    std::array<char, 4096> buffer;
    while (ours.open() && text->size() <= kMostOutBytes) {
      const ssize_t got = read(ours.get(), buffer.data(), buffer.size());
      if (got > 0) text->append(buffer.data(), static_cast<std::size_t>(got));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) ours.close();
    }
  }
};

// Descriptors that the child would inherit. One that another thread opens right now may be missed.
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

// posix_spawn's arguments: initialised and destroyed together.
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

// Starts it: 0 or an error. A new process group, and signals as a fresh process has them, whatever this thread blocks
// and this program ignores.
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

// A child that has been started, until it has been reaped.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}

  // Whether it has ended. It stays unreaped: until then nobody else gets its number, and it can be used to kill.
  bool has_ended() {
    siginfo_t about{};
    int result;
    do {
      result = waitid(P_PID, static_cast<id_t>(pid_), &about, WEXITED | WNOHANG | WNOWAIT);
    } while (result != 0 && errno == EINTR);
    if (result != 0) lost_ = true;  // the program ignores SIGCHLD, or waits for any child
    return lost_ || about.si_pid == pid_;
  }

  // Kills what is left of its group and reaps it.
  void end(Ended* ended) {
    if (!lost_) kill(-pid_, SIGKILL);
    const Deadline patience(kReapS);
    while (!has_ended()) {
      if (patience.passed()) {
        // It hangs in the kernel, in a driver perhaps. Nobody shall wait for that, but somebody must reap it.
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

// Runs `words` (the first is looked for on PATH) with `variables` as its environment and `input` on its stdin until it
// ends, or kills it and what it started at the deadline, or when it writes more than kMostOutBytes to its stdout.
Ended run_child(const std::vector<std::string>& words, const std::vector<std::string>& variables,
                const std::string& input, const Deadline& deadline) {
  Ended ended;
  Descriptor in = file_of(input);
  Output out, err;
  if (!in.open() || !out.open() || !err.open()) {
    ended.why = std::strerror(errno);
    return ended;
  }
  const auto take = [&] {
    out.take(&ended.out);
    err.take(&ended.err);
    if (ended.err.size() > kMostErrBytes) ended.err.erase(0, ended.err.size() - kMostErrBytes);
  };
  pid_t pid = -1;
  const int error = start(words, variables, {in.get(), out.theirs.get(), err.theirs.get()}, &pid);
  out.theirs.close();
  err.theirs.close();
  if (error != 0) {
    ended.why = std::strerror(error);
    return ended;
  }
  ended.started = true;
  Child child(pid);
  while (!(ended.in_time = child.has_ended()) && !deadline.passed() && ended.out.size() <= kMostOutBytes) {
    std::array<pollfd, 2> set = {{{out.ours.get(), POLLIN, 0}, {err.ours.get(), POLLIN, 0}}};
    poll(set.data(), set.size(), std::min(kTickMs, deadline.left_ms()));  // descriptors of −1 are passed over
    take();
  }
  child.end(&ended);
  take();
  return ended;
}

// LD_PRELOAD's list, separated by colons or spaces, without our libraries.
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

// Ours, for a child that must not interpose anything.
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
  variables.push_back("PYTHONSAFEPATH=1");  // a job's directory may have a types.py of its own
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

std::string how_it_ended(int status) {
  if (WIFEXITED(status)) return "ended with status " + std::to_string(WEXITSTATUS(status));
  return "was ended by signal " + std::to_string(WTERMSIG(status));
}

// Why it has no answer, of one that has run; empty if there is one, then in `line`.
std::string trouble(const Ended& ended, std::string* line) {
  if (!ended.in_time && ended.out.size() > kMostOutBytes) return "has written too much to its stdout";
  if (!ended.in_time) return "has not ended by its deadline (BLINK_PLAN_TIMEOUT)";
  const std::vector<std::string> lines = lines_of(ended.out);
  const std::string refused = "refused ", last = lines.empty() ? "" : lines.back();
  if (last.compare(0, refused.size(), refused) == 0) return "says: " + last.substr(refused.size());
  if (ended.known && ended.status != 0) return how_it_ended(ended.status);
  *line = last;
  return "";
}

}  // namespace

bool run_python(const std::string& module, const std::vector<std::string>& words, const std::string& input,
                const Deadline& deadline, std::string* line, std::string* why) {
  const char* named = std::getenv("BLINK_PYTHON");
  const std::string python = named != nullptr && *named != '\0' ? named : "python3";
  const std::string planner = "the planner (" + python + " -m " + module + ") ";
  std::vector<std::string> command = {python, "-m", module};
  command.insert(command.end(), words.begin(), words.end());
  const Ended ended = run_child(command, variables_of_child(), input, deadline);
  if (!ended.started) {
    *why = planner + "cannot be started: " + ended.why;
    return false;
  }
  const std::string found = trouble(ended, line);
  const std::vector<std::string> lines = lines_of(ended.err);
  const std::size_t first = lines.size() > kMostLogged ? lines.size() - kMostLogged : 0;
  for (std::size_t i = first; i < lines.size(); ++i) {
    const bool quiet = found.empty() && lines[i].compare(0, sizeof kWarning - 1, kWarning) != 0;
    log(quiet ? Level::kInfo : Level::kWarn, "planner: " + lines[i]);
  }
  if (found.empty()) return true;
  *why = planner + found;
  // Python says last what was wrong; who refuses has said it.
  const bool refused = ended.in_time && (!ended.known || ended.status == 0);
  if (!lines.empty() && !refused) *why += "; the last that it said: " + lines.back().substr(0, 500);
  return false;
}

bool run_planner(const std::vector<std::string>& infos, const Deadline& deadline, std::string* directory,
                 std::string* why) {
  std::string input = "[", line;
  for (const std::string& info : infos) input += (input.size() == 1 ? "" : ",\n") + info;
  if (!run_python(kModule, {}, input + "]\n", deadline, &line, why)) return false;
  const std::string bundle = "bundle ";
  if (line.compare(0, bundle.size(), bundle) == 0 && line.size() > bundle.size()) {
    *directory = line.substr(bundle.size());
    return true;
  }
  *why = std::string("the planner (") + kModule + ") has written " + quoted(line.substr(0, 200)) +
         "; expected bundle DIRECTORY or refused REASON";
  return false;
}

}  // namespace blink::shim
