#include "support/memory_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/sanitizers.h"
#include "fabric/conformance.h"
#include "fabric/open.h"
#include "fabric/tcp/tcp.h"

namespace pando::fabric {
namespace {

using pando::testing::MemoryNodes;
using ::testing::HasSubstr;

constexpr std::uint64_t kRounds = PANDO_THREAD_SANITIZER || PANDO_ADDRESS_SANITIZER ? 500 : 2'000;

// The memory nodes live as long as the process: fabrics do not own them.
MemoryNodes& shared_nodes(std::size_t count) {
  static std::map<std::size_t, MemoryNodes> all;
  return all.try_emplace(count, MemoryNodes::Options{.nodes = count}).first->second;
}

FabricUnderTest tcp(std::string name, std::size_t nodes, std::string parameters = "") {
  return {std::move(name), [=] { return open_fabric(shared_nodes(nodes).tcp_url() + parameters); },
          kRounds};
}

FabricUnderTest mapped(std::string name, std::size_t nodes, std::string parameters = "") {
  return {std::move(name),
          [=] { return open_fabric(shared_nodes(nodes).mapped_url() + parameters); }, 10 * kRounds};
}

INSTANTIATE_TEST_SUITE_P(Mapped, FabricConformance,
                         ::testing::Values(mapped("mapped", 1), mapped("mapped_3_nodes", 3),
                                           mapped("mapped_emulated", 1, "?masked_cas=emulated")),
                         name_of_fabric);

INSTANTIATE_TEST_SUITE_P(Tcp, FabricConformance,
                         ::testing::Values(tcp("tcp", 1), tcp("tcp_3_nodes", 3),
                                           tcp("tcp_emulated", 1, "?masked_cas=emulated")),
                         name_of_fabric);

}  // namespace
}  // namespace pando::fabric
