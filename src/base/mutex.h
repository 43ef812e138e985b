// Mutex, MutexLock and CondVar: those of std with annotations, so that the compiler checks which
// lock guards what (-Wthread-safety). What a mutex guards says so: PANDO_GUARDED_BY(mutex_); a
// function that must be called with it held: PANDO_REQUIRES(mutex_). The compiler does not look
// into constructors and destructors, and takes a lambda for a function that holds nothing: waits
// are loops.
#pragma once

#include <chrono>
#include <condition_variable>
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
  friend class CondVar;
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

// Each wait lets go of the mutex meanwhile, and may end without a reason: ask again what was waited
// for.
class CondVar {
 public:
  void wait(Mutex& mutex) PANDO_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    (void)lock.release();
  }
  // False: it is that late.
  bool wait_until(Mutex& mutex, std::chrono::steady_clock::time_point until) PANDO_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, until) == std::cv_status::no_timeout;
    (void)lock.release();
    return in_time;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace pando::base
