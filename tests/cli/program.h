// Runs the built program, as a user would.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace pando::cli {

struct Outcome {
  int code = -1;
  std::string output;  // both streams, unless the arguments say otherwise
};

// `arguments` are words for the shell.
Outcome run_pando(const std::string& arguments);

class Program : public ::testing::Test {
 protected:
  void SetUp() override;
};

// A word that is wrong ends the program with 2, before it starts anything, and is named.
struct BadWord {
  const char* arguments;
  const char* named;
  const char* valid;  // what the message offers instead
};

class BadWords : public Program, public ::testing::WithParamInterface<BadWord> {};

// A folder that goes away with all that is in it.
class Folder {
 public:
  Folder();
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace pando::cli
