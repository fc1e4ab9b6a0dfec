// Log lines on stderr as NCCL writes them, from NCCL_DEBUG's or BLINK_DEBUG's level on, and the file of BLINK_REPORT.
#pragma once

#include <cerrno>
#include <cstddef>
#include <string>

namespace blink::shim {

enum class Level { kNone, kVersion, kWarn, kInfo, kTrace };

// The level that BLINK_DEBUG names, else NCCL_DEBUG; without both kWarn where BLINK_REPORT is set, else kNone. Read once.
Level log_level();

// "host:pid:tid BLINK INFO text", on stderr or, where NCCL_DEBUG_FILE is set (%h and %p are filled in), in a file
// beside it whose name ends in ".blink". Every line of the text is one. Never throws, keeps errno, raises no SIGPIPE.
void log(Level level, const std::string& text);
inline void warn(const std::string& text) { log(Level::kWarn, text); }
inline void info(const std::string& text) { log(Level::kInfo, text); }

// Appends one line of JSON to the file that BLINK_REPORT names (O_APPEND, one write); nothing without the variable.
void report(const std::string& json);

// How a line of a rank begins, up to its communicator.
std::string report_start(int rank, int nranks, const std::string& communicator);

// Leaves errno as it found it.
class KeepErrno {
 public:
  KeepErrno() = default;
  ~KeepErrno() { errno = error_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  const int error_ = errno;
};

// One write where the system allows: lines of several processes then do not mix. Raises no SIGPIPE.
bool write_all(int descriptor, const std::string& text);

// Bytes as hexadecimal digits, two each.
std::string hex(const void* bytes, std::size_t size);

// `text` as a JSON string, with its quotes. Bytes that are no UTF-8 stay as they are: who reads it says what they become.
std::string quoted(const std::string& text);

}  // namespace blink::shim
