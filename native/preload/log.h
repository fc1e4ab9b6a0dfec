// Log lines in NCCL's format, at NCCL_DEBUG's or BLINK_DEBUG's level, and the file BLINK_REPORT.
#pragma once

#include <cerrno>
#include <cstddef>
#include <string>

namespace blink::shim {

enum class Level { kNone, kVersion, kWarn, kInfo, kTrace };

// The level in BLINK_DEBUG, else in NCCL_DEBUG; without both kWarn if BLINK_REPORT is set, else kNone. Read once.
Level log_level();

// Logs "host:pid:tid BLINK INFO text" to stderr. With NCCL_DEBUG_FILE (%h and %p are replaced) it logs to a file beside
// that one, with ".blink" appended. Each line of the text becomes a line. Never throws, keeps errno, raises no SIGPIPE.
void log(Level level, const std::string& text);
inline void warn(const std::string& text) { log(Level::kWarn, text); }
inline void info(const std::string& text) { log(Level::kInfo, text); }

// Appends a line of JSON to the file BLINK_REPORT (O_APPEND, one write); does nothing if the variable is unset.
void report(const std::string& json);

// The beginning of a rank's report line, up to its communicator.
std::string report_start(int rank, int nranks, const std::string& communicator);

// Restores errno at the end of a scope.
class KeepErrno {
 public:
  KeepErrno() = default;
  ~KeepErrno() { errno = error_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  const int error_ = errno;
};

// Writes all bytes, in one write if possible, so that lines of several processes do not mix. Raises no SIGPIPE.
bool write_all(int descriptor, const std::string& text);

// Bytes as hexadecimal digits, two per byte.
std::string hex(const void* bytes, std::size_t size);

// `text` as a JSON string, with quotes. Invalid UTF-8 is passed through; the reader decides how to decode it.
std::string quoted(const std::string& text);

}  // namespace blink::shim
