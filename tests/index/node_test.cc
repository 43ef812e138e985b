// The claim at the top of index/blink/node.h, as a property: a reader that takes the lines of a
// node at different moments, in any order, believes it only where what it saw is right.
//
// A block goes through a random history of line writes: entries come and go, the node splits,
// absorbs, dies, and the block is used again for another node. Beside it the keys of the whole
// level are known at every moment. A reader takes each line at some moment of its own between a
// beginning and an end; if it believes what it got, then of the keys between the fences every one
// that was in the level from the beginning to the end must be there, and none that was absent all
// that time.
//
// And a writer may die after any line: what it leaves, with entries beyond the fence cleared and
// versions made equal (as BLink::repair does), must be the node's keys as they are at that moment.
#include "index/blink/node.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "index/sherman/layout.h"
#include "support/scale.h"

namespace pando::index {
namespace {

using sherman::Leaf;
using sherman::LeafGeometry;

// The rules, each of which can be broken to see that it is needed.
struct Rules {
  bool floor = true;           // readers: no line older than the floor
  bool versions = true;        // readers: no line newer than the header
  bool header_first = true;    // splits: the header lands before the lines
  bool lines_first = true;     // absorbing: the lines land before the header
  bool entries_stay = true;    // entries do not move to other lines
  bool versions_go_on = true;  // a new life's versions are above the last one's
};

constexpr LeafGeometry kGeometry{.bytes = 256, .value_bytes = 8};
constexpr std::size_t kLines = 4;
constexpr std::uint64_t kKeys = 40;
constexpr std::uint32_t kIndexId = 7;

using Image = std::array<std::byte, kGeometry.bytes>;
using Presence = std::array<bool, kKeys>;

class History {
 public:
  History(const Rules& rules, std::uint64_t seed) : rules_(rules), random_(seed) {
    for (bool& present : level_) present = chance(2);
    be_born();
  }

  void run(std::size_t changes) {
    for (std::size_t i = 0; i < changes; ++i) change();
  }

  // Whether some reader believes something wrong.
  bool misleads(std::size_t readers) {
    for (std::size_t i = 0; i < readers; ++i) {
      if (misled_once()) return true;
    }
    return false;
  }
  // Whether a writer that died at some moment would have left a wrong node, once repaired.
  bool dies_badly() {
    for (Moment& moment : moments_) {
      if (!moment.ref) continue;
      const Leaf<IntKeys> node = leaf(moment.memory);
      const auto [low, high] = fences(node);
      for (std::uint64_t key = low; key < high; ++key) {
        if ((node.find(key) != node.capacity()) != moment.level[key]) return true;
      }
    }
    return false;
  }
  std::size_t believed() const { return believed_; }

 private:
  struct Moment {
    Image memory;
    Presence level;
    NodeRef ref;  // the node that lives here; none where it is dead or not published yet
  };

  std::size_t below(std::size_t n) { return random_() % n; }
  bool chance(std::size_t one_in) { return below(one_in) == 0; }

  Leaf<IntKeys> leaf(Image& image) const { return {image.data(), kGeometry}; }

  static std::pair<std::uint64_t, std::uint64_t> fences(const Leaf<IntKeys>& node) {
    return {IntKeys::short_key(node.low()),
            node.has(kHasHigh) ? IntKeys::short_key(node.high()) : kKeys};
  }

  void tick() { moments_.push_back({memory_, level_, ref_}); }

  // Lands one line of the private image, and lets the rest of the level change.
  void land(std::size_t line, std::uint64_t frozen_from = 0, std::uint64_t frozen_to = 0) {
    std::memcpy(memory_.data() + line * kLineBytes, image_.data() + line * kLineBytes, kLineBytes);
    tick();
    if (!chance(2)) return;
    const std::uint64_t key = below(kKeys);
    const bool ours = ref_ && key >= low_ && key < high_;
    if (ours || (key >= frozen_from && key < frozen_to)) return;
    level_[key] = !level_[key];
    tick();
  }
  void land_lines(std::uint64_t frozen_from = 0, std::uint64_t frozen_to = 0) {
    std::array<std::size_t, kLines - 1> order{1, 2, 3};
    std::ranges::shuffle(order, random_);
    for (const std::size_t line : order) land(line, frozen_from, frozen_to);
  }

