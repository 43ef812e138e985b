// The commands of `pando`: each adds itself to the parser, and runs when it was chosen.
//
// Exit codes, for all commands: 0 done; 1 it went wrong (a failed check, an error while running);
// 2 the command line is off, and the message names the word; 130 interrupted.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <string_view>

#include <pando/result.h>

namespace pando::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;
inline constexpr int kInterrupted = 130;

// Adds a subcommand; the function runs it after parsing and returns the exit code.
struct Command {
  CLI::App* parser;
  std::function<int()> run;
};

// Says on stderr what is wrong, and returns the exit code: kUsage for kInvalidArgument.
int complain(std::string_view command, const Error& error);

Command add_bench(CLI::App& app);
Command add_check(CLI::App& app);
Command add_cluster(CLI::App& app);
Command add_indexes(CLI::App& app);
Command add_memnode(CLI::App& app);
Command add_top(CLI::App& app);
Command add_version(CLI::App& app);

}  // namespace pando::cli
