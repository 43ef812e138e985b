// `pando indexes`: the index kinds there are, and their settings.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/command.h"
#include "index/registry.h"

namespace pando::cli {

namespace {

int list_kinds() {
  for (const index::Kind* kind : index::kinds()) {
    fmt::print("{:10} {}\n", kind->name(), kind->summary());
  }
  return kSuccess;
}

int list_settings(const std::string& name) {
  Result<const index::Kind*> kind = index::find_kind(name);
  if (!kind) {
    fmt::print(stderr, "pando indexes: {}\n", kind.error().detail());
    return kUsage;
  }
  fmt::print("{}: {}\n\n", name, (*kind)->summary());
  fmt::print("{:18} {:9} {:7} meaning\n", "setting", "default", "fixed");
  for (const index::Setting& setting : (*kind)->settings()) {
    fmt::print("{:18} {:9} {:7} {}\n", setting.name, setting.default_value,
               setting.format ? "yes" : "", setting.meaning);
  }
  fmt::print("\nFixed ones are chosen when the index is created; the others when it is opened.\n");
  fmt::print("Example: --index \"{}:inner_bytes=512,cache=off\"\n", name);
  return kSuccess;
}

}  // namespace

Command add_indexes(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("indexes", "List the index kinds, or one kind's settings.");
  auto name = std::make_shared<std::string>();
  parser->add_option("kind", *name, "An index kind, such as sherman");
  return {parser, [name] { return name->empty() ? list_kinds() : list_settings(*name); }};
}

}  // namespace pando::cli