  void be_born() {
    const std::uint64_t a = below(kKeys);
    const std::uint64_t b = below(kKeys);
    low_ = std::min(a, b);
    high_ = std::min(std::min(kKeys, low_ + 6), std::max(a, b) + 1);
    incarnation_ =
        rules_.versions_go_on ? last_version_ + 1 : 1 + static_cast<std::uint32_t>(below(3));
    birth_ = incarnation_;
    if (!rules_.versions_go_on) birth_ = ++births_without_versions_;
    image_.fill(std::byte{0});
    Leaf<IntKeys> node = leaf(image_);
    node.initialize(kIndexId, 0, incarnation_, IntKeys::cell(low_));
    store(node.bytes() + HeaderAt::kBirth, birth_);
    set_high(node);
    std::size_t slot = 0;
    for (std::uint64_t key = low_; key < high_; ++key) {
      if (level_[key]) node.set_value(slot++, key, "v");
    }
    // Nobody can reach it: in any order, but its range does not change meanwhile.
    const std::uint64_t from = low_;
    const std::uint64_t to = high_;
    std::array<std::size_t, kLines> order{0, 1, 2, 3};
    std::ranges::shuffle(order, random_);
    for (const std::size_t line : order) land(line, from, to);
    ref_ = NodeRef(Address(0, 4096), birth_);
    last_version_ = incarnation_;
    tick();
  }

  void set_high(Leaf<IntKeys>& node) const {
    if (high_ < kKeys) {
      node.set_high(IntKeys::cell(high_));
    } else {
      node.set_flag(kHasHigh, false);
    }
  }

  void change() {
    if (!ref_) return be_born();
    switch (below(12)) {
      case 0:
        return split();
      case 1:
      case 2:
        return absorb();
      case 3:
        return die();
      default:
        return write_entry();
    }
  }

  void write_entry() {
    Leaf<IntKeys> node = leaf(image_);
    const std::uint64_t key = low_ + below(high_ - low_);
    std::size_t slot = node.find(key);
    if (level_[key]) {
      if (!rules_.entries_stay && chance(2)) return move_entry(slot);
      node.clear(slot);
    } else {
      // Any free place will do.
      std::vector<std::size_t> places;
      for (std::size_t i = 0; i < node.capacity(); ++i) {
        if (node.empty(i)) places.push_back(i);
      }
      if (places.empty()) return;
      slot = places[below(places.size())];
      node.set_value(slot, key, "v");
    }
    node.bump_entry_version(node.line_of(slot));
    level_[key] = !level_[key];
    land(node.line_of(slot));
  }

  void move_entry(std::size_t slot) {
    Leaf<IntKeys> node = leaf(image_);
    for (std::size_t to = 0; to < node.capacity(); ++to) {
      if (!node.empty(to) || node.line_of(to) == node.line_of(slot)) continue;
      node.copy(to, node, slot);
      land(node.line_of(to));
      node.clear(slot);
      land(node.line_of(slot));
      return;
    }
  }

  void set_versions() {
    Leaf<IntKeys> node = leaf(image_);
    ++last_version_;
    for (std::size_t i = 0; i < kLines; ++i) node.set_node_version(i, last_version_);
  }

  void split() {
    if (high_ - low_ < 2) return;
    Leaf<IntKeys> node = leaf(image_);
    const std::uint64_t middle = low_ + 1 + below(high_ - low_ - 1);
    for (std::uint64_t key = middle; key < high_; ++key) {
      if (level_[key]) node.clear(node.find(key));
    }
    const std::uint64_t old_high = high_;
    if (rules_.header_first) {
      high_ = middle;  // from the moment the header lands, the right node may change
      set_high(node);
      set_versions();
      land(0);
      land_lines();
    } else {
      set_versions();
      land_lines(middle, old_high);
      high_ = middle;
      set_high(node);
      land(0);
    }
  }

