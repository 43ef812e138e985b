// NodeMemory: the mapping that holds a memory node's bytes, and how it comes to be.
//
// Where the bytes live decides what outlives the node's process:
//   nothing given    anonymous memory, gone with the last process that maps it
//   shm NAME         POSIX shared memory (/dev/shm/NAME): outlives the process, not the machine
//   file PATH        a file of tmpfs or hugetlbfs, or a DAX device (CXL memory)
// Memory that is there already and was a node's, of the same size, is taken over as it is
// (survived()); memory that holds something else is refused and left alone. Memory whose on-chip
// part was in a card when its process was killed (onchip.h) is emptied: what it held is lost.
// Memory that is another process's now is refused (kBusy).
//
// What cannot fit is refused before anything is taken (kInvalidArgument: not into this machine or
// this place, ever; kOutOfMemory: not now): afterwards nothing would tell but SIGBUS and the OOM
// killer. Where make() fails, or its caller does before the memory is of use to anyone and says
// take_back(), what this start has made is gone again, and nothing else is.
//
// Processes other than the node's map the same memory through a descriptor that the node hands
// them (mapped/). Thread-safe: nothing changes after it is made.
//
// Whoever maps it can change every byte of it at any time: the header, the sequence numbers and
// the redo slots, too. So whatever decides which bytes this process touches is not in there: sizes
// are taken from the header once, when it is opened, and what a redo slot says is copied, and
// checked in the copy, before it is done. A client that maps can spoil what the node keeps for all,
// as it can by WRITEs; it cannot reach the memory of the node's process (docs/operations.md, "Who
// is trusted").
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "fabric/node/layout.h"
#include "fabric/node/redo_slots.h"
#include "fabric/verbs.h"
#include <pando/result.h>

namespace pando::fabric::node {

enum class HugePages : std::uint8_t { kOff, kWhereFree, kRequired };

struct MemoryOptions {
  std::uint64_t bytes = 0;
  std::uint32_t onchip_bytes = 256 << 10;
  std::string shm;  // at most one of these two
  std::string file;
  HugePages huge_pages = HugePages::kWhereFree;
  int numa_node = -1;  // any
  // Touches every page before anyone uses it. `progress` is told how far it has come, and `stopped`
  // whether to give up (kUnavailable).
  bool prefault = false;
  std::function<void(std::uint64_t done, std::uint64_t all)> progress;
  std::function<bool()> stopped;
  bool locked = false;  // a device will lock every page, which takes them all at once, too
  std::string cluster;  // kept with fresh memory; must agree with memory that survived

  static constexpr std::uint64_t kMinBytes = std::uint64_t{1} << 20;
};

class NodeMemory {
 public:
  static Result<NodeMemory> make(const MemoryOptions& options);
  // Another process's: maps what `descriptor` holds, and checks that it is a memory node. Takes the
  // descriptor over.
  static Result<NodeMemory> map(int descriptor);

  NodeMemory(NodeMemory&& other) noexcept;
  NodeMemory& operator=(NodeMemory&&) = delete;
  ~NodeMemory();

  Header& header() const { return *reinterpret_cast<Header*>(mapping_); }
  std::uint64_t bytes() const { return bytes_; }
  std::uint32_t onchip_bytes() const { return onchip_bytes_; }
  std::uint64_t life() const { return life_; }
  int descriptor() const { return descriptor_; }
  bool survived() const { return survived_; }
  // It was a node's, and is empty now: a part had gone with the node's process.
  bool lost() const { return lost_; }
  // Undoes what make() has done: the place is removed where it was not there, and empty where it
  // was empty. Memory that survived is left as it is. REQUIRES: nothing uses it any more.
  void take_back();
  // Its bytes are still there when the process is gone.
  bool outlives_process() const { return outlives_process_; }
  std::byte* data() const { return mapping_ + kMemoryAt; }
  std::byte* onchip() const { return mapping_ + kOnChipAt; }
  RedoSlot& redo_slot(std::size_t number) const {
    return *ManyProcesses::redo_slot_at(mapping_, number);
  }

  // For a thread that holds this redo slot.
  SharedLineMemory main_lines(std::size_t slot) const { return lines(kMemoryAt, slot); }
  SharedLineMemory onchip_lines(std::size_t slot) const { return lines(kOnChipAt, slot); }

  // Finishes and frees every stripe that the redo slot holds; of a redo slot that says what no
  // writer says it does nothing but free them. Returns how many. REQUIRES: its thread is gone;
  // called by the node's own process.
  std::size_t finish(std::size_t slot) const;

 private:
  // The most that this start has made, and would have to undo.
  enum class Made : std::uint8_t { kNothing, kHeader, kSize, kPlace };

  explicit NodeMemory(int descriptor) : descriptor_(descriptor) {}
  NodeMemory(int descriptor, std::byte* mapping, std::uint64_t mapped)
      : descriptor_(descriptor), mapping_(mapping), mapped_(mapped) {}
  Status set_up(const MemoryOptions& options, bool created);
  Status fit(const MemoryOptions& options);
  Status bind(int numa_node) const;
  SharedLineMemory lines(std::uint64_t at, std::size_t slot) const;
  SharedLineMemory::Sequence* sequences() const {
    return reinterpret_cast<SharedLineMemory::Sequence*>(mapping_ + kSequencesAt);
  }
  Status adopt_or_format(const MemoryOptions& options);
  void remember(const Header& header);
  bool within(std::uint64_t place, std::uint64_t length) const;
  void empty();
  Status prefault(const MemoryOptions& options) const;

  int descriptor_ = -1;
  std::byte* mapping_ = nullptr;
  std::uint64_t mapped_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint32_t onchip_bytes_ = 0;
  std::uint64_t life_ = 0;
  bool survived_ = false;
  bool lost_ = false;
  bool outlives_process_ = false;
  Made made_ = Made::kNothing;
  std::string shm_;   // its name,
  std::string file_;  // or its path, where it has one
};

}  // namespace pando::fabric::node
