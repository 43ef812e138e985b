#include "fabric/node/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/machine_memory.h"
#include "base/parse.h"
#include "base/secret.h"

namespace pando::fabric::node {
namespace {

constexpr std::uint64_t kHugePage = 2 << 20;

std::string reason(int problem) { return std::generic_category().message(problem); }

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  explicit operator bool() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

std::uint64_t mapping_bytes(std::uint64_t memory) {
  return (kMemoryAt + memory + kHugePage - 1) / kHugePage * kHugePage;
}

std::string name_of(const MemoryOptions& options) {
  if (!options.shm.empty()) return fmt::format("shared memory '{}'", options.shm);
  if (!options.file.empty()) return fmt::format("'{}'", options.file);
  return "anonymous memory";
}

Status check(const MemoryOptions& options) {
  if (options.bytes < MemoryOptions::kMinBytes || options.bytes > Address::kOnChip) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("size: {} is not between {} and {}", base::format_size(options.bytes),
                            base::format_size(MemoryOptions::kMinBytes),
                            base::format_size(Address::kOnChip)));
  }
  if (options.onchip_bytes % kLineBytes != 0 || options.onchip_bytes > kMaxOnChip) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("onchip: {} is not a multiple of {} up to {}", options.onchip_bytes,
                            kLineBytes, base::format_size(kMaxOnChip)));
  }
  if (!options.shm.empty() && !options.file.empty()) {
    return fail(ErrorCode::kInvalidArgument, "shm and file: a node lives in one of them only");
  }
  if (options.shm.contains('/') || options.shm.size() > NAME_MAX) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("shm: '{}' is no name; it is one word without '/'", options.shm));
  }
  if (options.cluster.size() > kMaxClusterName) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("cluster: the name has more than {} bytes", kMaxClusterName));
  }
  return {};
}

struct OpenPlace {
  int descriptor;
  bool created;  // it was not there
};

// Tells by O_EXCL whether the place is new.
template <class Open>
OpenPlace open_or_create(Open open_with) {
  const int created = open_with(O_RDWR | O_CREAT | O_EXCL);
  if (created >= 0 || errno != EEXIST) return {created, true};
  return {open_with(O_RDWR | O_CREAT), false};
}

Result<OpenPlace> open_place(const MemoryOptions& options) {
  OpenPlace place{};
  if (!options.shm.empty()) {
    const std::string name = "/" + options.shm;
    place = open_or_create([&](int flags) { return shm_open(name.c_str(), flags, 0600); });
  } else if (!options.file.empty()) {
    const char* const path = options.file.c_str();
    place = open_or_create([&](int flags) { return open(path, flags | O_CLOEXEC, 0600); });
  } else {
    const bool huge = options.huge_pages == HugePages::kRequired;
    place = {memfd_create("pando", MFD_CLOEXEC | (huge ? MFD_HUGETLB : 0u)), true};
  }
  if (place.descriptor >= 0) return place;
  return fail(ErrorCode::kUnavailable,
              fmt::format("{} cannot be opened: {}", name_of(options), reason(errno)));
}

Result<struct stat> look_at(int descriptor, const MemoryOptions& options) {
  struct stat status = {};
  if (fstat(descriptor, &status) == 0) return status;
  return fail(ErrorCode::kUnavailable, fmt::format("{}: {}", name_of(options), reason(errno)));
}

// Memory has one node's process at a time. Such locks are a process's own: they end with it, though
// clients have the same descriptor.
Status claim(int descriptor, const MemoryOptions& options) {
  struct flock wanted = {};
  wanted.l_type = F_WRLCK;
  wanted.l_whence = SEEK_SET;
  if (fcntl(descriptor, F_SETLK, &wanted) != 0 && (errno == EAGAIN || errno == EACCES)) {
    if (fcntl(descriptor, F_GETLK, &wanted) != 0) wanted.l_pid = 0;
    return fail(ErrorCode::kBusy, fmt::format("{} is another memory node's, in process {}",
                                              name_of(options), wanted.l_pid));
  }
  Result<struct stat> status = look_at(descriptor, options);
  if (!status) return fail(status.error());
  const bool has_name = !options.shm.empty() || !options.file.empty();
  if (has_name && status->st_nlink == 0) {
    return fail(ErrorCode::kBusy, fmt::format("{} was taken back by another memory node, which "
                                              "could not start; try again",
                                              name_of(options)));
  }
  return {};
}

// Huge pages that are reserved and in nobody's use.
std::uint64_t free_huge_pages(std::uint64_t page) {
  const std::string path = fmt::format("/sys/kernel/mm/hugepages/hugepages-{}kB/", page / 1024);
  std::uint64_t free = 0;
  std::uint64_t promised = 0;
  std::ifstream(path + "free_hugepages") >> free;
  std::ifstream(path + "resv_hugepages") >> promised;
  return page * (free - std::min(free, promised));
}