  void absorb() {
    const std::uint64_t upper = std::min(kKeys, high_ + 1 + below(4));
    if (upper == high_ || upper - low_ > 8) return;
    Leaf<IntKeys> node = leaf(image_);
    const std::uint64_t frozen = high_;
    for (std::uint64_t key = high_; key < upper; ++key) {
      if (level_[key]) node.set_value(node.free_slot(), key, "v");
    }
    high_ = upper;
    set_high(node);
    set_versions();
    node.set_floor(last_version_);
    if (rules_.lines_first) {
      land_lines(frozen, upper);
      land(0);
    } else {
      land(0);
      land_lines(frozen, upper);
    }
  }

  void die() {
    Leaf<IntKeys> node = leaf(image_);
    node.set_flag(kDead, true);
    node.set_node_version(0, ++last_version_);
    ref_ = NodeRef{};  // its left neighbour has its keys, and they change from here on
    land(0);
    for (int i = 0; i < 3; ++i) land(0);
  }

  Verdict judge(const Image& image, const NodeRef& ref) const {
    Image copy = image;
    const Node<IntKeys> node(copy.data(), copy.size());
    Verdict verdict = node.judge_header(kIndexId, 0, ref);
    if (verdict == Verdict::kGood && !node.versions_agree()) verdict = Verdict::kTorn;
    if (verdict != Verdict::kTorn || (rules_.floor && rules_.versions)) return verdict;
    for (std::size_t i = 0; i < kLines; ++i) {
      if (rules_.floor && node.node_version(i) < node.floor()) return Verdict::kTorn;
      if (rules_.versions && node.node_version(i) > node.version()) return Verdict::kTorn;
    }
    return Verdict::kGood;
  }

  bool misled_once() {
    const std::size_t begin = below(moments_.size());
    const std::size_t end = std::min(moments_.size(), begin + 1 + below(24));
    const NodeRef ref = moments_[begin].ref;
    if (!ref) return false;
    Image seen{};
    for (std::size_t line = 0; line < kLines; ++line) {
      const Image& then = moments_[begin + below(end - begin)].memory;
      std::memcpy(seen.data() + line * kLineBytes, then.data() + line * kLineBytes, kLineBytes);
    }
    if (judge(seen, ref) != Verdict::kGood) return false;
    ++believed_;
    const Leaf<IntKeys> node = leaf(seen);
    const auto [low, high] = fences(node);
    for (std::uint64_t key = low; key < high; ++key) {
      bool always = true;
      bool ever = false;
      for (std::size_t at = begin; at < end; ++at) {
        always &= moments_[at].level[key];
        ever |= moments_[at].level[key];
      }
      const bool found = node.find(key) != node.capacity();
      if ((always && !found) || (!ever && found)) return true;
    }
    return false;
  }

