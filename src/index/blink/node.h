// Nodes of a B-link tree in far memory: lines, versions, header, inner entries. Shared by every
// index whose inner nodes form a B-link tree. docs/formats/sherman.md draws the bytes.
//
// A node is a row of 64-byte lines. Each line ends with two versions and has 56 bytes before them:
//
//     0                                              56          60         64
//     | payload                                      | node ver. | entry v. |
//
// Line 0 is the header. Every change to a node is a change to single lines, which the fabric never
// tears, put in an order such that any prefix of it leaves a node that reads right:
//   entry written    one line, entry version + 1, node version unchanged
//   split            1. header: high fence and sibling of the new right node, node version v + 1
//                    2. lines: entries that went right are cleared, node version v + 1
//   absorb (merge)   1. lines: the right node's entries are added, node version v + 1
//                    2. header: the right node's high fence, floor and node version v + 1
// and no entry ever moves to another line within a life of the node, but by absorb.
//
// A reader takes lines at different moments, in any order. It believes the node if, for each line,
//     floor <= line's node version <= header's node version.
//   - Header older than a line (split under way, entries cleared already; absorb under way):
//     the line's version is too high.
//   - Line older than an absorb that the header tells of, or of an earlier life of the block: the
//     line's version is below the floor.
//   - Line older than a split that the header tells of: believed, and right: what it still shows of
//     the right node's range lies beyond the high fence and is ignored.
// A believed image is not one moment: entries are each as they were when their line was read. A key
// that is erased and put again meanwhile may stand in two lines, or in none; either was so at some
// moment. Versions are 32 bits wide and count on from life to life (pool/memory/block.h): a READ
// would have to last for 2^32 changes of one node to be fooled.
//
// A reference to a node carries its birth (22 bits of the incarnation). One that was kept while the
// node died and its block was reused does not match and is never believed. A block would have to be
// reused exactly 2^22 times, each after a grace period, while a cached reference stood unused.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/mutants.h"
#include "fabric/verbs.h"
#include "index/common/keys.h"
#include "pool/memory/block.h"

namespace pando::index {

using base::Mutant;
using base::mutated;
using fabric::Address;
using fabric::kLineBytes;

inline constexpr std::size_t kPayloadBytes = 56;
inline constexpr std::size_t kNodeVersionAt = 56;
inline constexpr std::size_t kEntryVersionAt = 60;
inline constexpr std::uint8_t kMaxLevel = 31;

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
template <class T>
void store(std::byte* at, const T& value) {
  std::memcpy(at, &value, sizeof(T));
}

// A node by address and birth. In far memory: {address | birth's low 6 bits : 64, next 16 bits :
// 16}.
struct NodeRef {
  static constexpr std::uint32_t kBirthMask = (1u << 22) - 1;

  Address address;
  std::uint32_t birth = 0;  // 22 bits

  NodeRef() = default;
  NodeRef(Address at, std::uint32_t incarnation) : address(at), birth(incarnation & kBirthMask) {}
  static NodeRef decode(std::uint64_t word, std::uint16_t high) {
    return {Address::from_raw(word & ~std::uint64_t{63}),
            static_cast<std::uint32_t>(word & 63) | (std::uint32_t{high} << 6)};
  }
  std::uint64_t word() const { return address.raw() | (birth & 63); }
  std::uint16_t high() const { return static_cast<std::uint16_t>(birth >> 6); }
  explicit operator bool() const { return static_cast<bool>(address); }
  friend bool operator==(const NodeRef&, const NodeRef&) = default;
};

// Offsets within the header line. The lock word is first, see pool/memory/block.h.
struct HeaderAt {
  static constexpr std::size_t kLock = 0;
  static constexpr std::size_t kSibling = 8;
  static constexpr std::size_t kIndexId = 16;
  static constexpr std::size_t kFloor = 20;
  static constexpr std::size_t kBirth = 24;
  static constexpr std::size_t kLevel = 28;
  static constexpr std::size_t kFlags = 29;
  static constexpr std::size_t kSiblingHigh = 30;
  static constexpr std::size_t kHigh = 32;    // a cell
  static constexpr std::size_t kIntLow = 40;  // integer keys; byte strings: start of line 1
};
static_assert(HeaderAt::kHigh + ByteKeys::kCellBytes <= kPayloadBytes);

enum NodeFlag : std::uint8_t {
  kDead = 1,       // merged away; never becomes alive again in this life
  kHasHigh = 2,    // there is a high fence; else the node is the last of its level
  kAbsorbing = 4,  // covers its sibling's range already; the sibling is about to die (see merge)
  kLeaving = 8,    // its left neighbour is about to cover its range, or does already (see merge)
};

enum class Verdict : std::uint8_t {
  kGood,
  kTorn,   // read again
  kDead,   // merged into its left neighbour
  kStale,  // not the node that the reference meant
};

// Whether two neighbours with so many entries should become one node: with room to spare, so that
// the next inserts do not split it again; or because one of them is all but empty, however full the
// other.
constexpr bool worth_absorbing(std::size_t left, std::size_t right, std::size_t capacity) {
  const std::size_t together = left + right;
  return together <= capacity * 4 / 5 ||
         (together <= capacity && (left <= capacity / 16 || right <= capacity / 16));
}

// Where to cut `count` entries, the new one among them at `added`, of a full node: how many stay
// left. Keys that come in ascending order leave nearly full nodes behind them: full ones at the end
// of a level, where there is no doubt.
constexpr std::size_t split_point(std::size_t count, std::size_t added, bool last_of_level) {
  if (added + 1 < count) return count / 2;
  return last_of_level ? count - 1 : count * 7 / 8;
}

// A view of a node's bytes, for reading and for changing a private copy.
template <class K>
class Node {
 public:
  using Cell = typename K::Cell;

