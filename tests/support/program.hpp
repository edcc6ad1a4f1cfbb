// The program as a user meets it: words in, two streams and an exit code out.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "support/problems.hpp"

namespace kda_check::test {

namespace fs = std::filesystem;

struct Output {
  int code;
  std::string out, err;
};

inline std::string read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("kda-check-cli-" + std::to_string(::getpid()))) {
    fs::create_directory(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const char* name) const { return path_ / name; }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path_), {}));
  }

 private:
  fs::path path_;
};

/// Runs a shell command line in which KDA stands for the program.
inline Output shell(const std::string& line) {
  const fs::path out = fs::temp_directory_path() / ("kda-check-out-" + std::to_string(::getpid()));
  const fs::path err = fs::temp_directory_path() / ("kda-check-err-" + std::to_string(::getpid()));
  const std::string full =
      "KDA='" KDA_CHECK_PROGRAM "'; { " + line + "; } >'" + out.string() + "' 2>'" + err.string() + "'";
  const int status = std::system(full.c_str());
  Output output{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
  fs::remove(out);
  fs::remove(err);
  return output;
}

inline Output program(const std::string& words) { return shell("$KDA " + words); }

inline std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// Counts that are to be the same on a machine with a GPU.
inline const std::string on_cpu = " --variant naive,recurrent,chunk";
inline const std::string small = case_fixtures() + "/fla_fp32_small.h5";
inline const std::string bad = std::string(KDA_CHECK_SOURCE_DIR) + "/tests/fixtures_bad/";

}  // namespace kda_check::test
