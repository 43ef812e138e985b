#include "index/sherman/options.h"

#include <fmt/format.h>

#include "base/parse.h"

namespace pando::index::sherman {

namespace {

constexpr std::size_t kMinNodeBytes = 256;
constexpr std::size_t kMaxNodeBytes = 64 << 10;

std::string on_off(bool on) { return on ? "on" : "off"; }

Status check_node_bytes(std::string_view name, std::size_t bytes) {
  if (bytes >= kMinNodeBytes && bytes <= kMaxNodeBytes && bytes % kLineBytes == 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}={}: must be a multiple of {} from {} to {}", name, bytes, kLineBytes,
                          kMinNodeBytes, kMaxNodeBytes));
}

}  // namespace

std::vector<Setting> Options::settings() {
  const Options standard;
  const IndexOptions spelled = standard.spell();
  const auto value = [&](const char* name) { return spelled.settings.find(name)->second; };
  return {
      {"keys", "integer", "key type: integer or bytes", true},
      {"leaf_bytes", value("leaf_bytes"), "size of a leaf", true, {"256", "256", "512", "1024"}},
      {"inner_bytes", value("inner_bytes"), "size of an inner node", true, {"256", "256", "512"}},
      {"inline_value", value("inline_value"),
       fmt::format("integer keys: values of up to this many bytes lie in the leaf ({} to {})",
                   kMinInlineValue, kMaxInlineValue),
       true},
      {"cache", value("cache"), "keep inner nodes on the compute side", false},
      {"local_locks", value("local_locks"), "queue in the compute node before a remote lock",
       false},
      {"handovers",
       value("handovers"),
       "hand a remote lock over within the compute node, at most this often in a row",
       false,
       {"0", "1", "16"}},
      {"lock_with_read", value("lock_with_read"), "lock and read a node in one round trip", false},
      {"unlock_with_write", value("unlock_with_write"),
       "write back and unlock a node in one round trip", false},
      {"onchip_locks", value("onchip_locks"), "keep lock words in the NICs' on-chip memory", true},
      {"merge", value("merge"), "merge nodes that empty", false},
      {"parallel_scan", value("parallel_scan"), "read the leaves of a scan in one batch", false},
  };
}

Result<Options> Options::parse(const IndexOptions& options) {
  Options parsed;
  parsed.key_type = options.key_type;
  for (const auto& [name, text] : options.settings) {
    const auto number = [&](std::size_t& into) -> Status {
      Result<std::uint64_t> value = base::parse_size(name, text);
      if (!value) return fail(value.error());
      into = *value;
      return {};
    };
    const auto flag = [&](bool& into) -> Status {
      Result<bool> value = base::parse_bool(name, text);
      if (!value) return fail(value.error());
      into = *value;
      return {};
    };
    Status status;
    std::size_t handovers = 0;
    if (name == "leaf_bytes") {
      status = number(parsed.leaf.bytes);
    } else if (name == "inner_bytes") {
      status = number(parsed.tree.inner_bytes);
    } else if (name == "inline_value") {
      status = number(parsed.leaf.value_bytes);
    } else if (name == "cache") {
      status = flag(parsed.tree.cache);
    } else if (name == "local_locks") {
      status = flag(parsed.tree.locks.local_table);
    } else if (name == "handovers") {
      status = number(handovers);
      if (status && handovers > 1000) {
        status = fail(ErrorCode::kInvalidArgument, "handovers: at most 1000");
      }
      parsed.tree.locks.handovers = static_cast<std::uint32_t>(handovers);
    } else if (name == "lock_with_read") {
      status = flag(parsed.tree.locks.lock_with_read);
    } else if (name == "unlock_with_write") {
      status = flag(parsed.tree.locks.unlock_with_write);
    } else if (name == "onchip_locks") {
      status = flag(parsed.tree.locks.on_chip);
    } else if (name == "merge") {
      status = flag(parsed.merge);
    } else if (name == "parallel_scan") {
      status = flag(parsed.parallel_scan);
    } else {
      std::string known;
      for (const Setting& setting : settings()) known += " " + setting.name;
      status = fail(ErrorCode::kInvalidArgument,
                    fmt::format("sherman has no setting '{}'; it has:{}", name, known));
    }
    if (!status) return fail(status.error());
  }
  if (Status ok = check_node_bytes("leaf_bytes", parsed.leaf.bytes); !ok) return fail(ok.error());
  if (Status ok = check_node_bytes("inner_bytes", parsed.tree.inner_bytes); !ok) {
    return fail(ok.error());
  }
  if (parsed.leaf.value_bytes < kMinInlineValue || parsed.leaf.value_bytes > kMaxInlineValue) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("inline_value={}: must be from {} to {}", parsed.leaf.value_bytes,
                            kMinInlineValue, kMaxInlineValue));
  }
  if (parsed.key_type == KeyType::kBytes && parsed.leaf.value_bytes != kMinInlineValue) {
    return fail(ErrorCode::kInvalidArgument,
                "inline_value: byte-string keys keep key and value in an item; leave it at 8");
  }
  return parsed;
}

IndexOptions Options::spell() const {
  IndexOptions spelled;
  spelled.kind = "sherman";
  spelled.key_type = key_type;
  spelled.settings = {
      {"leaf_bytes", std::to_string(leaf.bytes)},
      {"inner_bytes", std::to_string(tree.inner_bytes)},
      {"inline_value", std::to_string(leaf.value_bytes)},
      {"cache", on_off(tree.cache)},
      {"local_locks", on_off(tree.locks.local_table)},
      {"handovers", std::to_string(tree.locks.handovers)},
      {"lock_with_read", on_off(tree.locks.lock_with_read)},
      {"unlock_with_write", on_off(tree.locks.unlock_with_write)},
      {"onchip_locks", on_off(tree.locks.on_chip)},
      {"merge", on_off(merge)},
      {"parallel_scan", on_off(parallel_scan)},
  };
  return spelled;
}

}  // namespace pando::index::sherman