  Node(std::byte* bytes, std::size_t size) : bytes_(bytes), lines_(size / kLineBytes) {}

  std::byte* bytes() const { return bytes_; }
  std::size_t size() const { return lines_ * kLineBytes; }
  std::size_t lines() const { return lines_; }
  std::byte* line(std::size_t i) const { return bytes_ + i * kLineBytes; }

  std::uint64_t lock_word() const { return load<std::uint64_t>(bytes_); }
  std::uint32_t index_id() const { return load<std::uint32_t>(bytes_ + HeaderAt::kIndexId); }
  std::uint32_t birth() const { return load<std::uint32_t>(bytes_ + HeaderAt::kBirth); }
  std::uint32_t floor() const { return load<std::uint32_t>(bytes_ + HeaderAt::kFloor); }
  std::uint8_t level() const { return load<std::uint8_t>(bytes_ + HeaderAt::kLevel); }
  std::uint8_t flags() const { return load<std::uint8_t>(bytes_ + HeaderAt::kFlags); }
  bool has(NodeFlag flag) const { return (flags() & flag) != 0; }
  NodeRef sibling() const {
    return NodeRef::decode(load<std::uint64_t>(bytes_ + HeaderAt::kSibling),
                           load<std::uint16_t>(bytes_ + HeaderAt::kSiblingHigh));
  }
  Cell high() const { return load<Cell>(bytes_ + HeaderAt::kHigh); }
  Cell low() const { return load<Cell>(low_at()); }
  std::uint32_t version() const { return node_version(0); }
  std::uint32_t node_version(std::size_t i) const {
    return load<std::uint32_t>(line(i) + kNodeVersionAt);
  }

  void set_floor(std::uint32_t floor) { store(bytes_ + HeaderAt::kFloor, floor); }
  void set_flag(NodeFlag flag, bool on) {
    store(bytes_ + HeaderAt::kFlags,
          static_cast<std::uint8_t>(on ? flags() | flag : flags() & ~unsigned{flag}));
  }
  void set_sibling(NodeRef sibling) {
    store(bytes_ + HeaderAt::kSibling, sibling.word());
    store(bytes_ + HeaderAt::kSiblingHigh, sibling.high());
  }
  void set_high(const Cell& cell) {
    store(bytes_ + HeaderAt::kHigh, cell);
    set_flag(kHasHigh, true);
  }
  void set_low(const Cell& cell) { store(low_at(), cell); }
  void set_versions(std::uint32_t version) {
    for (std::size_t i = 0; i < lines_; ++i) set_node_version(i, version);
  }
  std::uint32_t newest_version() const {
    std::uint32_t newest = 0;
    for (std::size_t i = 0; i < lines_; ++i) newest = std::max(newest, node_version(i));
    return newest;
  }
  void set_node_version(std::size_t i, std::uint32_t version) {
    store(line(i) + kNodeVersionAt, version);
  }
  std::uint32_t entry_version(std::size_t i) const {
    return load<std::uint32_t>(line(i) + kEntryVersionAt);
  }
  void bump_entry_version(std::size_t i) {
    store(line(i) + kEntryVersionAt, load<std::uint32_t>(line(i) + kEntryVersionAt) + 1);
  }