// Pages are taken when they are touched, and where there is none then it is too late for an error.
Status check_room(int descriptor, const struct stat& status, const MemoryOptions& options) {
  constexpr std::uint64_t kStatBlock = 512;
  if (S_ISCHR(status.st_mode)) return {};  // a device has its own
  struct statfs place = {};
  if (fstatfs(descriptor, &place) != 0) return {};
  const std::uint64_t needs = mapping_bytes(options.bytes);
  const std::uint64_t has = static_cast<std::uint64_t>(status.st_blocks) * kStatBlock;
  const std::uint64_t missing = needs - std::min(needs, has);
  const auto page = static_cast<std::uint64_t>(place.f_bsize);
  if (place.f_type == HUGETLBFS_MAGIC) {
    const std::uint64_t free = free_huge_pages(page);
    if (missing <= free) return {};
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("{} needs {} of huge pages, and {} is free: reserve more (sysctl "
                            "vm.nr_hugepages), or give less",
                            name_of(options), base::format_size(missing), base::format_size(free)));
  }
  // Anonymous memory has no limit here.
  const std::uint64_t room = page * place.f_bavail;
  if (place.f_blocks > 0 && missing > room) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("size: {} does not fit into {}, where there is room for {}; make that "
                    "larger (of tmpfs: mount -o remount,size=...), or give less",
                    base::format_size(options.bytes), name_of(options), base::format_size(room)));
  }
  if (place.f_type != TMPFS_MAGIC) return {};  // a disk's file is not kept in memory
  const base::MachineMemory memory = base::machine_memory();
  const std::uint64_t wanted = has == 0 ? options.bytes : missing;  // the word that was given
  if (Status fits = base::check_fits("size", wanted, memory); !fits) return fits;
  if (!options.prefault && !options.locked) return {};
  return base::check_available(
      options.locked ? "size (a device locks all of it)" : "size (prefault touches all of it)",
      wanted, memory);
}

Result<std::byte*> map_shared(int descriptor, std::uint64_t bytes) {
  void* const mapping =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (mapping != MAP_FAILED) return static_cast<std::byte*>(mapping);
  return fail(ErrorCode::kOutOfMemory,
              fmt::format("cannot map {}: {}", base::format_size(bytes), reason(errno)));
}

// Clients may have the memory mapped already, where it survived a former process of the node.
Header copy_of(const Header& shared) {
  static_assert(sizeof(Header) % sizeof(std::uint64_t) == 0 && alignof(Header) == 8);
  Header header;
  copy_from_shared(reinterpret_cast<std::byte*>(&header),
                   reinterpret_cast<const std::byte*>(&shared), sizeof(header));
  header.cluster[kMaxClusterName] = '\0';
  return header;
}

}  // namespace

NodeMemory::NodeMemory(NodeMemory&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(other.mapped_),
      bytes_(other.bytes_),
      onchip_bytes_(other.onchip_bytes_),
      life_(other.life_),
      survived_(other.survived_),
      lost_(other.lost_),
      outlives_process_(other.outlives_process_),
      made_(other.made_),
      shm_(std::move(other.shm_)),
      file_(std::move(other.file_)) {}

NodeMemory::~NodeMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
  if (descriptor_ >= 0) close(descriptor_);
}

Result<NodeMemory> NodeMemory::make(const MemoryOptions& options) {
  if (Status valid = check(options); !valid) return fail(valid.error());
  const Result<OpenPlace> place = open_place(options);
  if (!place) return fail(place.error());
  NodeMemory memory(place->descriptor);
  memory.shm_ = options.shm;
  memory.file_ = options.file;
  memory.outlives_process_ = !options.shm.empty() || !options.file.empty();
  if (Status ready = memory.set_up(options, place->created); !ready) {
    memory.take_back();
    return fail(ready.error());
  }
  return memory;
}

Status NodeMemory::set_up(const MemoryOptions& options, bool created) {
  if (Status claimed = claim(descriptor_, options); !claimed) return claimed;
  if (created) made_ = Made::kPlace;  // not before: it might have become another's meanwhile
  if (Status fits = fit(options); !fits) return fits;
  const std::uint64_t bytes = mapping_bytes(options.bytes);
  Result<std::byte*> mapping = map_shared(descriptor_, bytes);
  if (!mapping) {
    const bool huge = options.huge_pages == HugePages::kRequired;
    return fail(mapping.error().code(),
                fmt::format("{}: {}{}", name_of(options), mapping.error().detail(),
                            huge ? "; are there enough huge pages? (sysctl vm.nr_hugepages)" : ""));
  }
  mapping_ = *mapping;
  mapped_ = bytes;
  // Only advice: without huge pages everything works, slower.
  if (options.huge_pages == HugePages::kWhereFree) madvise(mapping_, bytes, MADV_HUGEPAGE);
  if (Status bound = bind(options.numa_node); !bound) return bound;
  if (Status ready = adopt_or_format(options); !ready) return ready;
  return options.prefault ? prefault(options) : Status{};
}

