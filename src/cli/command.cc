#include "cli/command.h"

#include <fmt/format.h>

namespace pando::cli {

int complain(std::string_view command, const Error& error) {
  const bool usage = error.code() == ErrorCode::kInvalidArgument;
  fmt::print(stderr, "pando {}: {}\n", command, usage ? error.detail() : error.message());
  return usage ? kUsage : kFailure;
}

}  // namespace pando::cli
