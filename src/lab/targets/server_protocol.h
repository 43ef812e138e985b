// What is said to the servers that Pando is compared with, and what they answer.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace pando::lab {

enum class ServerReply : unsigned char { kValue, kDone, kAbsent, kRefused, kError };

struct ParsedReply {
  ServerReply kind = ServerReply::kError;
  std::string_view text;  // the value, or the error; lies in what was parsed
  std::size_t bytes = 0;  // of the reply
};

class ServerProtocol {
 public:
  virtual ~ServerProtocol() = default;
  // Append a request. A get is answered by kValue or kAbsent, an insert by kDone or (where the key
  // is there) kRefused, an update by kDone. Keys and values may hold any bytes.
  virtual void get(std::string& out, std::string_view key) const = 0;
  virtual void insert(std::string& out, std::string_view key, std::string_view value) const = 0;
  virtual void update(std::string& out, std::string_view key, std::string_view value) const = 0;
  // The reply at the front; nullopt where it has not come whole.
  virtual std::optional<ParsedReply> parse(std::string_view in) const = 0;
};

class RedisProtocol final : public ServerProtocol {
 public:
  void get(std::string& out, std::string_view key) const override;
  void insert(std::string& out, std::string_view key, std::string_view value) const override;
  void update(std::string& out, std::string_view key, std::string_view value) const override;
  std::optional<ParsedReply> parse(std::string_view in) const override;
};

// Its keys are words, so ours go as hexadecimal digits.
class MemcachedProtocol final : public ServerProtocol {
 public:
  void get(std::string& out, std::string_view key) const override;
  void insert(std::string& out, std::string_view key, std::string_view value) const override;
  void update(std::string& out, std::string_view key, std::string_view value) const override;
  std::optional<ParsedReply> parse(std::string_view in) const override;
};

}  // namespace pando::lab
