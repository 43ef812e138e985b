#include "fabric/sim/nic.h"

#include <fmt/format.h>

#include <array>
#include <string>

namespace pando::fabric::sim {
namespace {

constexpr std::uint64_t kGiga = 1'000'000'000;

// The table of docs/simulation.md, "Presets": change both.
constexpr Preset kConnectX5{.name = "connectx5-100g",
                            .summary = "ConnectX-5 on PCIe 3.0 x16, 100 Gb/s RoCEv2",
                            .verbs_per_second = 45'000'000,
                            .link_bytes_per_second = 12'500'000'000,
                            .dma_bytes_per_second = 14'300'000'000,
                            .round_trip = 2 * kMicrosecond,
                            .dma_latency = 550 * kNanosecond,
                            .dma_least = 64,
                            .host_atomic = 550 * kNanosecond,
                            .onchip_atomic = kSecond / 45'000'000,
                            .onchip_bytes = 128 << 10,
                            // One basic block of a send queue: MLX5_SEND_WQE_BB in rdma-core,
                            // providers/mlx5/mlx5dv.h. A READ's segments fill 48 bytes of it, an
                            // atomic's all 64.
                            .work_request = 64,
                            .inline_limit = 256,
                            .packet_payload = 4096,
                            .packet_overhead = 82,
                            .request_header = 16,
                            .atomic_header = 28,
                            .response_header = 4};

// The same link and verb rate: what is new is the bus, and more memory on the card.
constexpr Preset connectx6() {
  Preset preset = kConnectX5;
  preset.name = "connectx6-100g";
  preset.summary = "ConnectX-6 on PCIe 4.0 x16, 100 Gb/s RoCEv2";
  preset.dma_bytes_per_second = 28'600'000'000;
  preset.onchip_bytes = 256 << 10;
  return preset;
}

constexpr std::array kPresets = {
    kConnectX5,
    connectx6(),
    Preset{.name = "cxl",
           .summary = "CXL 2.0 memory behind a switch, PCIe 5.0 x16",
           .verbs_per_second = 926'000'000,
           .link_bytes_per_second = 63 * kGiga,
           .dma_bytes_per_second = 63 * kGiga,
           .round_trip = 250 * kNanosecond,
           .dma_latency = 100 * kNanosecond,
           .dma_least = 64,
           .host_atomic = 250 * kNanosecond,
           .onchip_atomic = 250 * kNanosecond,
           .onchip_bytes = 0,
           .work_request = 0,
           .inline_limit = 1 << 30,
           .packet_payload = 64,
           .packet_overhead = 4,
           .request_header = 0,
           .atomic_header = 0,
           .response_header = 0},
};

constexpr std::uint64_t kWordBytes = 8;

}  // namespace

std::uint64_t Preset::packets(std::uint64_t bytes) const {
  return bytes == 0 ? 1 : (bytes + packet_payload - 1) / packet_payload;
}

std::uint64_t Preset::request_bytes(const Verb& verb) const {
  switch (verb.kind) {
    case VerbKind::kRead:
      return packet_overhead + request_header;
    case VerbKind::kWrite:
      return packets(verb.length) * packet_overhead + request_header + verb.length;
    default:
      return packet_overhead + atomic_header;
  }
}

std::uint64_t Preset::response_bytes(const Verb& verb) const {
  switch (verb.kind) {
    case VerbKind::kRead:
      return packets(verb.length) * (packet_overhead + response_header) + verb.length;
    case VerbKind::kWrite:
      return packet_overhead + response_header;
    default:
      return packet_overhead + response_header + kWordBytes;
  }
}

Time Preset::to_start(const Verb& verb) const {
  const std::uint64_t bytes = std::uint64_t{work_request} + (fetches_data(verb) ? verb.length : 0);
  return bytes == 0 ? 0 : on_bus(bytes);
}

Time Preset::propagation() const {
  const Verb lone{.kind = VerbKind::kRead, .length = kWordBytes};
  const Time modelled = to_start(lone) + 2 * verb_slot() + 2 * on_wire(request_bytes(lone)) +
                        on_bus(kWordBytes) + dma_latency + 2 * on_wire(response_bytes(lone));
  return round_trip > modelled ? (round_trip - modelled) / 2 : 0;
}

std::span<const Preset> presets() { return kPresets; }

Result<const Preset*> find_preset(std::string_view name) {
  std::string known;
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return &preset;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", preset.name);
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("there is no preset '{}'; there are {}", name, known));
}

}  // namespace pando::fabric::sim
