#include "support/memory_nodes.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/sanitizers.h"
#include "fabric/conformance.h"
#include "fabric/open.h"

namespace pando::fabric {
namespace {

using pando::testing::MemoryNodes;

constexpr std::uint64_t kRoundsOfNodes =
    PANDO_THREAD_SANITIZER || PANDO_ADDRESS_SANITIZER ? 500 : 2'000;

// Memory nodes for all tests of the process: fabrics do not own them. Gone before main() returns.
class SharedNodes final : public ::testing::Environment {
 public:
  void TearDown() override { all_.clear(); }
  MemoryNodes& of(std::size_t count, bool rdma = false, bool tls = false) {
    return all_
        .try_emplace(std::tuple(count, rdma, tls),
                     MemoryNodes::Options{.nodes = count, .rdma = rdma, .tls = tls})
        .first->second;
  }

 private:
  std::map<std::tuple<std::size_t, bool, bool>, MemoryNodes> all_;
};
SharedNodes* const kNodes = new SharedNodes;  // GoogleTest owns it from the next line on
[[maybe_unused]] const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(kNodes);

FabricUnderTest tcp(std::string name, std::size_t nodes, std::string parameters = "") {
  return {std::move(name), [=] { return open_fabric(kNodes->of(nodes).tcp_url() + parameters); },
          kRoundsOfNodes};
}

// As tcp, but for how bytes travel: races were looked for there.
FabricUnderTest tls(std::string name, std::size_t nodes) {
  return {std::move(name),
          [=] {
            const MemoryNodes& all = kNodes->of(nodes, false, true);
            return open_fabric(all.tcp_url() + "?" + all.tls_words());
          },
          kRoundsOfNodes / 4};
}

FabricUnderTest mapped(std::string name, std::size_t nodes, std::string parameters = "") {
  return {std::move(name), [=] { return open_fabric(kNodes->of(nodes).mapped_url() + parameters); },
          10 * kRoundsOfNodes};
}

// Where there is a device. Soft-RoCE in a guest takes its time.
std::vector<FabricUnderTest> rdma_fabrics() {
  std::vector<FabricUnderTest> all;
  if (pando::testing::rdma_address() == nullptr) return all;
  for (const std::size_t nodes : {1u, 3u}) {
    all.push_back(
        {nodes == 1 ? "rdma" : "rdma_3_nodes",
         [nodes] { return open_fabric(kNodes->of(nodes, true).rdma_url() + "?timeout=20000"); },
         200});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Rdma, FabricConformance, ::testing::ValuesIn(rdma_fabrics()),
                         name_of_fabric);

INSTANTIATE_TEST_SUITE_P(Mapped, FabricConformance,
                         ::testing::Values(mapped("mapped", 1), mapped("mapped_3_nodes", 3),
                                           mapped("mapped_emulated", 1, "?masked_cas=emulated")),
                         name_of_fabric);

INSTANTIATE_TEST_SUITE_P(Tcp, FabricConformance,
                         ::testing::Values(tcp("tcp", 1), tcp("tcp_3_nodes", 3),
                                           tcp("tcp_emulated", 1, "?masked_cas=emulated"),
                                           tls("tcp_tls", 1)),
                         name_of_fabric);

}  // namespace
}  // namespace pando::fabric
