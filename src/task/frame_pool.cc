// The pool that coroutine frames come from: per-thread free lists, one for each multiple of 64
// bytes up to 4 KiB; larger frames come from the heap.
//
// A frame freed on another thread than it was taken on joins the list of the thread that freed it.
// Lists are bounded, so frames that always flow one way go back to the heap instead of piling up.
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

#include "base/sanitizers.h"
#include <pando/task.h>

namespace pando::task {

#if PANDO_ADDRESS_SANITIZER

// Reusing a frame would hide its use after the free from the sanitizer.
void* allocate_frame(std::size_t bytes) { return ::operator new(bytes); }
void free_frame(void* frame, std::size_t bytes) noexcept { ::operator delete(frame, bytes); }

#else

namespace {

constexpr std::size_t kGrain = 64;
constexpr std::size_t kClasses = 64;
constexpr std::size_t kMaxPooled = kGrain * kClasses;
constexpr std::size_t kMaxBytesOfClass = std::size_t{256} << 10;
constexpr std::size_t kMaxFramesOfClass = 1024;

struct FreeFrame {
  FreeFrame* next;
};

struct FreeList {
  FreeFrame* first = nullptr;
  std::uint32_t room = 0;  // how many frames may still be added
};

enum class Phase : std::uint8_t { kUnused, kLive, kEnded };

// Trivially destructible, so that frames may be freed by other thread-local destructors, in
// whatever order they run; kEnded tells them to go to the heap.
struct ThreadLists {
  std::array<FreeList, kClasses> lists;
  Phase phase = Phase::kUnused;
};
constinit thread_local ThreadLists thread_lists;

constexpr std::size_t class_of(std::size_t bytes) { return (bytes - 1) / kGrain; }
constexpr std::size_t bytes_of(std::size_t size_class) { return (size_class + 1) * kGrain; }
constexpr std::uint32_t limit_of(std::size_t size_class) {
  const std::size_t fit = kMaxBytesOfClass / bytes_of(size_class);
  return static_cast<std::uint32_t>(fit < kMaxFramesOfClass ? fit : kMaxFramesOfClass);
}

struct ThreadEnd {
  ~ThreadEnd() {
    thread_lists.phase = Phase::kEnded;
    for (std::size_t i = 0; i < kClasses; ++i) {
      FreeList& list = thread_lists.lists[i];
      while (list.first != nullptr) {
        FreeFrame* const frame = list.first;
        list.first = frame->next;
        ::operator delete(frame, bytes_of(i));
      }
    }
  }
};

// The first free on this thread: from now on its end empties the lists.
[[gnu::noinline]] void begin_thread() {
  [[maybe_unused]] thread_local ThreadEnd thread_end;
  for (std::size_t i = 0; i < kClasses; ++i) thread_lists.lists[i].room = limit_of(i);
  thread_lists.phase = Phase::kLive;
}

}  // namespace

void* allocate_frame(std::size_t bytes) {
  if (bytes > kMaxPooled) return ::operator new(bytes);
  const std::size_t size_class = class_of(bytes);
  FreeList& list = thread_lists.lists[size_class];
  FreeFrame* const frame = list.first;
  if (frame == nullptr) return ::operator new(bytes_of(size_class));
  list.first = frame->next;
  ++list.room;
  return frame;
}

void free_frame(void* frame, std::size_t bytes) noexcept {
  if (bytes > kMaxPooled) return ::operator delete(frame, bytes);
  const std::size_t size_class = class_of(bytes);
  if (thread_lists.phase == Phase::kUnused) begin_thread();
  FreeList& list = thread_lists.lists[size_class];
  if (thread_lists.phase == Phase::kEnded || list.room == 0) {
    return ::operator delete(frame, bytes_of(size_class));
  }
  list.first = ::new (frame) FreeFrame{list.first};
  --list.room;
}

#endif

}  // namespace pando::task
