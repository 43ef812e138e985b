// What the peers share: a folder in shared memory, and keys as bytes.
#pragma once

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "lab/keys.h"
#include <pando/pando.h>

namespace pando::lab {

// A folder that is removed, with what is in it, at the end.
class ScratchFolder {
 public:
  static Result<ScratchFolder> make(std::string_view purpose) {
    // Shared memory where the machine has it, so that a peer's figures contain no disk.
    std::error_code error;
    const std::filesystem::path shared = "/dev/shm";
    const auto base = std::filesystem::is_directory(shared, error)
                          ? shared
                          : std::filesystem::temp_directory_path();
    std::string path = base / ("pando-bench-" + std::string(purpose) + "-XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return fail(ErrorCode::kUnavailable, "cannot make a folder in " + base.string());
    }
    return ScratchFolder(std::move(path));
  }

  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }

  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// A key's bytes in key order. The view is valid as long as this object and the key's own bytes.
class OrderedBytes {
 public:
  explicit OrderedBytes(const Key& key) {
    if (key.type() == KeyType::kInteger) {
      integer_ = big_endian(key.integer());
      view_ = {integer_.data(), integer_.size()};
    } else {
      view_ = key.bytes();
    }
  }
  OrderedBytes(const OrderedBytes&) = delete;
  OrderedBytes& operator=(const OrderedBytes&) = delete;

  std::string_view view() const { return view_; }

 private:
  BigEndian integer_{};
  std::string_view view_;
};

inline OwnedKey owned_key(KeyType type, std::string_view bytes) {
  return type == KeyType::kInteger ? OwnedKey(from_big_endian(bytes))
                                   : OwnedKey(std::string(bytes));
}

}  // namespace pando::lab
