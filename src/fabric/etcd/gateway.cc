#include "fabric/etcd/gateway.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <nlohmann/json.hpp>

namespace pando::fabric::etcd {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxQuoted = 200;

std::unexpected<Error> odd(std::string_view answer) {
  return fail(ErrorCode::kCorrupt, "etcd answers something that is not understood: " +
                                       std::string(answer.substr(0, kMaxQuoted)));
}

// The object that an answer is. Nothing where it is none.
std::optional<Json> parse_object(std::string_view answer) {
  Json json = Json::parse(answer, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  return json;
}

// 64-bit integers travel as strings, and are left out where they are 0.
std::optional<std::int64_t> integer(const Json& object, const char* name) {
  const auto at = object.find(name);
  if (at == object.end()) return 0;
  if (at->is_number_integer()) return at->get<std::int64_t>();
  if (!at->is_string()) return std::nullopt;
  const auto& text = at->get_ref<const std::string&>();
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Bytes travel as base64, and are left out where there are none.
std::optional<std::string> bytes(const Json& object, const char* name) {
  const auto at = object.find(name);
  if (at == object.end()) return std::string();
  if (!at->is_string()) return std::nullopt;
  return from_base64(at->get_ref<const std::string&>());
}

std::optional<KeyValue> key_value(const Json& entry) {
  if (!entry.is_object()) return std::nullopt;
  auto key = bytes(entry, "key");
  auto value = bytes(entry, "value");
  const auto revision = integer(entry, "mod_revision");
  if (!key || !value || !revision) return std::nullopt;
  return KeyValue{std::move(*key), std::move(*value), *revision};
}

}  // namespace

std::string base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // it ends with a zero
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes(text.size() / 4 * 3, '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     static_cast<int>(text.size()));
  if (length < 0) return std::nullopt;
  bytes.resize(static_cast<std::size_t>(length) - padding);
  // The library forgives white space and padding in odd places: only what it would write itself.
  if (base64(bytes) != text) return std::nullopt;
  return bytes;
}

std::string range_request(std::string_view prefix) {
  assert(!prefix.empty() && prefix.back() != '\xff');
  std::string end(prefix);
  ++end.back();
  return Json{{"key", base64(prefix)}, {"range_end", base64(end)}}.dump();
}

Result<std::vector<KeyValue>> parse_range(std::string_view answer) {
  const auto json = parse_object(answer);
  if (!json || !json->contains("header")) return odd(answer);
  std::vector<KeyValue> found;
  const auto entries = json->find("kvs");
  if (entries == json->end()) return found;
  if (!entries->is_array()) return odd(answer);
  for (const Json& entry : *entries) {
    auto parsed = key_value(entry);
    if (!parsed) return odd(answer);
    found.push_back(std::move(*parsed));
  }
  // etcd cuts nothing off unless it is asked to; others might.
  const auto more = json->find("more");
  if (more != json->end() && *more == true) return odd(answer);
  return found;
}

std::string transact_request(std::span<const Unchanged> where, std::span<const Put> puts) {
  Json request{{"compare", Json::array()}, {"success", Json::array()}};
  for (const Unchanged& key : where) {
    request["compare"].push_back({{"target", "MOD"},
                                  {"result", "EQUAL"},
                                  {"key", base64(key.key)},
                                  {"mod_revision", std::to_string(key.revision)}});
  }
  for (const Put& put : puts) {
    Json what{{"key", base64(put.key)}, {"value", base64(put.value)}};
    if (put.lease != 0) what["lease"] = std::to_string(put.lease);
    request["success"].push_back({{"request_put", std::move(what)}});
  }
  return request.dump();
}

Result<bool> parse_transact(std::string_view answer) {
  const auto json = parse_object(answer);
  if (!json || !json->contains("header")) return odd(answer);
  const auto succeeded = json->find("succeeded");
  if (succeeded == json->end()) return false;
  if (!succeeded->is_boolean()) return odd(answer);
  return succeeded->get<bool>();
}

std::string grant_request(std::chrono::seconds time) {
  return Json{{"TTL", std::to_string(time.count())}}.dump();
}

Result<Lease> parse_grant(std::string_view answer) {
  const auto json = parse_object(answer);
  const auto lease = json ? integer(*json, "ID") : std::nullopt;
  if (!lease || *lease == 0) return odd(answer);
  return *lease;
}

std::string lease_request(Lease lease) { return Json{{"ID", std::to_string(lease)}}.dump(); }

Result<bool> parse_keep_alive(std::string_view answer) {
  const auto json = parse_object(answer);
  if (!json) return odd(answer);
  const auto result = json->find("result");
  if (result == json->end() || !result->is_object()) return odd(answer);
  const auto time = integer(*result, "TTL");
  if (!time) return odd(answer);
  return *time > 0;
}

std::string parse_failure(std::string_view answer) {
  if (const auto json = parse_object(answer)) {
    for (const char* const name : {"message", "error"}) {
      const auto at = json->find(name);
      if (at != json->end() && at->is_string()) return at->get<std::string>();
    }
  }
  std::string text(answer.substr(0, kMaxQuoted));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace pando::fabric::etcd
