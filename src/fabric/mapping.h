// Mapping: zeroed pages of this process, taken from the system when they are first touched.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace pando::fabric {

class Mapping {
 public:
  Mapping() = default;
  Mapping(std::uint64_t bytes, bool huge_pages) : bytes_(bytes) {
    if (bytes == 0) return;
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      problem_ = errno;
      return;
    }
    data_ = static_cast<std::byte*>(memory);
    // Only advice: without huge pages everything works, slower.
    if (huge_pages) madvise(memory, bytes, MADV_HUGEPAGE);
  }
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(other.bytes_),
        problem_(other.problem_) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  // All zero again, and given back to the system.
  void clear() {
    if (data_ != nullptr) madvise(data_, bytes_, MADV_DONTNEED);
  }

  std::byte* data() const { return data_; }
  int problem() const { return problem_; }  // the errno of a refusal, or 0

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  int problem_ = 0;
};

}  // namespace pando::fabric
