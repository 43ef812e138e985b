#include "fabric/verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "base/sanitizers.h"

#if PANDO_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace pando::fabric {
namespace {

#ifdef NDEBUG
constexpr bool kDebugBuild = false;
#else
constexpr bool kDebugBuild = true;
#endif

// ---- Buffers: size classes and poison ----

std::size_t class_of(std::size_t size) {
  return static_cast<std::size_t>(std::bit_width(std::max(size, kLineBytes) - 1));
}
std::size_t bytes_of(std::size_t size_class) { return std::size_t{1} << size_class; }

// A buffer that nobody holds: reading it shows garbage in debug builds, touching it is an error
// under the address sanitizer.
void mark_free(std::byte* data, std::size_t size, std::size_t class_bytes) {
  if constexpr (kDebugBuild) std::memset(data, 0xDB, size);
#if PANDO_ADDRESS_SANITIZER
  ASAN_POISON_MEMORY_REGION(data, class_bytes);
#else
  static_cast<void>(class_bytes);
#endif
}

void mark_used([[maybe_unused]] std::byte* data, [[maybe_unused]] std::size_t size) {
#if PANDO_ADDRESS_SANITIZER
  ASAN_UNPOISON_MEMORY_REGION(data, size);
#endif
}

// ---- Verbs ----

// Into a part of this size; atomics only where they are aligned.
bool fits(const Verb& verb, std::uint64_t part_size) {
  const std::uint64_t offset = verb.target.offset_in_part();
  if (is_atomic(verb.kind)) return offset + 8 <= part_size && offset % 8 == 0;
  return offset + verb.length <= part_size;
}

constexpr std::size_t kNoPart = ~std::size_t{0};

}  // namespace

// ---- Verb ----

std::uint64_t Verb::word_after(std::uint64_t before) const {
  switch (kind) {
    case VerbKind::kRead:
    case VerbKind::kWrite:
      break;
    case VerbKind::kCompareSwap:
      return before == compare ? swap : before;
    case VerbKind::kMaskedCompareSwap:
      if (emulated) return before == guess ? swapped(guess) : before;
      return (before & compare_mask) == (compare & compare_mask) ? swapped(before) : before;
    case VerbKind::kFetchAdd:
      return before + swap;
  }
  return before;
}

std::string describe_operands(const Verb& verb) {
  switch (verb.kind) {
    case VerbKind::kRead:
    case VerbKind::kWrite:
      break;
    case VerbKind::kCompareSwap:
      return fmt::format("{:#x} to {:#x}", verb.compare, verb.swap);
    case VerbKind::kMaskedCompareSwap:
      return fmt::format("{:#x} to {:#x} masks {:#x} {:#x}", verb.compare, verb.swap,
                         verb.compare_mask, verb.swap_mask);
    case VerbKind::kFetchAdd:
      return fmt::format("add {:#x}", verb.swap);
  }
  return fmt::format("length {}", verb.length);
}

void count(Counters& counts, const Verb& verb) {
  if (verb.kind == VerbKind::kRead) {
    ++counts.reads;
    counts.bytes_read += verb.length;
  } else if (verb.kind == VerbKind::kWrite) {
    ++counts.writes;
    counts.bytes_written += verb.length;
  } else {
    ++(counts.*traits_of(verb.kind).counter);
  }
}

// ---- Batch ----

void Batch::grow() {
  auto many = std::make_unique<Verb[]>(2 * room_);
  std::ranges::copy(verbs(), many.get());
  many_ = std::move(many);
  verbs_ = many_.get();
  room_ *= 2;
}

void Batch::refuse(Error error) {
  for (Verb& verb : verbs()) verb.outcome = Outcome::kNotExecuted;
  complete(std::move(error));
}

// ---- Buffer ----

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) owner_->give_back(data_, size_);
    owner_ = std::exchange(other.owner_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) owner_->give_back(data_, size_);
}

// ---- Endpoint: buffers ----

Endpoint::Endpoint(const Caps& caps, task::Worker& worker) : caps_(caps), worker_(worker) {
  worker_.add_poller(this);
}

Endpoint::~Endpoint() {
  worker_.remove_poller(this);
  free_buffers();
}

Buffer Endpoint::buffer(std::size_t size) {
  const std::size_t size_class = class_of(size);
  auto& list = free_buffers_[size_class];
  std::byte* data = nullptr;
  if (!list.empty()) {
    data = list.back();
    list.pop_back();
  } else {
    const std::size_t bytes = bytes_of(size_class);
    data = allocate_registered(bytes);
    buffer_bytes_ += bytes;
    const auto place = std::ranges::lower_bound(registered_, data, {}, &Registered::memory);
    registered_.insert(place, {data, bytes});
    mark_free(data, 0, bytes);
  }
  mark_used(data, size);
  return {this, data, size};
}

void Endpoint::give_back(std::byte* data, std::size_t size) {
  const std::size_t size_class = class_of(size);
  mark_free(data, size, bytes_of(size_class));
  free_buffers_[size_class].push_back(data);
}

std::byte* Endpoint::allocate_registered(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kLineBytes}));
}

