// What a client reads from a memory node that says anything at all: messages of a handshake, and
// answers to a batch.
#include <array>
#include <vector>

#include "fabric/wire/handshake.h"
#include "fuzz/input.h"

namespace {

using namespace pando::fabric;
using pando::testing::Input;
using pando::testing::require;

void come_in(std::span<const std::byte> bytes) {
  wire::ClientHandshake handshake("key", "cluster", {});
  wire::Bytes out;
  handshake.begin(out);
  while (!bytes.empty()) {
    const auto frame = wire::parse_frame(bytes, wire::kMaxBytesOfStrangers);
    if (!frame || !*frame) return;
    const auto body = bytes.subspan(sizeof(wire::Frame), (*frame)->bytes);
    const auto in = handshake.take(**frame, body, out);
    require(!in || !*in, "nobody without the key is believed");
    if (!in) return;
    bytes = bytes.subspan(sizeof(wire::Frame) + (*frame)->bytes);
  }
}

void read_answer(Input input) {
  constexpr std::size_t kBytes = 64;
  alignas(8) std::array<std::byte, kBytes> local;
  Batch batch;
  std::vector<std::uint32_t> verbs;
  const std::uint32_t count = input.take<std::uint8_t>() % 8u;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto kind = input.take<std::uint8_t>();
    const std::size_t length = kind / 5u % (kBytes + 1);
    switch (kind % 5) {
      case 0:
        batch.read(Address(0, 0), local.data(), length);
        break;
      case 1:
        batch.write(Address(0, 0), local.data(), length);
        break;
      case 2:
        batch.compare_swap(Address(0, 0), 1, 2);
        break;
      case 3:
        batch.masked_compare_swap(Address(0, 0), 1, 2, 3, 4, 5);
        break;
      default:
        batch.fetch_add(Address(0, 0), 1);
        break;
    }
    verbs.push_back(i);
  }
  const bool read = wire::read_answer(input.rest(), batch, verbs).has_value();
  for (std::uint32_t i = 0; read && i < count; ++i) {
    require(batch[i].outcome == Outcome::kExecuted, "all are executed where all is well");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  switch (input.take<std::uint8_t>() % 3) {
    case 0:
      come_in(input.rest());
      break;
    case 1:
      (void)wire::parse_status(input.rest());
      break;
    default:
      read_answer(input);
      break;
  }
  return 0;
}