// Makes the place as large as needed, unless it has a size that it must keep.
Status NodeMemory::fit(const MemoryOptions& options) {
  Result<struct stat> status = look_at(descriptor_, options);
  if (!status) return fail(status.error());
  if (S_ISCHR(status->st_mode)) return {};  // a DAX device: mmap() tells if it is too small
  const auto has = static_cast<std::uint64_t>(status->st_size);
  const std::uint64_t needs = mapping_bytes(options.bytes);
  if (has != 0 && has != needs) {
    return fail(ErrorCode::kIncompatible,
                fmt::format("{} is there already, with {} instead of {}; give the size that it was "
                            "made with, or remove it",
                            name_of(options), base::format_size(has), base::format_size(needs)));
  }
  if (Status room = check_room(descriptor_, *status, options); !room) return room;
  if (has == needs) return {};
  if (ftruncate(descriptor_, static_cast<off_t>(needs)) != 0) {
    return fail(ErrorCode::kOutOfMemory, fmt::format("{} cannot have {}: {}", name_of(options),
                                                     base::format_size(needs), reason(errno)));
  }
  made_ = std::max(made_, Made::kSize);
  return {};
}

Status NodeMemory::bind(int numa_node) const {
  if (numa_node < 0) return {};
  constexpr std::size_t kNodes = 1024;
  std::array<unsigned long, kNodes / (8 * sizeof(unsigned long))> mask{};
  const auto wanted = static_cast<std::size_t>(numa_node);
  if (wanted < kNodes) mask[wanted / 64] = 1UL << wanted % 64;
  if (wanted < kNodes &&
      syscall(SYS_mbind, mapping_, mapped_, MPOL_BIND, mask.data(), kNodes + 1, 0) == 0) {
    return {};
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("numa: memory of NUMA node {} cannot be had: {}", numa_node,
                          reason(wanted >= kNodes ? EINVAL : errno)));
}

void NodeMemory::take_back() {
  if (lost_) {
    header().onchip_in_card = 1;  // the next one finds it as this one did, and empties it again
  } else if (made_ == Made::kPlace) {
    if (!shm_.empty()) shm_unlink(("/" + shm_).c_str());
    if (!file_.empty()) unlink(file_.c_str());
  } else if (made_ == Made::kSize) {
    (void)!ftruncate(descriptor_, 0);
  } else if (made_ == Made::kHeader) {
    header() = Header{};
  }
  made_ = Made::kNothing;
  lost_ = false;
}

void NodeMemory::remember(const Header& header) {
  bytes_ = header.memory_bytes;
  onchip_bytes_ = header.onchip_bytes;
  life_ = header.life;
}

Status NodeMemory::adopt_or_format(const MemoryOptions& options) {
  const Header found = copy_of(header());
  if (found.magic == kMagic) {
    if (found.format != kFormat) {
      return fail(ErrorCode::kIncompatible,
                  fmt::format("{} has format {} of memory nodes; this program knows {}",
                              name_of(options), found.format, kFormat));
    }
    if (found.memory_bytes != options.bytes || found.onchip_bytes != options.onchip_bytes) {
      return fail(ErrorCode::kIncompatible,
                  fmt::format("{} was made with size {} and on-chip memory of {}", name_of(options),
                              base::format_size(found.memory_bytes),
                              base::format_size(found.onchip_bytes)));
    }
    if (options.cluster != found.cluster) {
      return fail(ErrorCode::kIncompatible,
                  fmt::format("{} belongs to cluster '{}', not '{}'", name_of(options),
                              found.cluster, options.cluster));
    }
    remember(found);
    lost_ = found.onchip_in_card != 0;
    if (lost_) empty();
    survived_ = !lost_;
    return {};
  }
  constexpr Header kFresh = {};
  if (std::memcmp(&found, &kFresh, sizeof(Header)) != 0) {
    return fail(ErrorCode::kIncompatible,
                fmt::format("{} holds something that is no memory node; it is left as it is",
                            name_of(options)));
  }
  made_ = std::max(made_, Made::kHeader);
  Header& fresh = header();
  fresh.format = kFormat;
  fresh.onchip_bytes = options.onchip_bytes;
  fresh.memory_bytes = options.bytes;
  fresh.life = base::random_word();
  std::ranges::copy(options.cluster, fresh.cluster);
  remember(fresh);
  std::atomic_thread_fence(std::memory_order_release);
  fresh.magic = kMagic;
  return {};
}

