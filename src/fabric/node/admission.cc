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
  stays_at(place) = 0;
  *place = client;
  return {};
}

std::uint8_t& Admission::stays_at(const std::uint32_t* place) const {
  return header_.stays[place - header_.admitted];
}

Status Admission::stay(ClientId client, bool stays) {
  const std::uint32_t* const place = client == 0 ? nullptr : find(client);
  if (place == nullptr) {
    return fail(ErrorCode::kFenced, fmt::format("client {} is not let in here", client));
  }
  stays_at(place) = stays ? 1 : 0;
  return {};
}

bool Admission::stays(ClientId client) const {
  const std::uint32_t* const place = client == 0 ? nullptr : find(client);
  return place != nullptr && stays_at(place) != 0;
}

std::vector<ClientId> Admission::passing() const {
  std::vector<ClientId> clients;
  for (const std::uint32_t& place : header_.admitted) {
    if (place != 0 && stays_at(&place) == 0) clients.push_back(place);
  }
  return clients;
}

void Admission::leave(ClientId client) {
  if (client == 0) return;
  if (std::uint32_t* const place = find(client)) *place = 0;
}

Status Admission::fence(ClientId client) {
  if (client == 0) return fail(ErrorCode::kInvalidArgument, "there is no client 0");
  // The nodes that do not give ids know only those who came in.
  if (header_.last_client != 0 && client > header_.last_client) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("there is no client {}: the last that came in is {}", client,
                            header_.last_client));
  }
  leave(client);
  const std::span all(header_.fenced);
  if (client <= header_.join_floor || std::ranges::count(all, client) > 0) return {};
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
  return {};
}

}  // namespace pando::fabric::node
