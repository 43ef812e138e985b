// OutputFile: a file that appears whole or not at all.
//
// Opening creates a file beside the wanted one, so that a folder that cannot be written to is known
// before the work is done; committing writes and renames it. Without a commit nothing is left.
#pragma once

#include <string>
#include <string_view>

#include <pando/result.h>

namespace pando::cli {

class OutputFile {
 public:
  // kUnavailable, with the path and the system's words, where it cannot be written.
  static Result<OutputFile> open(const std::string& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Status commit(std::string_view content);

 private:
  OutputFile(std::string path, std::string draft, int descriptor);

  std::string path_;
  std::string draft_;
  int descriptor_;
};

// For a file that an option names: kInvalidArgument, which names the option too.
Result<OutputFile> open_output(std::string_view option, const std::string& path);

}  // namespace pando::cli
