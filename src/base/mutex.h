// Mutex and MutexLock: std::mutex with annotations, so that the compiler checks which lock guards
// what (-Wthread-safety). What a mutex guards says so: PANDO_GUARDED_BY(mutex_); a function that
// must be called with it held: PANDO_REQUIRES(mutex_).
#pragma once

#include <mutex>

#if defined(__clang__)
#define PANDO_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define PANDO_THREAD_ATTRIBUTE(x)
#endif
#define PANDO_GUARDED_BY(mutex) PANDO_THREAD_ATTRIBUTE(guarded_by(mutex))
#define PANDO_REQUIRES(mutex) PANDO_THREAD_ATTRIBUTE(requires_capability(mutex))

namespace pando::base {

class PANDO_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() PANDO_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() PANDO_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  bool try_lock() PANDO_THREAD_ATTRIBUTE(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

class PANDO_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) PANDO_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() PANDO_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace pando::base
