// What a memory node answers to anything at all that comes by HTTP.
#include <string_view>

#include "fabric/node/http.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pando::fabric::node;
  static const auto kMemory = NodeMemory::make({.bytes = 1 << 20}).value();
  static const ServerCounts kCounts;
  const std::string_view request(reinterpret_cast<const char*>(data), size);
  const std::string answer = answer_http(request, kMemory, kCounts);
  pando::testing::require(answer.starts_with("HTTP/1.1 "), "an answer begins with a status");
  pando::testing::require(answer.contains("\r\n\r\n"), "an answer has a head and a body");
  return 0;
}