// As if it were fresh. Whoever is killed meanwhile leaves the mark, and the next one does it again.
void NodeMemory::empty() {
  // Gives the pages back where that can be done: a file of tmpfs or hugetlbfs, not a device.
  if (madvise(mapping_ + kSequencesAt, mapped_ - kSequencesAt, MADV_REMOVE) != 0) {
    std::memset(mapping_ + kSequencesAt, 0, mapped_ - kSequencesAt);
  }
  Header& found = header();
  life_ = base::random_word();
  found.life = life_;
  found.last_client = found.join_floor = found.registered = 0;
  std::ranges::fill(found.admitted, 0);
  std::ranges::fill(found.fenced, 0);
  std::atomic_ref(found.onchip_in_card).store(0);
}

Status NodeMemory::prefault(const MemoryOptions& options) const {
  constexpr std::uint64_t kStep = 64 << 20;
  for (std::uint64_t done = 0; done < mapped_;) {
    if (options.stopped && options.stopped()) {
      return fail(ErrorCode::kUnavailable,
                  fmt::format("{}: stopped, with {} of {} touched", name_of(options),
                              base::format_size(done), base::format_size(mapped_)));
    }
    const std::uint64_t step = std::min(kStep, mapped_ - done);
    if (madvise(mapping_ + done, step, MADV_POPULATE_WRITE) != 0) {
      return fail(ErrorCode::kOutOfMemory,
                  fmt::format("{}: there is memory for {} of {}: {}", name_of(options),
                              base::format_size(done), base::format_size(mapped_), reason(errno)));
    }
    done += step;
    if (options.progress) options.progress(done, mapped_);
  }
  return {};
}

Result<NodeMemory> NodeMemory::map(int number) {
  Descriptor descriptor(number);
  struct stat status = {};
  if (fstat(number, &status) != 0) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("the memory node's memory: {}", reason(errno)));
  }
  // A device tells no size: its header does.
  std::uint64_t bytes = static_cast<std::uint64_t>(status.st_size);
  if (S_ISCHR(status.st_mode)) {
    Result<std::byte*> head = map_shared(number, kMemoryAt);
    if (!head) return fail(head.error());
    const std::uint64_t memory = copy_of(*reinterpret_cast<const Header*>(*head)).memory_bytes;
    munmap(*head, kMemoryAt);
    bytes = memory <= Address::kOnChip ? mapping_bytes(memory) : 0;
  }
  if (bytes < kMemoryAt) return fail(ErrorCode::kCorrupt, "the memory node's memory is cut short");
  Result<std::byte*> mapping = map_shared(number, bytes);
  if (!mapping) return fail(mapping.error());
  NodeMemory memory(descriptor.release(), *mapping, bytes);
  const Header header = copy_of(memory.header());
  if (header.magic != kMagic || header.format != kFormat) {
    return fail(ErrorCode::kIncompatible,
                fmt::format("the memory node's memory has format {}; this program knows {}",
                            header.format, kFormat));
  }
  if (header.memory_bytes > bytes - kMemoryAt || header.onchip_bytes > kMaxOnChip) {
    return fail(ErrorCode::kCorrupt, "the memory node's memory is smaller than it says");
  }
  memory.remember(header);
  return memory;
}

SharedLineMemory NodeMemory::lines(std::uint64_t at, std::size_t slot) const {
  return {mapping_ + at, sequences(), ManyProcesses(mapping_, slot)};
}

// Whether a writer may write there at once: bytes of the memory or of the on-chip memory, within
// one stripe. `place` is from the mapping's begin.
bool NodeMemory::within(std::uint64_t place, std::uint64_t length) const {
  const bool main = place >= kMemoryAt;
  const std::uint64_t begin = main ? kMemoryAt : kOnChipAt;
  const std::uint64_t bytes = main ? bytes_ : onchip_bytes_;
  if (place < begin || place - begin >= bytes) return false;
  const std::uint64_t offset = place - begin;
  return length <= bytes - offset && length <= kStripeBytes - offset % kStripeBytes;
}

std::size_t NodeMemory::finish(std::size_t number) const {
  std::size_t finished = 0;
  for (std::size_t i = 0; i < SharedLineMemory::kSequences; ++i) {
    SharedLineMemory::Sequence& sequence = sequences()[i];
    const std::uint64_t word = sequence.load();
    if (word % 2 == 0 || ManyProcesses::holder_of(word) != number) continue;
    RedoSlot cut_off;
    copy_from_shared(reinterpret_cast<std::byte*>(&cut_off),
                     reinterpret_cast<const std::byte*>(&redo_slot(number)), sizeof(cut_off));
    if (within(cut_off.place, cut_off.length)) {
      copy_to_shared(mapping_ + cut_off.place, cut_off.bytes, cut_off.length);
    }
    sequence.store(static_cast<std::uint32_t>(word + 1));
    ++finished;
  }
  return finished;
}

}  // namespace pando::fabric::node