  const Rules rules_;
  std::mt19937_64 random_;
  std::vector<Moment> moments_;
  Presence level_{};
  Image memory_{};  // what readers see
  Image image_{};   // the writer's own copy
  NodeRef ref_;
  std::uint64_t low_ = 0;
  std::uint64_t high_ = kKeys;
  std::uint32_t incarnation_ = 0;
  std::uint32_t birth_ = 0;
  std::uint32_t births_without_versions_ = 0;
  std::uint32_t last_version_ = 0;
  std::size_t believed_ = 0;
};

struct Tally {
  std::size_t misleading = 0;
  std::size_t dying_badly = 0;
  std::size_t believed = 0;
};

Tally try_histories(const Rules& rules, std::size_t histories) {
  Tally tally;
  for (std::size_t seed = 0; seed < histories; ++seed) {
    History history(rules, seed);
    history.run(80);
    if (history.misleads(400)) ++tally.misleading;
    if (history.dies_badly()) ++tally.dying_badly;
    tally.believed += history.believed();
  }
  return tally;
}

TEST(NodeLines, WhatIsBelievedIsRight) {
  const std::size_t histories = testing::scaled(1500, 50);
  const Tally tally = try_histories({}, histories);
  EXPECT_EQ(tally.misleading, 0);
  EXPECT_EQ(tally.dying_badly, 0);
  EXPECT_GT(tally.believed, histories * 50) << "a reader that believes nothing proves nothing";
}

TEST(NodeLines, EachRuleIsNeeded) {
  const std::size_t histories = testing::scaled(200, 50);
  EXPECT_GT(try_histories({.floor = false}, histories).misleading, 0);
  EXPECT_GT(try_histories({.versions = false}, histories).misleading, 0);
  // Readers are saved from these two by the versions. The keys are lost where the writer dies.
  EXPECT_GT(try_histories({.header_first = false}, histories).dying_badly, 0);
  EXPECT_GT(try_histories({.lines_first = false}, histories).dying_badly, 0);
  EXPECT_GT(try_histories({.entries_stay = false}, histories).misleading, 0);
  EXPECT_GT(try_histories({.versions_go_on = false}, histories).misleading, 0);
}

TEST(NodeRef, SurvivesEncoding) {
  for (const std::uint32_t birth : {0u, 1u, 63u, 64u, 0x3f'ff'ffu, 0x15'55'55u}) {
    const NodeRef ref(Address(513, 0x1234'5678'9a40), birth);
    EXPECT_EQ(NodeRef::decode(ref.word(), ref.high()), ref);
  }
  EXPECT_EQ(NodeRef(Address(0, 64), 0x7f'ff'ff'ff).birth, NodeRef::kBirthMask);
  EXPECT_FALSE(NodeRef{});
}

TEST(Node, IsStaleThroughAnotherReference) {
  Image image{};
  Node<IntKeys> node(image.data(), image.size());
  node.initialize(kIndexId, 2, 9, IntKeys::cell(5));
  const NodeRef ref(Address(0, 4096), 9);
  EXPECT_EQ(node.judge_header(kIndexId, 2, ref), Verdict::kGood);
  EXPECT_TRUE(node.versions_agree());
  EXPECT_EQ(node.judge_header(kIndexId + 1, 2, ref), Verdict::kStale);
  EXPECT_EQ(node.judge_header(kIndexId, 1, ref), Verdict::kStale);
  EXPECT_EQ(node.judge_header(kIndexId, 2, NodeRef(ref.address, 10)), Verdict::kStale);
  node.set_flag(kDead, true);
  EXPECT_EQ(node.judge_header(kIndexId, 2, ref), Verdict::kDead);
}

template <class K>
void round_trip_inner_entries(const typename K::Cell& a, const typename K::Cell& b) {
  Image image{};
  InnerNode<K> node(image.data(), image.size());
  node.initialize(kIndexId, 1, 3, K::cell(K::lowest()));
  const NodeRef child(Address(3, 0xabc0), 0x2a'bc'de);
  for (std::size_t slot = 0; slot < node.capacity(); ++slot) {
    EXPECT_TRUE(node.empty(slot));
    node.set(slot, slot % 2 == 0 ? a : b, NodeRef(child.address + 64 * slot, child.birth));
  }
  node.clear(1);
  for (std::size_t slot = 0; slot < node.capacity(); ++slot) {
    EXPECT_EQ(node.empty(slot), slot == 1);
    if (slot == 1) continue;
    EXPECT_TRUE(node.cell(slot) == (slot % 2 == 0 ? a : b));
    EXPECT_EQ(node.child(slot), NodeRef(child.address + 64 * slot, child.birth));
  }
  // Entries touch neither header nor versions.
  EXPECT_EQ(node.judge_header(kIndexId, 1, NodeRef(Address(0, 64), 3)), Verdict::kGood);
  EXPECT_TRUE(node.versions_agree());
  EXPECT_TRUE(node.low() == K::cell(K::lowest()));
  EXPECT_EQ(node.lock_word(), 0);
}

TEST(InnerNode, KeepsEntries) {
  round_trip_inner_entries<IntKeys>(IntKeys::cell(1), IntKeys::cell(~std::uint64_t{0}));
  round_trip_inner_entries<ByteKeys>(ByteKeys::cell("sixteen bytes ab"),
                                     ByteKeys::long_cell(700, pool::ItemPointer::from_raw(77), 88));
}

}  // namespace
}  // namespace pando::index
