// `pando cluster`: memory nodes on this machine, for trying things.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/machine_memory.h"
#include "base/parse.h"
#include "cli/command.h"
#include "cli/local_cluster.h"
#include "cli/words.h"

namespace pando::cli {
namespace {

constexpr const char* kClusterFooter =
    R"help('up' starts memory nodes as processes of this machine that outlive the terminal, with a key of
their own, and prints a line that sets PANDO_POOL, which the other commands take for --pool. 'down'
ends them; their memory is gone then. For nodes on several machines, and for memory that survives:
pando memnode, docs/operations.md.

Examples:
  eval "$(pando cluster up)"            three nodes of 1GiB; PANDO_POOL names them
  pando bench --workload C,A            ... and is used here
  pando top                             what they are doing
  pando cluster down
  pando cluster up --nodes 2 --size 4GiB --dir /tmp/mine
  pando cluster up --etcd && pando cluster add      one more node, while clients run)help";

struct ClusterWords {
  LocalClusterOptions options{.folder = default_cluster_folder()};
  std::string added_size;
};

// Each node would look, too, but not at the others.
Status check_size(const LocalClusterOptions& options) {
  const auto size = base::parse_size("--size", options.size);
  if (!size) return fail(size.error());
  const base::MachineMemory memory = base::machine_memory();
  if (Status each = base::check_fits("--size", *size, memory); !each) return each;
  const bool sane = *size < std::numeric_limits<std::uint64_t>::max() / options.nodes;
  return base::check_fits(fmt::format("--nodes {} --size {}", options.nodes, options.size),
                          sane ? *size * options.nodes : *size, memory);
}

int up(const ClusterWords& words) {
  if (Status fits = check_size(words.options); !fits) return complain("cluster up", fits.error());
  const auto cluster = start_cluster(words.options);
  if (!cluster) return complain("cluster up", cluster.error());
  fmt::print("export PANDO_POOL={}\n", quoted_for_shell(cluster->pool_url()));
  const std::string where = folder_words(cluster->folder);
  fmt::print(stderr,
             "{} memory nodes of {}, with their key and logs in {}\n"
             "  within this machine also: {}\n"
             "  what they do: pando top{}     end them: pando cluster down{}\n",
             cluster->memory_nodes.size(), words.options.size, cluster->folder,
             cluster->mapped_url(), where, where);
  return kSuccess;
}

int down(const ClusterWords& words) {
  const auto cluster = find_cluster(words.options.folder);
  if (!cluster) return complain("cluster down", cluster.error());
  if (Status ended = end_cluster(*cluster); !ended) return complain("cluster down", ended.error());
  fmt::print(stderr, "{} memory nodes ended\n", cluster->memory_nodes.size());
  return kSuccess;
}

int add(const ClusterWords& words) {
  auto cluster = find_cluster(words.options.folder);
  if (!cluster) return complain("cluster add", cluster.error());
  const std::string& size = words.added_size.empty() ? cluster->size : words.added_size;
  if (auto bytes = base::parse_size("--size", size); !bytes) {
    return complain("cluster add", bytes.error());
  }
  if (Status added = add_memory_node(*cluster, size); !added) {
    return complain("cluster add", added.error());
  }
  fmt::print(stderr, "{} memory nodes, the new one of {} at {}\n", cluster->memory_nodes.size(),
             size, cluster->memory_nodes.back().place);
  return kSuccess;
}

int status(const ClusterWords& words) {
  const auto cluster = find_cluster(words.options.folder);
  if (!cluster) return complain("cluster status", cluster.error());
  bool all = true;
  for (const LocalCluster::Process& node : cluster->memory_nodes) {
    all &= node.runs();
    fmt::print("{:22} http {:22} process {:8} {}\n", node.place, node.http, node.process,
               node.runs() ? "runs" : "has ended; see " + node.log);
  }
  if (cluster->etcd) {
    all &= cluster->etcd->runs();
    fmt::print("{:50} process {:8} {}\n", "etcd " + cluster->etcd->place, cluster->etcd->process,
               cluster->etcd->runs() ? "runs" : "has ended; see " + cluster->etcd->log);
  }
  fmt::print("{}\n", cluster->pool_url());
  return all ? kSuccess : kFailure;
}

}  // namespace

Command add_cluster(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("cluster", "Memory nodes on this machine, to try things.");
  auto words = std::make_shared<ClusterWords>();
  const auto add_verb = [&](const char* name, const char* text) {
    CLI::App* verb = parser->add_subcommand(name, text);
    verb->add_option("--dir", words->options.folder, "The folder with what belongs to it")
        ->type_name("PATH")
        ->capture_default_str();
    return verb;
  };
  CLI::App* const up_words = add_verb("up", "Start memory nodes and print how to reach them.");
  up_words->add_option("--nodes", words->options.nodes, "How many")
      ->type_name("N")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  up_words->add_flag("--etcd", words->options.etcd,
                     "Have them register with an etcd of their own, so that more can be added");
  up_words->add_flag("--tls", words->options.tls, "Have clients that come by TCP use TLS");
  CLI::App* const add_words = add_verb("add", "Start one more, for running clients too.");
  up_words->add_option("--size", words->options.size, "Memory of each")
      ->type_name("SIZE")
      ->capture_default_str();
  add_words->add_option("--size", words->added_size, "Its memory; if not given, as of the others")
      ->type_name("SIZE");
  CLI::App* const down_words = add_verb("down", "End them, and remove what is left of them.");
  CLI::App* const status_words = add_verb("status", "Where they are, and whether they run.");
  parser->footer(kClusterFooter);
  return {parser, [=] {
            if (up_words->parsed()) return up(*words);
            if (add_words->parsed()) return add(*words);
            if (down_words->parsed()) return down(*words);
            if (status_words->parsed()) return status(*words);
            return complain("cluster", Error(ErrorCode::kInvalidArgument,
                                             "say up, add, down or status; see --help"));
          }};
}

}  // namespace pando::cli
