#include "log.h"

#include <fcntl.h>
#include <pthread.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "environment.h"

namespace blink::shim {
namespace {

// The level for a value of NCCL_DEBUG, in any case; −1: unknown.
int level_of(const char* text) {
  const struct {
    const char* name;
    Level level;
  } words[] = {{"NONE", Level::kNone}, {"VERSION", Level::kVersion}, {"WARN", Level::kWarn},
               {"INFO", Level::kInfo}, {"ABORT", Level::kInfo},      {"TRACE", Level::kTrace}};
  for (const auto& word : words) {
    if (text != nullptr && strcasecmp(text, word.name) == 0) return static_cast<int>(word.level);
  }
  return -1;
}

std::string host() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "unknown";
  const std::string text = name;
  return text.substr(0, text.find('.'));
}

std::string process() { return std::to_string(getpid()); }

// While it exists, this thread's writes into a closed pipe raise no SIGPIPE; the program's handling of SIGPIPE is
// unchanged.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    blocked_ = pthread_sigmask(SIG_BLOCK, &pipe_, &before_) == 0;
  }
  ~NoPipeSignal() {
    if (!blocked_) return;
    const timespec now{};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false, blocked_ = false;
};

}  // namespace

bool write_all(int descriptor, const std::string& text) {
  const NoPipeSignal quiet;
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = write(descriptor, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += static_cast<std::size_t>(written);
  }
  return true;
}

namespace {

// Opened for each line, so it is right after a fork and in programs that close all descriptors.
bool append_to(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return false;
  const bool good = write_all(file, text);
  return close(file) == 0 && good;
}

// The file for lines from NCCL_DEBUG_FILE; empty: stderr. NCCL truncates its file when it opens it, and continues at
// its own position. So Blink writes another file beside it, unless the name is a device.
std::string file_of_lines() {
  const char* pattern = variable("NCCL_DEBUG_FILE");
  if (pattern == nullptr) return "";
  std::string path;
  for (const char* at = pattern; *at != '\0'; ++at) {
    if (at[0] != '%' || at[1] == '\0') {
      path += *at;
      continue;
    }
    ++at;
    if (*at == 'h') {
      path += host();
    } else if (*at == 'p') {
      path += process();
    } else if (*at == '%') {
      path += '%';
    } else {
      path += std::string("%") + *at;
    }
  }
  return path.compare(0, 5, "/dev/") == 0 ? path : path + ".blink";
}

}  // namespace

Level log_level() {
  static const Level level = [] {
    for (const char* name : {"BLINK_DEBUG", "NCCL_DEBUG"}) {
      if (const int number = level_of(std::getenv(name)); number >= 0) return static_cast<Level>(number);
    }
    // With a report, warnings are logged even without a level: they say at once why a job does not run on trees.
    const bool silent = variable("BLINK_DEBUG") != nullptr || variable("NCCL_DEBUG") != nullptr || variable("BLINK_REPORT") == nullptr;
    return silent ? Level::kNone : Level::kWarn;
  }();
  return level;
}

void log(Level level, const std::string& text) {
  const KeepErrno keep;
  if (level == Level::kNone || level > log_level()) return;
  try {
    const char* const names[] = {"", "VERSION", "WARN", "INFO", "TRACE"};
    const std::string start = host() + ":" + process() + ":" + std::to_string(syscall(SYS_gettid)) + " BLINK " +
                              names[static_cast<int>(level)] + " ";
    std::string lines;
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      lines += start + text.substr(at, end - at) + "\n";
      at = end + 1;
    }
    const std::string path = file_of_lines();
    if (path.empty() || !append_to(path, lines)) write_all(STDERR_FILENO, lines);
  } catch (...) {  // without memory the line is lost
  }
}

void report(const std::string& json) {
  const KeepErrno keep;
  const char* path = variable("BLINK_REPORT");
  if (path == nullptr) return;
  try {
    if (!append_to(path, json + "\n")) warn(std::string("BLINK_REPORT ") + path + " cannot be written");
  } catch (...) {
  }
}

std::string report_start(int rank, int nranks, const std::string& communicator) {
  return "{\"pid\":" + process() + ",\"rank\":" + std::to_string(rank) + ",\"nranks\":" + std::to_string(nranks) +
         ",\"comm\":" + quoted(communicator);
}

std::string hex(const void* bytes, std::size_t size) {
  std::string text;
  for (const auto* at = static_cast<const unsigned char*>(bytes); size > 0; ++at, --size) {
    text += "0123456789abcdef"[*at >> 4];
    text += "0123456789abcdef"[*at & 15];
  }
  return text;
}

std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char letter : text) {
    const unsigned char byte = static_cast<unsigned char>(letter);
    if (byte < 0x20 || byte == 0x7f) json += "\\u00" + hex(&byte, 1);
    else json += (letter == '"' || letter == '\\' ? "\\" : "") + std::string(1, letter);
  }
  return json + "\"";
}

}  // namespace blink::shim
