#include "fabric/node/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

namespace pando::fabric::node {

Result<ClientId> Admission::new_client() {
  // Ids that were fenced without having been given could not join.
  std::uint32_t next = std::max(header_.last_client, header_.join_floor);
  do {
    if (next == std::numeric_limits<std::uint32_t>::max()) {
      return fail(ErrorCode::kOutOfMemory, "the memory node has no client ids left");
    }
    ++next;
  } while (std::ranges::count(header_.fenced, next) > 0);
  header_.last_client = next;
  return next;
}

std::uint32_t* Admission::find(ClientId client) const {
  const std::span all(header_.admitted);
  const auto at = std::ranges::find(all, client);
  return at == all.end() ? nullptr : &*at;
}

bool Admission::admitted(ClientId client) const { return client != 0 && find(client) != nullptr; }

std::size_t Admission::count() const {
  return kMaxClients - static_cast<std::size_t>(std::ranges::count(header_.admitted, 0u));
}

Status Admission::join(ClientId client) {
  if (client == 0) return fail(ErrorCode::kInvalidArgument, "client 0 is nobody");
  if (admitted(client)) return {};
  if (client <= header_.join_floor || std::ranges::count(header_.fenced, client) > 0) {
    return fail(ErrorCode::kFenced, fmt::format("client {} was taken for dead", client));
  }
  std::uint32_t* const place = find(0);
  if (place == nullptr) {
    return fail(ErrorCode::kBusy,
                fmt::format("the memory node has {} clients and takes no more", kMaxClients));
  }
  *place = client;
  return {};
}

void Admission::leave(ClientId client) {
  if (client == 0) return;
  if (std::uint32_t* const place = find(client)) *place = 0;
}

void Admission::fence(ClientId client) {
  if (client == 0) return;
  leave(client);
  const std::span all(header_.fenced);
  if (client <= header_.join_floor || std::ranges::count(all, client) > 0) return;
  auto place = std::ranges::find(all, 0u);
  if (place == all.end()) {
    place = std::ranges::min_element(all);
    header_.join_floor = *place;
  }
  // The floor may have risen above this one or others.
  *place = client > header_.join_floor ? client : 0;
  for (std::uint32_t& each : all) {
    if (each <= header_.join_floor) each = 0;
  }
}

}  // namespace pando::fabric::node
