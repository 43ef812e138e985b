#include "cli/local_cluster.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/secret.h"
#include "cli/output_file.h"
#include "fabric/etcd/client.h"
#include "fabric/node/process.h"
#include "lab/free_port.h"

namespace pando::cli {
namespace {

namespace fs = std::filesystem;
using fabric::node::process_started;
using nlohmann::json;
using Node = LocalCluster::Node;
using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{30};  // until a node serves
constexpr std::chrono::seconds kMercy{10};     // until a node that was asked to end is forced to
constexpr std::chrono::milliseconds kLook{10};

constexpr const char* kName = "local";  // of the cluster, where there is an etcd

std::string state_path(const std::string& folder) { return folder + "/cluster.json"; }
std::string key_path(const std::string& folder) { return folder + "/key"; }
std::string etcd_path(const std::string& folder) { return folder + "/etcd"; }
std::string socket_path(const std::string& folder, std::size_t node) {
  return fmt::format("{}/{}.sock", folder, node);
}

std::unexpected<Error> failed(std::string_view what, const std::string& path, int problem) {
  return fail(ErrorCode::kUnavailable, fmt::format("{} '{}': {}", what, path, strerror(problem)));
}

Status make_folder(const std::string& folder) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem) return failed("the folder", folder, problem.value());
  // It holds the key.
  if (chmod(folder.c_str(), 0700) != 0) return failed("the folder", folder, errno);
  return {};
}

Status make_key(const std::string& path) {
  std::string key;
  for (int i = 0; i < 4; ++i) key += fmt::format("{:016x}", base::random_word());
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return failed("the key", path, errno);
  key += '\n';
  const bool written = write(file, key.data(), key.size()) == static_cast<ssize_t>(key.size());
  const int problem = errno;
  close(file);
  if (!written) return failed("the key", path, problem);
  return {};
}

// A process in a session of its own, so that it outlives the terminal.
Result<Node> spawn(const char* program, std::vector<std::string> words, std::string log) {
  Node node;
  node.log = std::move(log);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, node.log.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  const int problem =
      posix_spawnp(&node.process, program, &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (problem == ENOENT) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("'{}' is not on this machine: install it", program));
  }
  if (problem != 0) return failed("starting a process, with its log in", node.log, problem);
  node.started = process_started(node.process);
  return node;
}

// This program as a memory node.
Result<Node> spawn_node(const LocalCluster& cluster, const std::string& size) {
  const std::size_t number = cluster.nodes.size();
  std::vector<std::string> words = {
      "pando",        "memnode",     "--size",     size,
      "--listen",     "127.0.0.1:0", "--listen",   "unix:" + socket_path(cluster.folder, number),
      "--http",       "127.0.0.1:0", "--key-file", key_path(cluster.folder),
      "--log-format", "json"};
  if (cluster.etcd) {
    const std::vector<std::string> more = {"--etcd", cluster.etcd->place, "--cluster", kName};
    words.insert(words.end(), more.begin(), more.end());
  }
  if (cluster.tls) words.insert(words.end(), {"--tls", "on"});
  return spawn("/proc/self/exe", std::move(words),
               fmt::format("{}/{}.log", cluster.folder, number));
}

Result<Node> start_etcd(const std::string& folder) {
  const auto port = lab::free_port();
  const auto peer_port = lab::free_port();
  if (!port || !peer_port) return fail(port ? peer_port.error() : port.error());
  const std::string url = "http://127.0.0.1:" + *port;
  const std::string peer_url = "http://127.0.0.1:" + *peer_port;
  auto etcd =
      spawn("etcd",
            {"etcd", "--data-dir", etcd_path(folder), "--listen-client-urls", url,
             "--advertise-client-urls", url, "--listen-peer-urls", peer_url,
             "--initial-advertise-peer-urls", peer_url, "--initial-cluster", "default=" + peer_url},
            folder + "/etcd.log");
  if (!etcd) return etcd;
  etcd->place = url;
  return etcd;
}

// What the node says of itself: where it listens, once it does. False: not yet.
bool read_places(Node& node) {
  std::ifstream file(node.log);
  for (std::string line; std::getline(file, line);) {
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object()) continue;
    const std::string what = event.value("event", "");
    const std::string detail = event.value("detail", "");
    if (what == "http") {
      const std::size_t host = detail.find("//") + 2;
      node.http = detail.substr(host, detail.find('/', host) - host);
    } else if (what == "serving") {
      node.place = detail.substr(0, detail.find(' '));
      return true;
    }
  }
  return false;
}

