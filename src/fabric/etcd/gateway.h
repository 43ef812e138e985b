// What is said to etcd and understood of it: requests and answers of its v3 JSON gateway, as text.
// Pure functions; client.h carries the text. Answers are checked: what is not as etcd has it is
// kCorrupt, and never throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <pando/result.h>

namespace pando::fabric::etcd {

using Lease = std::int64_t;  // 0: none

struct KeyValue {
  std::string key;
  std::string value;
  std::int64_t revision = 0;  // when it was last put; counts over all of etcd
  friend bool operator==(const KeyValue&, const KeyValue&) = default;
};

// A key as it was read. Revision 0: it was not there.
struct Unchanged {
  std::string key;
  std::int64_t revision = 0;
};

struct Put {
  std::string key;
  std::string value;
  Lease lease = 0;  // the key goes with it
};

std::string base64(std::string_view bytes);
// Nothing where it is no base64.
std::optional<std::string> from_base64(std::string_view text);

// REQUIRES: `prefix` is not empty, and does not end with the byte 255.
std::string range_request(std::string_view prefix);
Result<std::vector<KeyValue>> parse_range(std::string_view answer);

std::string transact_request(std::span<const Unchanged> where, std::span<const Put> puts);
Result<bool> parse_transact(std::string_view answer);

std::string grant_request(std::chrono::seconds time);
Result<Lease> parse_grant(std::string_view answer);

std::string lease_request(Lease lease);  // to keep it alive, or to revoke it
// False: there is no such lease any more.
Result<bool> parse_keep_alive(std::string_view answer);

// What etcd says of a request that failed; the text itself where it does not say it its usual way.
std::string parse_failure(std::string_view answer);

}  // namespace pando::fabric::etcd
