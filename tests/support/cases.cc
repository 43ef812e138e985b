#include "support/cases.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <ranges>
#include <stdexcept>

#include "base/parse.h"
#include "base/sanitizers.h"
#include "index/registry.h"
#include "support/memory_nodes.h"
#include "support/toy_index.h"

namespace pando::testing {
namespace {

struct Named {
  std::string_view name;
  std::string_view text;
};

// One line an index kind; settings may follow the kind.
constexpr Named kIndexes[] = {
    {"sherman", "sherman"},
    {"chime", "chime"},
};

// The same with other settings, on one fabric only: every technique off; small nodes, so that trees
// are deep, whose locks share words.
constexpr Named kVariants[] = {
    {"sherman_bare",
     "sherman:cache=off,local_locks=off,lock_with_read=off,unlock_with_write=off,"
     "parallel_scan=off"},
    {"sherman_small", "sherman:leaf_bytes=256,inner_bytes=256,onchip_locks=on"},
    {"chime_bare",
     "chime:cache=off,lock_with_read=off,unlock_with_write=off,parallel_scan=off,vacancy=off,"
     "replicas=off,speculation=off"},
    {"chime_small", "chime:span=16,neighbourhood=4,inner_bytes=256"},
    {"chime_ordered", "chime:ordered_homes=on"},
};

// One line a fabric.
constexpr Named kFabrics[] = {
    {"embedded1node", "embedded:SIZE?nodes=1"},
    {"embedded2nodes", "embedded:SIZE?nodes=2"},
    {"sim2nodes", "sim:SIZE?nodes=2&adversary=1&huge=off"},
    // Two memory nodes, made for the test.
    {"mapped2nodes", "mapped:SIZE"},
    {"tcp2nodes", "tcp:SIZE"},
    {"rdma2nodes", "rdma:SIZE"},  // where there is a device: see memory_nodes.h
};

constexpr std::string_view kSizeMark = "SIZE";

IndexCase make_case(const Named& index, KeyType key_type, const Named& fabric) {
  const std::string keys = key_type == KeyType::kInteger ? "integer" : "bytes";
  const char separator = index.text.contains(':') ? ',' : ':';
  return {.name = std::string(index.name) + "_" + keys + "_" + std::string(fabric.name),
          .index = std::string(index.text) + separator + "keys=" + keys,
          .pool = std::string(fabric.text),
          .key_type = key_type};
}

// All that docs/testing.md leaves to `./pando test --all`. Who asks for cases by name means them.
bool every_pair() {
  return std::getenv("PANDO_TEST_ALL") != nullptr || std::getenv("PANDO_TEST_CASES") != nullptr;
}

// Whether the index at `place` of the list runs with these keys on this fabric: docs/testing.md has
// the reasons.
bool paired(std::size_t place, KeyType key_type, const Named& fabric) {
  const bool integers = key_type == KeyType::kInteger;
  const bool even = place % 2 == 0;
  const bool mapped = fabric.text.starts_with("mapped:");
  const bool beyond = mapped || fabric.text.starts_with("tcp:") || fabric.text.starts_with("rdma:");
  if (!beyond) return every_pair() || fabric.name != kFabrics[0].name;
  // Fabrics know no keys: one type of them is enough.
  if (every_pair() || fabric.text.starts_with("rdma:")) return integers == (even != mapped);
  // One fabric for each index, in turn; and of those of one fabric, one type of keys in turn.
  return mapped != even && integers == (place / 2 % 2 == 0);
}

bool wanted(const IndexCase& index_case) {
  const bool integers = index_case.key_type == KeyType::kInteger;
  const bool rdma = index_case.pool.starts_with("rdma:");
#ifdef PANDO_ON_REFERENCE
  if (rdma) return false;
#else
  if (rdma && rdma_address() == nullptr) return false;
#endif
  // Byte strings have no homes in their order.
  if (!integers && index_case.index.contains("ordered_homes")) return false;
  if (PANDO_THREAD_SANITIZER || PANDO_ADDRESS_SANITIZER) {
    // Each index once as it is and once with small nodes. The simulated fabric has one thread only,
    // so nothing new for one sanitizer; the other sees tests/check. The code of the fabrics beyond
    // one process is seen by tests/fabric and tests/node.
    const bool enough = index_case.variant ? index_case.name.contains("_small_")
                                           : index_case.name.contains("_embedded2nodes");
    if (!enough) return false;
  }
  const char* words = std::getenv("PANDO_TEST_CASES");
  if (words == nullptr) return true;
  return std::ranges::all_of(std::views::split(std::string_view(words), '+'), [&](auto word) {
    return index_case.name.contains(std::string_view(word));
  });
}

}  // namespace

#ifndef PANDO_ON_REFERENCE
namespace {

// The index that shows that index/common/ and pool/ are enough to make one (toy_index.h). Its costs
// are its own, and what sanitizers could see is seen by tests/check.
void add_toy(std::vector<IndexCase>& cases) {
  if (PANDO_THREAD_SANITIZER || PANDO_ADDRESS_SANITIZER) return;
  if (const Status added = index::add_kind(toy_kind()); !added) {
    throw std::runtime_error(added.error().message());
  }
  for (const KeyType key_type : {KeyType::kInteger, KeyType::kBytes}) {
    for (const std::size_t fabric : {1u, 2u}) {
      cases.push_back(make_case({"toy", "toy"}, key_type, kFabrics[fabric]));
      cases.back().variant = true;
      cases.back().slowdown = 10;
    }
  }
}

// Fabrics do not own their nodes, so these live on.
std::deque<MemoryNodes>& memory_nodes() {
  static std::deque<MemoryNodes> all;
  return all;
}

// Two memory nodes for every call.
std::string start_memory_nodes(std::string_view fabric, std::uint64_t bytes) {
  std::deque<MemoryNodes>& all = memory_nodes();
  const bool rdma = fabric.starts_with("rdma:");
  all.emplace_back(MemoryNodes::Options{.bytes = bytes / 2, .nodes = 2, .rdma = rdma});
  const MemoryNodes& nodes = all.back();
  // These tests ask for no failures, on machines that may be busy.
  return (rdma                            ? nodes.rdma_url()
          : fabric.starts_with("mapped:") ? nodes.mapped_url()
                                          : nodes.tcp_url()) +
         "?timeout=60000";
}

}  // namespace

void stop_memory_nodes() { memory_nodes().clear(); }
#else
void add_toy(std::vector<IndexCase>&) {}
void stop_memory_nodes() {}
#endif

std::string IndexCase::pool_url(std::string_view size) const {
#ifndef PANDO_ON_REFERENCE
  if (remote()) {
    return start_memory_nodes(pool, base::parse_size(size).value());
  }
#endif
  std::string url = pool;
  return url.replace(url.find(kSizeMark), kSizeMark.size(), size);
}

IndexOptions IndexCase::options() const {
  auto parsed = IndexOptions::parse(index);
  if (!parsed) throw std::runtime_error(index + ": " + parsed.error().message());
  return *parsed;
}

std::ostream& operator<<(std::ostream& out, const IndexCase& index_case) {
  return out << index_case.index << " on " << index_case.pool;
}

std::vector<IndexCase> all_cases() {
  std::vector<IndexCase> cases;
  for (const KeyType key_type : {KeyType::kInteger, KeyType::kBytes}) {
    for (std::size_t place = 0; place < std::size(kIndexes); ++place) {
      for (const Named& fabric : kFabrics) {
        if (!paired(place, key_type, fabric)) continue;
        cases.push_back(make_case(kIndexes[place], key_type, fabric));
      }
    }
    for (const Named& variant : kVariants) {
      cases.push_back(make_case(variant, key_type, kFabrics[0]));
      cases.back().variant = true;
    }
  }
  add_toy(cases);
  std::erase_if(cases, [](const IndexCase& each) { return !wanted(each); });
  return cases;
}

std::vector<IndexCase> cases_of_one_thread() {
  std::vector<IndexCase> cases = all_cases();
  if (PANDO_THREAD_SANITIZER && !every_pair()) {
    std::erase_if(cases, [](const IndexCase& each) {
      return !each.name.contains("_small_") || each.key_type != KeyType::kInteger;
    });
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<IndexCase>& info) { return info.param.name; }

}  // namespace pando::testing
