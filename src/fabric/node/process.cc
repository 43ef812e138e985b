#include "fabric/node/process.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace pando::fabric::node {

std::uint64_t process_started(std::int32_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  // "PID (COMMAND) STATE …": the command may hold anything, so count from its last parenthesis. The
  // beginning is the 22nd field; dead processes that nobody has waited for are gone, too.
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream fields(text.substr(end + 1));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  for (int number = 4; number <= 22; ++number) fields >> field;
  return fields ? std::stoull(field) : 0;
}

}  // namespace pando::fabric::node
