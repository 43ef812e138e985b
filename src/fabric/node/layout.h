// The bytes of a memory node's mapping (docs/formats/memory_node.md):
//
//        0   Header      what this is, how large, whose life; which clients may come in
//   16 KiB   sequences   of stripes (line_memory.h)
//   64 KiB   redo slots        what each writer is about to write (redo_slots.h)
//    1 MiB   "on-chip" memory, up to 1 MiB
//    2 MiB   memory: offset 0 of what addresses mean
//
// All-zero memory is a node that was never used. Only the node's own process writes the header; but
// clients that map the memory could, and nothing that keeps the process safe rests on it
// (memory.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "fabric/line_memory.h"

namespace pando::fabric::node {

inline constexpr std::uint64_t kMagic = 0x45444f4e4f444e50;  // "PNDONODE"
inline constexpr std::uint32_t kFormat = 2;

inline constexpr std::size_t kMaxClients = 1024;  // admitted at a time
inline constexpr std::size_t kMaxFenced = 1024;   // remembered one by one
inline constexpr std::size_t kMaxRedoSlots = 512;
inline constexpr std::size_t kMaxClusterName = 63;

struct Header {
  std::uint64_t magic;  // written last
  std::uint32_t format;
  std::uint32_t onchip_bytes;
  std::uint64_t memory_bytes;
  std::uint64_t life;  // random, of this memory: another one means that all was lost
  std::uint32_t last_client;
  std::uint32_t join_floor;           // clients up to this one may not join any more
  char cluster[kMaxClusterName + 1];  // ends with a zero
  std::uint32_t admitted[kMaxClients];
  std::uint32_t fenced[kMaxFenced];  // clients that may not join though they are above the floor
  std::uint32_t registered;          // the id that a registry gave this memory, + 1; 0: none yet
  std::uint32_t onchip_in_card;      // 1: its bytes are gone with the node's process (onchip.h)
  std::uint8_t stays[kMaxClients];   // 1: remember who stands at this place in `admitted`
};

// What a writer is about to store into one stripe. Its bytes are copied from here, so that the node
// can store them once more where the process was killed meanwhile.
struct alignas(64) RedoSlot {
  std::uint32_t client;   // 0: free. Written by the node's own process, like the next two
  std::int32_t process;   // its id
  std::uint64_t started;  // when the process began, in the system's ticks: ids are reused
  std::uint64_t place;    // from the mapping's begin
  std::uint64_t length;   // 0: there is nothing to finish
  alignas(64) std::byte bytes[kStripeBytes];
};

inline constexpr std::uint64_t kSequencesAt = 16 << 10;
inline constexpr std::uint64_t kRedoSlotsAt = 64 << 10;
inline constexpr std::uint64_t kOnChipAt = 1 << 20;
inline constexpr std::uint64_t kMemoryAt = 2 << 20;
inline constexpr std::uint32_t kMaxOnChip = kMemoryAt - kOnChipAt;

static_assert(sizeof(Header) <= kSequencesAt);
static_assert(sizeof(RedoSlot) == 64 + kStripeBytes);
static_assert(kRedoSlotsAt + kMaxRedoSlots * sizeof(RedoSlot) <= kOnChipAt);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace pando::fabric::node
