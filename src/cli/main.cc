// `pando`: the command line.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <string>
#include <vector>

#include "cli/command.h"

namespace pando::cli {

namespace {

#ifndef PANDO_VERSION
#define PANDO_VERSION "of unknown version"
#endif

using Commands = std::vector<Command>;

std::string names_of(const Commands& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.parser->get_name());
  return fmt::format("{}", fmt::join(names, ", "));
}

int report_parse_error(const Commands& commands, const CLI::ParseError& error) {
  for (const Command& command : commands) {
    if (!command.parser->parsed()) continue;
    const std::string name = command.parser->get_name();
    fmt::print(stderr, "pando {}: {}\nTry 'pando {} --help'.\n", name, error.what(), name);
    return kUsage;
  }
  fmt::print(stderr, "pando: {}\nThe commands are {}; try 'pando --help'.\n", error.what(),
             names_of(commands));
  return kUsage;
}

int run(int argc, char** argv) {
  CLI::App app("Pando: ordered key-value indexes in disaggregated memory.", "pando");
  const Commands commands = {add_bench(app), add_check(app),   add_memnode(app), add_cluster(app),
                             add_top(app),   add_indexes(app), add_version(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);  // prints the help that was asked for
  } catch (const CLI::ParseError& error) {
    return report_parse_error(commands, error);
  }
  for (const Command& command : commands) {
    if (command.parser->parsed()) return command.run();
  }
  fmt::print(stderr, "pando: no command is given\nThe commands are {}; try 'pando --help'.\n",
             names_of(commands));
  return kUsage;
}

}  // namespace

Command add_version(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("version", "Print the version.");
  return {parser, [] {
            fmt::print("pando {}\n", PANDO_VERSION);
            return kSuccess;
          }};
}

}  // namespace pando::cli

int main(int argc, char** argv) {
  try {
    return pando::cli::run(argc, argv);
  } catch (const std::exception& error) {
    // Nothing of ours throws; what a library or an allocation throws ends here.
    fmt::print(stderr, "pando: {}\n", error.what());
    return pando::cli::kFailure;
  }
}
