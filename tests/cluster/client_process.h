// ClientProcess: a process of its own that does what a function says, and ends with the test.
//
// It is forked, so the function finds the test's memory as it was; what is to be seen by both is in
// Shared<T>. It has none of the test's descriptors (those of its connections and of its proxies
// would keep them open) and none of its threads: pools and proxies of the test are not to be used.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <new>
#include <optional>
#include <stdexcept>

namespace pando::testing {

class ClientProcess {
 public:
  explicit ClientProcess(const std::function<void()>& work);
  ~ClientProcess();  // kills it, if it has not ended
  ClientProcess(ClientProcess&& other) noexcept;
  ClientProcess& operator=(ClientProcess&& other) noexcept;

  void signal(int number) const;
  // How it ended, as of waitpid; nothing: not within this time.
  std::optional<int> wait(std::chrono::milliseconds patience);
  // Ends it at once, and waits until nothing of it is left.
  void kill();

 private:
  pid_t process_ = -1;
};

// A T, zero at first, that this process shares with those it forks. T is of words and atomics.
template <class T>
class Shared {
 public:
  Shared() {
    void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    value_ = static_cast<T*>(memory);
  }
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

}  // namespace pando::testing
