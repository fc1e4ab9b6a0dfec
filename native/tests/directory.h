// A temporary directory for a test, removed at its end.
#pragma once

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace blink_test {

class Directory {
 public:
  Directory() {
    const char* place = std::getenv("TMPDIR");
    path_ = std::string(place != nullptr && *place != '\0' ? place : P_tmpdir) + "/blink-test-XXXXXX";
    if (mkdtemp(&path_[0]) == nullptr) std::abort();
  }
  ~Directory() {
    nftw(path_.c_str(), [](const char* path, const struct stat*, int, FTW*) { return remove(path); }, 16,
         FTW_DEPTH | FTW_PHYS);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  const std::string& path() const { return path_; }
  std::string at(const std::string& name) const { return path_ + "/" + name; }

  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& text, unsigned mode = 0600) const {
    const std::string path = at(name);
    std::FILE* const file = std::fopen(path.c_str(), "we");
    if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file) != text.size()) std::abort();
    std::fclose(file);
    if (chmod(path.c_str(), mode) != 0) std::abort();
    return path;
  }
  std::string read(const std::string& name) const {
    std::string text;
    std::FILE* const file = std::fopen(at(name).c_str(), "re");
    if (file == nullptr) return text;
    for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
    std::fclose(file);
    return text;
  }

 private:
  std::string path_;
};

}  // namespace blink_test
