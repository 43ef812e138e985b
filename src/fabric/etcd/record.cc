#include "fabric/etcd/record.h"

#include <fmt/format.h>

#include <charconv>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>

#include "base/secret.h"

namespace pando::fabric::etcd {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxShown = 100;

std::string hex(std::uint64_t number) { return fmt::format("{:016x}", number); }

// In hexadecimal digits. Each part with its length, so that no two rows of parts look the same.
std::string sign(std::string_view key, std::initializer_list<std::string_view> parts,
                 const std::vector<std::string>& more = {}) {
  std::string message;
  const auto add = [&](std::string_view part) {
    message += fmt::format("{}:", part.size());
    message += part;
  };
  for (const std::string_view part : parts) add(part);
  for (const std::string& part : more) add(part);
  std::string text;
  for (const std::byte byte : base::sign(key, std::as_bytes(std::span(message)))) {
    text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  }
  return text;
}

// Takes the same time wherever they differ.
bool same(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

std::string sign_node(const MemoryNodeRecord& node, const std::vector<std::string>& places,
                      const Signing& by) {
  return sign(by.key,
              {"pando memory node", by.cluster, name_of(node.id), hex(node.life),
               std::to_string(node.bytes)},
              places);
}

std::string sign_life(NodeId id, std::uint64_t life, const Signing& by) {
  return sign(by.key, {"pando memory node id", by.cluster, name_of(id), hex(life)});
}

std::unexpected<Error> not_ours(const KeyValue& entry) {
  return fail(ErrorCode::kCorrupt,
              fmt::format("etcd's key '{}' was written by something else than this version's "
                          "memory nodes: {}",
                          entry.key, entry.value.substr(0, kMaxShown)));
}

std::unexpected<Error> not_signed(const KeyValue& entry, const Signing& by) {
  return fail(ErrorCode::kDenied,
              fmt::format("etcd's key '{}' is not signed with the key of cluster '{}': it was "
                          "written by somebody else, or by a memory node without this key",
                          entry.key, by.cluster));
}

// What follows the prefix; nothing where it has another one.
std::optional<NodeId> id_in(const KeyValue& entry, std::string_view prefix) {
  if (!entry.key.starts_with(prefix)) return std::nullopt;
  return parse_id(std::string_view(entry.key).substr(prefix.size()));
}

std::optional<std::string> text_in(const Json& object, const char* name) {
  const auto at = object.find(name);
  if (at == object.end() || !at->is_string()) return std::nullopt;
  return at->get_ref<const std::string&>();
}

// As they are written.
std::optional<std::vector<std::string>> places_in(const Json& object) {
  const auto at = object.find("places");
  if (at == object.end() || !at->is_array()) return std::nullopt;
  std::vector<std::string> places;
  for (const Json& place : *at) {
    if (!place.is_string()) return std::nullopt;
    places.push_back(place.get_ref<const std::string&>());
  }
  return places;
}

}  // namespace

std::optional<std::uint64_t> parse_number(std::string_view text, int base) {
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || problem != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<NodeId> parse_id(std::string_view text) {
  const auto id = parse_number(text, 10);
  if (!id || *id >= kMaxNodes) return std::nullopt;
  return static_cast<NodeId>(*id);
}

std::string name_of(NodeId id) { return fmt::format("{:05}", id); }

// ---- nodes/ID ----

std::string write_memory_node(const MemoryNodeRecord& node, const Signing& by) {
  std::vector<std::string> places;
  places.reserve(node.places.size());
  for (const wire::Place& place : node.places) places.push_back(place.to_string());
  Json record{{"life", hex(node.life)}, {"bytes", node.bytes}, {"places", places}};
  if (!by.key.empty()) record["signature"] = sign_node(node, places, by);
  return record.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<MemoryNodeRecord> parse_memory_node(const KeyValue& entry, std::string_view prefix,
                                           const Signing& by) {
  const Json json = Json::parse(entry.value, nullptr, false);
  const auto id = id_in(entry, prefix);
  if (!json.is_object() || !id) return not_ours(entry);
  const auto life_text = text_in(json, "life");
  const auto life = life_text ? parse_number(*life_text, 16) : std::nullopt;
  const auto bytes = json.find("bytes");
  const auto places = places_in(json);
  if (!life || bytes == json.end() || !bytes->is_number_unsigned() || !places) {
    return not_ours(entry);
  }
  MemoryNodeRecord node{
      .id = *id, .life = *life, .bytes = bytes->get<std::uint64_t>(), .places = {}};
  if (!by.key.empty() &&
      !same(text_in(json, "signature").value_or(""), sign_node(node, *places, by))) {
    return not_signed(entry, by);
  }
  for (const std::string& text : *places) {
    auto place = wire::parse_place(text);
    if (!place) return not_ours(entry);
    node.places.push_back(std::move(*place));
  }
  return node;
}

// ---- ids/ID ----

std::string write_life(NodeId id, std::uint64_t life, const Signing& by) {
  if (by.key.empty()) return hex(life);
  return hex(life) + " " + sign_life(id, life, by);
}

Result<TakenId> parse_life(const KeyValue& entry, std::string_view prefix, const Signing& by) {
  const std::string_view text = entry.value;
  const std::size_t space = text.find(' ');
  const auto id = id_in(entry, prefix);
  const auto life = parse_number(text.substr(0, space), 16);
  if (!id || !life) return not_ours(entry);
  const std::string_view signature =
      space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
  if (!by.key.empty() && !same(signature, sign_life(*id, *life, by))) {
    return not_signed(entry, by);
  }
  return TakenId{*id, *life};
}

}  // namespace pando::fabric::etcd
