#include "cli/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "cli/words.h"

namespace pando::cli {

namespace {

std::unexpected<Error> cannot_write(const std::string& path, int error) {
  return fail(ErrorCode::kUnavailable,
              fmt::format("cannot write {}: {}", path, std::generic_category().message(error)));
}

bool write_all(int descriptor, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

Result<OutputFile> OutputFile::open(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return cannot_write(path, EISDIR);
  std::string draft = fmt::format("{}.{}.tmp", path, getpid());
  const int descriptor = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) return cannot_write(path, errno);
  return OutputFile(path, std::move(draft), descriptor);
}

OutputFile::OutputFile(std::string path, std::string draft, int descriptor)
    : path_(std::move(path)), draft_(std::move(draft)), descriptor_(descriptor) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      draft_(std::exchange(other.draft_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!draft_.empty()) ::unlink(draft_.c_str());
}

Status OutputFile::commit(std::string_view content) {
  if (!write_all(descriptor_, content)) return cannot_write(path_, errno);
  // Closing may report what writing did not.
  if (::close(std::exchange(descriptor_, -1)) != 0) return cannot_write(path_, errno);
  if (std::rename(draft_.c_str(), path_.c_str()) != 0) return cannot_write(path_, errno);
  draft_.clear();
  return {};
}

Result<OutputFile> open_output(std::string_view option, const std::string& path) {
  auto opened = OutputFile::open(path);
  if (!opened) return invalid(option, opened.error().detail());
  return opened;
}

}  // namespace pando::cli
