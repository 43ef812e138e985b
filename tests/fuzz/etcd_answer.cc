// What clients and memory nodes make of anything at all that etcd, or who stands in its place,
// answers: as an answer of its gateway, and as a record that it keeps.
#include <string>
#include <string_view>
#include <vector>

#include "fabric/etcd/record.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pando::fabric::etcd;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)parse_transact(text);
  (void)parse_grant(text);
  (void)parse_keep_alive(text);
  (void)parse_failure(text);
  std::vector<KeyValue> entries = parse_range(text).value_or(std::vector<KeyValue>());
  entries.push_back({"/pando/a/nodes/00003", std::string(text), 1});
  for (const KeyValue& entry : entries) {
    const auto node = parse_memory_node(entry, "/pando/a/nodes/", {.cluster = "a", .key = ""});
    if (node) pando::testing::require(node->id < kMaxNodes, "ids are below their limit");
    (void)parse_life(entry, "/pando/a/ids/", {.cluster = "a", .key = ""});
    pando::testing::require(
        !parse_memory_node(entry, "/pando/a/nodes/", {.cluster = "a", .key = "nobody has it"}),
        "nothing is signed by chance");
  }
  return 0;
}