void Endpoint::free_registered(std::byte* memory, std::size_t bytes) {
  ::operator delete(memory, bytes, std::align_val_t{kLineBytes});
}

void Endpoint::free_buffers() {
  for (const Registered& block : registered_) {
    mark_used(block.memory, block.bytes);
    // NOLINTNEXTLINE(clang-analyzer-optin.cplusplus.VirtualCall): those who override it call first
    free_registered(block.memory, block.bytes);
  }
  registered_.clear();
  for (auto& list : free_buffers_) list.clear();
  buffer_bytes_ = 0;
}

bool Endpoint::is_registered(const std::byte* memory, std::size_t length) const {
  auto after = std::ranges::upper_bound(registered_, memory, {}, &Registered::memory);
  if (after == registered_.begin()) return false;
  const Registered& block = *--after;
  return memory + length <= block.memory + block.bytes;
}

// ---- Endpoint: batches ----

bool Endpoint::start(Batch& batch) {
  if (batch.empty()) {
    batch.complete();
    return true;
  }
  if (batch.too_long_) [[unlikely]] {
    batch.refuse(Error(ErrorCode::kInvalidArgument, "a READ or WRITE of 4 GiB or more"));
    return true;
  }
  if constexpr (kDebugBuild) {
    if (auto error = unregistered(batch)) {
      batch.refuse(std::move(*error));
      return true;
    }
  }
  Counters cost{.round_trips = 1};
  if (!prepare(batch, cost)) [[unlikely]]
    return true;
  const bool completed = post(batch);
  const bool refused =
      completed && batch.error_ && batch.error_->code() == ErrorCode::kInvalidArgument;
  if (refused) [[unlikely]]
    return true;
  counters_ += cost;
  if (batch.cost() != nullptr) *batch.cost() += cost;
  return completed;
}

void Endpoint::report_in_doubt(const Batch& batch) {
  for (const Verb& verb : batch.verbs()) {
    if (!changes_memory(verb.kind) || verb.outcome != Outcome::kIndeterminate) continue;
    report_in_doubt(verb.target.node());
  }
}

// One pass over the verbs: where a verb is a copy in memory, each pass would cost as much as some
// of them.
bool Endpoint::prepare(Batch& batch, Counters& cost) {
  const std::span<const std::uint64_t> sizes = memory_node_sizes();
  if (last_batch_at_.size() < sizes.size()) [[unlikely]]
    last_batch_at_.resize(sizes.size());
  ++batches_;
  std::size_t part = kNoPart;  // of the last verb
  std::uint64_t size = 0;      // of that part
  for (Verb& verb : batch.verbs()) {
    if (verb.target.part() != part) {
      part = verb.target.part();
      const NodeId node = verb.target.node();
      if (node >= sizes.size()) [[unlikely]] {
        batch.refuse(misplaced(verb, sizes));
        return false;
      }
      size = verb.target.on_chip() ? caps_.onchip_bytes : sizes[node];
      if (std::exchange(last_batch_at_[node], batches_) != batches_) ++cost.doorbells;
    }
    if (!fits(verb, size)) [[unlikely]] {
      batch.refuse(misplaced(verb, sizes));
      return false;
    }
    prepare(verb);
    count(cost, verb);
  }
  return true;
}

void Endpoint::prepare(Verb& verb) const {
  verb.outcome = Outcome::kPending;
  if (verb.kind != VerbKind::kMaskedCompareSwap) return;
  verb.emulated = !caps_.masked_cas;
  // A guess that contradicts the comparison can only fail to swap what ought to be swapped.
  verb.guess = (verb.guess & ~verb.compare_mask) | (verb.compare & verb.compare_mask);
}

Error Endpoint::misplaced(const Verb& verb, std::span<const std::uint64_t> node_sizes) const {
  const NodeId node = verb.target.node();
  const std::string what =
      fmt::format("{} at node {}, offset {:#x}, length {}", traits_of(verb.kind).name, node,
                  verb.target.offset(), verb.extent());
  if (node >= node_sizes.size()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: there are {} memory nodes", what, node_sizes.size()));
  }
  const bool onchip = verb.target.on_chip();
  const std::uint64_t size = onchip ? caps_.onchip_bytes : node_sizes[node];
  if (verb.target.offset_in_part() + verb.extent() > size) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: its {} has {} bytes", what, onchip ? "on-chip memory" : "memory", size));
  }
  return Error(ErrorCode::kInvalidArgument, fmt::format("{}: not aligned to 8 bytes", what));
}

std::optional<Error> Endpoint::unregistered(const Batch& batch) const {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Verb& verb = batch[i];
    const bool needs_buffer = verb.kind == VerbKind::kRead ||
                              (verb.kind == VerbKind::kWrite && verb.length > caps_.inline_limit);
    if (!needs_buffer || verb.length == 0 || is_registered(verb.local, verb.length)) continue;
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} of {} bytes: READs land in, and WRITEs of over {} bytes leave "
                             "from, buffers of their endpoint",
                             traits_of(verb.kind).name, verb.length, caps_.inline_limit));
  }
  return std::nullopt;
}

}  // namespace pando::fabric