// Until `serves` is true.
template <class Serves>
Status wait_until_serving(std::string_view what, const Node& node, Serves serves) {
  const auto until = SteadyClock::now() + kPatience;
  while (!serves()) {
    const bool ended = waitpid(node.process, nullptr, WNOHANG) == node.process;
    if (ended || SteadyClock::now() > until) {
      std::ifstream file(node.log);
      const std::string said((std::istreambuf_iterator<char>(file)), {});
      return fail(
          ErrorCode::kUnavailable,
          fmt::format("{} {}; it said: {}", what, ended ? "has ended" : "does not serve", said));
    }
    std::this_thread::sleep_for(kLook);
  }
  return {};
}

Status wait_for_node(Node& node) {
  return wait_until_serving("a memory node", node, [&] { return read_places(node); });
}

Status wait_for_etcd(const Node& etcd) {
  fabric::etcd::Client client({etcd.place});
  return wait_until_serving("etcd", etcd, [&] { return client.range("pando").has_value(); });
}

Status write_state(const LocalCluster& cluster) {
  const auto describe = [](const Node& node) {
    return json{{"process", node.process},
                {"started", node.started},
                {"place", node.place},
                {"http", node.http},
                {"log", node.log}};
  };
  json state = {{"pool", cluster.pool_url()}, {"tls", cluster.tls}, {"nodes", json::array()}};
  for (const Node& node : cluster.nodes) state["nodes"].push_back(describe(node));
  if (cluster.etcd) state["etcd"] = describe(*cluster.etcd);
  auto file = OutputFile::open(state_path(cluster.folder));
  if (!file) return fail(file.error());
  return file->commit(state.dump(2) + "\n");
}

void end_process(const Node& node, SteadyClock::time_point until) {
  if (node.runs()) kill(node.process, SIGTERM);
  while (node.runs() && SteadyClock::now() < until) std::this_thread::sleep_for(kLook);
  if (node.runs()) kill(node.process, SIGKILL);
  waitpid(node.process, nullptr, WNOHANG);  // where it was a child of this process
}

// Of any file; nullopt where it does not describe a node.
std::optional<Node> read_node(const json& object) {
  const auto number = [&](const char* name) {
    return object.contains(name) && object[name].is_number_unsigned()
               ? object[name].get<std::uint64_t>()
               : 0;
  };
  const auto text = [&](const char* name) {
    return object.contains(name) && object[name].is_string() ? object[name].get<std::string>() : "";
  };
  if (!object.is_object()) return std::nullopt;
  Node node{.process = static_cast<std::int32_t>(number("process")),
            .started = number("started"),
            .place = text("place"),
            .http = text("http"),
            .log = text("log")};
  if (node.process <= 0 || node.place.empty()) return std::nullopt;
  return node;
}

Result<LocalCluster> start_in(const LocalClusterOptions& options) {
  LocalCluster cluster{.folder = options.folder, .nodes = {}, .etcd = {}, .tls = options.tls};
  Status status = make_key(key_path(options.folder));
  if (status && options.etcd) {
    Result<Node> etcd = start_etcd(options.folder);
    if (etcd) cluster.etcd = std::move(*etcd);
    status = etcd ? wait_for_etcd(*cluster.etcd) : Status(fail(etcd.error()));
  }
  for (std::size_t i = 0; status && i < options.nodes; ++i) {
    Result<Node> node = spawn_node(cluster, options.size);
    if (node) {
      cluster.nodes.push_back(std::move(*node));
    } else {
      status = fail(node.error());
    }
    // With etcd one after the other: ids go to who comes first.
    if (status && cluster.etcd) status = wait_for_node(cluster.nodes.back());
  }
  for (std::size_t i = 0; status && i < options.nodes; ++i) {
    status = wait_for_node(cluster.nodes[i]);
  }
  if (status) status = write_state(cluster);
  if (status) return cluster;
  end_cluster(cluster);
  return fail(status.error());
}

}  // namespace

bool LocalCluster::Node::runs() const {
  return started != 0 && process_started(process) == started;
}

