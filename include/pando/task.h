// Task<T>: the coroutine that every operation is.
//
// Contract
//  1. Lazy: a task runs when it is awaited (or given to a Worker), never before.
//  2. Awaiting transfers control symmetrically, so chains of any depth use no stack.
//  3. A task belongs to one Worker's thread from its first step to its last.
//  4. Frames come from a per-thread pool: awaiting a task in a loop does not reach malloc.
//  5. Tasks do not throw. An exception that escapes one (std::bad_alloc from a user's own
//     coroutine) ends the process, as it would from a noexcept function.
//
// Ownership: the Task object owns the frame and destroys it. Arguments taken by reference must
// outlive the task; a lambda that is a coroutine must outlive it too.
#pragma once

#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>

namespace pando {

namespace task {

// Pooled frames; src/task/frame_pool.cc. Memory may be freed on another thread than it was
// taken on.
void* allocate_frame(std::size_t bytes);
void free_frame(void* frame, std::size_t bytes) noexcept;

struct PromiseBase {
  static void* operator new(std::size_t bytes) { return allocate_frame(bytes); }
  static void operator delete(void* frame, std::size_t bytes) noexcept { free_frame(frame, bytes); }

  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) const noexcept {
      return self.promise().continuation;
    }
    void await_resume() const noexcept {}
  };

  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  [[noreturn]] void unhandled_exception() const noexcept { std::terminate(); }

  std::coroutine_handle<> continuation = std::noop_coroutine();
};

template <class T>
struct Promise : PromiseBase {
  std::optional<T> result;

  auto get_return_object() noexcept { return std::coroutine_handle<Promise>::from_promise(*this); }
  template <class U>
  void return_value(U&& value) {
    result.emplace(std::forward<U>(value));
  }
  T take() { return std::move(*result); }
};

template <>
struct Promise<void> : PromiseBase {
  auto get_return_object() noexcept { return std::coroutine_handle<Promise>::from_promise(*this); }
  void return_void() const noexcept {}
  void take() const noexcept {}
};

}  // namespace task

template <class T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = task::Promise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  Task(Handle handle) noexcept : handle_(handle) {}  // NOLINT: made by the compiler
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      if (handle_) handle_.destroy();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  struct Awaiter {
    Handle handle;
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) const noexcept {
      handle.promise().continuation = awaiting;
      return handle;
    }
    T await_resume() const { return handle.promise().take(); }
  };
  Awaiter operator co_await() const noexcept { return Awaiter{handle_}; }

  // For Worker, which drives tasks from outside a coroutine.
  Handle handle() const noexcept { return handle_; }
  bool done() const noexcept { return handle_.done(); }

 private:
  Handle handle_;
};

}  // namespace pando
