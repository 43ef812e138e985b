// A memory node, and a peer that says anything at all: as a stranger, or after it was let in and
// with the right region key. The node must go on serving.
//
// An input: a byte (0 to 2: let in for verbs, for mapping, for control; else a stranger), then
// messages: a kind, two bytes of length, the body.
#include <poll.h>

#include <memory>
#include <string>
#include <thread>

#include "fabric/wire/control.h"
#include "fuzz/input.h"
#include "support/memory_nodes.h"

namespace {

using namespace pando::fabric;
using namespace std::chrono_literals;
using pando::testing::Input;
using pando::testing::MemoryNodes;
using pando::testing::require;

// A node, anew from time to time: those who are let in and do not leave stay known to it.
wire::Place node_place() {
  static std::unique_ptr<MemoryNodes> nodes;
  static unsigned used = 0;
  if (used++ % 500 == 0) {
    nodes.reset();
    nodes = std::make_unique<MemoryNodes>(MemoryNodes::Options{.bytes = 1 << 20});
  }
  const std::string url = nodes->mapped_url();
  return wire::parse_place(url.substr(url.find(':') + 1)).value();
}

wire::Bytes messages(Input& input, std::uint64_t region_key) {
  wire::Bytes out;
  while (!input.empty()) {
    const auto kind = static_cast<wire::Kind>(input.take<std::uint8_t>());
    const auto body = input.take_bytes(input.take<std::uint16_t>());
    const wire::Frame frame{
        .bytes = static_cast<std::uint32_t>(body.size()), .kind = kind, .tag = 1};
    const auto* const head = reinterpret_cast<const std::byte*>(&frame);
    out.insert(out.end(), head, head + sizeof(frame));
    out.insert(out.end(), body.begin(), body.end());
    if (kind == wire::Kind::kBatch && body.size() >= sizeof(region_key)) {
      std::memcpy(out.data() + out.size() - body.size(), &region_key, sizeof(region_key));
    }
  }
  return out;
}

// Sends all, then reads until the node has closed.
void talk(const wire::Socket& socket, std::span<const std::byte> bytes) {
  std::array<std::byte, 4096> answer;
  bool sending = true;
  for (;;) {
    if (sending) {
      const auto sent = bytes.empty() ? std::optional<std::size_t>(0) : socket.send(bytes);
      if (!sent) return;
      bytes = bytes.subspan(*sent);
      if (bytes.empty()) {
        socket.end_sending();
        sending = false;
      }
    }
    const auto events = static_cast<short>(POLLIN | (sending ? POLLOUT : 0));
    require(wire::wait_for(socket.get(), events, std::chrono::steady_clock::now() + 10s),
            "the node closes what its peer has ended");
    if (!socket.receive(answer)) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const wire::Place place = node_place();
  const auto role = input.take<std::uint8_t>();
  if (role > 2) {
    const auto socket = wire::begin_connect(place);
    require(socket.has_value(), "the node listens");
    talk(*socket, messages(input, 0));
    return 0;
  }
  const auto purpose = static_cast<wire::Purpose>(role + 1);
  const bool joins = purpose != wire::Purpose::kControl;
  const auto link =
      wire::ControlLink::open(place, "", "", {.purpose = purpose, .joins = joins}, 10s);
  if (!link) {
    // Those before it may have fenced whom they liked; the node itself must be well.
    const auto other =
        wire::ControlLink::open(place, "", "", {.purpose = wire::Purpose::kControl}, 10s);
    require(other.has_value(), "the node answers");
    return 0;
  }
  talk(link->socket(), messages(input, link->welcome().region_key));
  return 0;
}
