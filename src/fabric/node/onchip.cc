#include "fabric/node/onchip.h"

#include <atomic>

namespace pando::fabric::node {
namespace {

std::span<std::byte> onchip(const NodeMemory& memory) {
  return {memory.onchip(), memory.onchip_bytes()};
}

void mark(const NodeMemory& memory, bool in_card) {
  std::atomic_ref(memory.header().onchip_in_card).store(in_card ? 1 : 0);
}

}  // namespace

Status move_to_card(const NodeMemory& memory, CardMemory& card) {
  mark(memory, true);
  const Status filled = card.fill(onchip(memory));
  if (!filled) mark(memory, false);
  return filled;
}

Status move_back(const NodeMemory& memory, CardMemory& card) {
  if (Status fetched = card.fetch(onchip(memory)); !fetched) return fetched;
  mark(memory, false);
  return {};
}

}  // namespace pando::fabric::node