  // A fresh private image of a new node: empty, no siblings, covers everything from `low`.
  void initialize(std::uint32_t index, std::uint8_t at_level, std::uint32_t incarnation,
                  const Cell& low_cell) {
    std::memset(bytes_, 0, size());
    store(bytes_ + HeaderAt::kIndexId, index);
    store(bytes_ + HeaderAt::kLevel, at_level);
    store(bytes_ + HeaderAt::kBirth, incarnation);
    set_floor(incarnation);
    set_low(low_cell);
    set_versions(incarnation);
  }

  // Whether a READ of the header through `ref` leads to the node that the reference means. Whether
  // the rest belongs to it: versions_agree(), or what the leaves have instead (blink.h).
  Verdict judge_header(std::uint32_t index, std::uint8_t at_level, const NodeRef& ref) const {
    if (index_id() != index || level() != at_level ||
        ((birth() & NodeRef::kBirthMask) != ref.birth && !mutated(Mutant::kNoBirthCheck))) {
      return Verdict::kStale;
    }
    return has(kDead) ? Verdict::kDead : Verdict::kGood;
  }
  // No split or merge was left half done. Told by its content, not by its lock: the lock of one who
  // died may have been taken over by someone who was after another node (a former life of the
  // block; one that shares the lock word). REQUIRES: read under its lock.
  bool versions_same() const {
    bool same = true;
    for (std::size_t i = 1; i < lines_; ++i) same &= node_version(i) == version();
    return same;
  }
  bool versions_agree() const {
    const std::uint32_t least = floor();
    const std::uint32_t most = version();
    if (mutated(Mutant::kNoVersionCheck)) return true;
    if (mutated(Mutant::kBookendVersions)) return most == node_version(lines_ - 1);
    bool agree = true;
    for (std::size_t i = 0; i < lines_; ++i) {
      const std::uint32_t version = node_version(i);
      agree &= version >= least && version <= most;
    }
    return agree;
  }

 private:
  std::byte* low_at() const {
    if constexpr (K::kType == KeyType::kInteger) {
      return bytes_ + HeaderAt::kIntLow;
    } else {
      return line(1);
    }
  }

  std::byte* bytes_;
  std::size_t lines_;
};

// The entries of an inner node: {separator, child}, in any order, a child of 0 being an empty
// place. The child covers keys from its separator up to the next larger one, or the node's high
// fence.
template <class K>
class InnerNode : public Node<K> {
 public:
  using Cell = typename K::Cell;
  using Node<K>::Node;

  static constexpr std::size_t kPerLine = K::kInnerPerLine;
  static constexpr std::size_t kChildrenAt = kPerLine * K::kCellBytes;
  static constexpr std::size_t kHighsAt = kChildrenAt + kPerLine * 8;
  static_assert(kHighsAt + kPerLine * 2 <= kPayloadBytes);

  static constexpr std::size_t capacity(std::size_t node_bytes) {
    return (node_bytes / kLineBytes - K::kHeaderLines) * kPerLine;
  }
  std::size_t capacity() const { return capacity(this->size()); }
  static std::size_t line_of(std::size_t slot) { return K::kHeaderLines + slot / kPerLine; }

  Cell cell(std::size_t slot) const {
    return load<Cell>(line_at(slot) + (slot % kPerLine) * K::kCellBytes);
  }
  bool empty(std::size_t slot) const { return child_word(slot) == 0; }
  NodeRef child(std::size_t slot) const {
    return NodeRef::decode(child_word(slot),
                           load<std::uint16_t>(line_at(slot) + kHighsAt + (slot % kPerLine) * 2));
  }
  void set(std::size_t slot, const Cell& separator, const NodeRef& child) {
    store(line_at(slot) + (slot % kPerLine) * K::kCellBytes, separator);
    store(line_at(slot) + kChildrenAt + (slot % kPerLine) * 8, child.word());
    store(line_at(slot) + kHighsAt + (slot % kPerLine) * 2, child.high());
  }
  void clear(std::size_t slot) {
    store(line_at(slot) + kChildrenAt + (slot % kPerLine) * 8, std::uint64_t{0});
  }

 private:
  std::byte* line_at(std::size_t slot) const { return this->line(line_of(slot)); }
  std::uint64_t child_word(std::size_t slot) const {
    return load<std::uint64_t>(line_at(slot) + kChildrenAt + (slot % kPerLine) * 8);
  }
};

}  // namespace pando::index
