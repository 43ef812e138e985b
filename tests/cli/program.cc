#include "cli/program.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>

namespace pando::cli {

using ::testing::HasSubstr;

#ifdef PANDO_BINARY
Outcome run_pando(const std::string& arguments) {
  const std::string command = "'" PANDO_BINARY "' " + arguments + " 2>&1 </dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  Outcome outcome;
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}
#else
Outcome run_pando(const std::string&) { return {}; }
#endif

void Program::SetUp() {
#ifndef PANDO_BINARY
  GTEST_SKIP() << "PANDO_BINARY is not defined: the program is NOT tested";
#endif
}

TEST_P(BadWords, AreNamedWithWhatIsValid) {
  const Outcome outcome = run_pando(GetParam().arguments);
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(GetParam().named));
  EXPECT_THAT(outcome.output, HasSubstr(GetParam().valid));
}

Folder::Folder() {
  std::string pattern = std::filesystem::temp_directory_path() / "pando-cli-XXXXXX";
  path_ = mkdtemp(pattern.data());
}

}  // namespace pando::cli
