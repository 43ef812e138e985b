#include "lab/targets/server_protocol.h"

#include <fmt/format.h>

#include <charconv>
#include <initializer_list>
#include <iterator>

namespace pando::lab {
namespace {

constexpr std::string_view kEnd = "\r\n";

// -1 where it is no number.
long number_in(std::string_view text) {
  long number = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size() ? number : -1;
}

// The value of `length` bytes behind a line of `head` bytes, and what ends it.
std::optional<ParsedReply> value_behind(std::string_view in, std::size_t head, std::size_t length,
                                        std::string_view end) {
  const std::size_t bytes = head + length + end.size();
  if (in.size() < bytes) return std::nullopt;
  if (in.substr(head + length, end.size()) != end) {
    return ParsedReply{.kind = ServerReply::kError, .text = in.substr(0, head), .bytes = bytes};
  }
  return ParsedReply{.kind = ServerReply::kValue, .text = in.substr(head, length), .bytes = bytes};
}

void append_redis(std::string& out, std::initializer_list<std::string_view> words) {
  fmt::format_to(std::back_inserter(out), "*{}\r\n", words.size());
  for (const std::string_view word : words) {
    fmt::format_to(std::back_inserter(out), "${}\r\n{}\r\n", word.size(), word);
  }
}

void append_hex(std::string& out, std::string_view key) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
}

void append_memcached(std::string& out, std::string_view verb, std::string_view key,
                      std::string_view value) {
  out += verb;
  append_hex(out, key);
  fmt::format_to(std::back_inserter(out), " 0 0 {}\r\n{}\r\n", value.size(), value);
}

}  // namespace

void RedisProtocol::get(std::string& out, std::string_view key) const {
  append_redis(out, {"GET", key});
}
void RedisProtocol::insert(std::string& out, std::string_view key, std::string_view value) const {
  append_redis(out, {"SET", key, value, "NX"});
}
void RedisProtocol::update(std::string& out, std::string_view key, std::string_view value) const {
  append_redis(out, {"SET", key, value});
}

std::optional<ParsedReply> RedisProtocol::parse(std::string_view in) const {
  const std::size_t end = in.find(kEnd);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = in.substr(0, end);
  const std::size_t head = end + kEnd.size();
  if (line == "+OK") return ParsedReply{.kind = ServerReply::kDone, .text = {}, .bytes = head};
  if (line == "$-1") return ParsedReply{.kind = ServerReply::kAbsent, .text = {}, .bytes = head};
  if (const long length = line.starts_with('$') ? number_in(line.substr(1)) : -1; length >= 0) {
    return value_behind(in, head, static_cast<std::size_t>(length), kEnd);
  }
  return ParsedReply{.kind = ServerReply::kError, .text = line, .bytes = head};
}

void MemcachedProtocol::get(std::string& out, std::string_view key) const {
  out += "get ";
  append_hex(out, key);
  out += kEnd;
}
void MemcachedProtocol::insert(std::string& out, std::string_view key,
                               std::string_view value) const {
  append_memcached(out, "add ", key, value);
}
void MemcachedProtocol::update(std::string& out, std::string_view key,
                               std::string_view value) const {
  append_memcached(out, "set ", key, value);
}

std::optional<ParsedReply> MemcachedProtocol::parse(std::string_view in) const {
  const std::size_t end = in.find(kEnd);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = in.substr(0, end);
  const std::size_t head = end + kEnd.size();
  const auto reply = [&](ServerReply kind) { return ParsedReply{kind, line, head}; };
  if (line == "END") return reply(ServerReply::kAbsent);
  if (line == "STORED") return reply(ServerReply::kDone);
  if (line == "NOT_STORED") return reply(ServerReply::kRefused);
  if (line.starts_with("VALUE ")) {
    const long length = number_in(line.substr(line.rfind(' ') + 1));
    if (length >= 0) {
      return value_behind(in, head, static_cast<std::size_t>(length), "\r\nEND\r\n");
    }
  }
  return reply(ServerReply::kError);
}

}  // namespace pando::lab