std::string LocalCluster::pool_url() const {
  const std::string key = key_path(folder) + (tls ? "&tls=on" : "");
  if (etcd) return fmt::format("tcp:?etcd={}&cluster={}&key_file={}", etcd->place, kName, key);
  std::string places;
  for (const Node& node : nodes) places += (places.empty() ? "" : ",") + node.place;
  return fmt::format("tcp:{}?key_file={}", places, key);
}

std::string LocalCluster::mapped_url() const {
  std::string places;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    places += (places.empty() ? "unix:" : ",unix:") + socket_path(folder, i);
  }
  return fmt::format("mapped:{}?key_file={}{}", places, key_path(folder),
                     etcd ? fmt::format("&cluster={}", kName) : "");
}

std::string default_cluster_folder() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime != '\0') return std::string(runtime) + "/pando";
  return fmt::format("{}/pando-{}", fs::temp_directory_path().string(), getuid());
}

Result<LocalCluster> start_cluster(const LocalClusterOptions& options) {
  if (const auto old = find_cluster(options.folder)) {
    for (const Node& node : old->nodes) {
      if (!node.runs()) continue;
      return fail(ErrorCode::kBusy,
                  fmt::format("a cluster runs in '{}': end it with 'pando cluster down', or give "
                              "another --dir",
                              options.folder));
    }
  }
  if (Status made = make_folder(options.folder); !made) return fail(made.error());
  return start_in(options);
}

Status add_node(LocalCluster& cluster, const std::string& size) {
  if (!cluster.etcd) {
    return fail(ErrorCode::kInvalidArgument,
                "only a cluster with etcd can grow: start one with 'pando cluster up --etcd'");
  }
  Result<Node> node = spawn_node(cluster, size);
  if (!node) return fail(node.error());
  Status serves = wait_for_node(*node);
  cluster.nodes.push_back(std::move(*node));
  if (serves) serves = write_state(cluster);
  if (serves) return {};
  end_process(cluster.nodes.back(), SteadyClock::now() + kMercy);
  cluster.nodes.pop_back();
  return serves;
}

Result<LocalCluster> find_cluster(const std::string& folder) {
  std::ifstream file(state_path(folder));
  if (!file) {
    return fail(ErrorCode::kNotFound,
                fmt::format("no cluster in '{}': start one with 'pando cluster up', or tell where "
                            "it is with --dir",
                            folder));
  }
  const json state = json::parse(file, nullptr, false);
  LocalCluster cluster{.folder = folder, .nodes = {}, .etcd = {}};
  if (state.is_object() && state.contains("etcd")) cluster.etcd = read_node(state["etcd"]);
  cluster.tls = state.is_object() && state.contains("tls") && state["tls"] == true;
  if (state.is_object() && state.contains("nodes") && state["nodes"].is_array()) {
    for (const json& each : state["nodes"]) {
      if (auto node = read_node(each)) cluster.nodes.push_back(std::move(*node));
    }
  }
  if (cluster.nodes.empty()) {
    return fail(ErrorCode::kCorrupt, fmt::format("'{}' is not a cluster's: remove it, and end its "
                                                 "memory nodes by hand if there are any",
                                                 state_path(folder)));
  }
  return cluster;
}

void end_cluster(const LocalCluster& cluster) {
  for (const Node& node : cluster.nodes) {
    if (node.runs()) kill(node.process, SIGTERM);
  }
  const auto until = SteadyClock::now() + kMercy;
  for (const Node& node : cluster.nodes) end_process(node, until);
  if (cluster.etcd) end_process(*cluster.etcd, until);  // last: nodes take leave of it
  std::error_code ignored;
  for (std::size_t i = 0; i < cluster.nodes.size(); ++i) {
    fs::remove(socket_path(cluster.folder, i), ignored);
    fs::remove(cluster.nodes[i].log, ignored);
  }
  if (cluster.etcd) {
    fs::remove(cluster.etcd->log, ignored);
    fs::remove_all(etcd_path(cluster.folder), ignored);
  }
  fs::remove(key_path(cluster.folder), ignored);
  fs::remove(state_path(cluster.folder), ignored);
  fs::remove(cluster.folder, ignored);  // unless something else is there
}

}  // namespace pando::cli
