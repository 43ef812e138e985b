#include "cli/local_cluster.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/secret.h"
#include "cli/words.h"
#include "fabric/etcd/client.h"
#include "fabric/node/process.h"
#include "lab/free_port.h"

namespace pando::cli {
namespace {

namespace fs = std::filesystem;
using fabric::node::process_started;
using nlohmann::json;
using Process = LocalCluster::Process;
using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kStartTimeout{30};  // until a node serves
constexpr std::chrono::seconds kMercy{10};  // until a node that was asked to end is forced to
constexpr std::chrono::milliseconds kLook{10};

constexpr const char* kName = "local";  // of the cluster, where there is an etcd

std::string state_path(const std::string& folder) { return folder + "/cluster.json"; }
std::string key_path(const std::string& folder) { return folder + "/key"; }
std::string etcd_path(const std::string& folder) { return folder + "/etcd"; }
std::string socket_path(const std::string& folder, std::size_t node) {
  return fmt::format("{}/{}.sock", folder, node);
}
std::string log_path(const std::string& folder, std::size_t node) {
  return fmt::format("{}/{}.log", folder, node);
}
std::string etcd_log_path(const std::string& folder) { return folder + "/etcd.log"; }
// The words that tell the cluster's own processes from all others.
std::string node_mark(const std::string& folder, std::size_t node) {
  return "unix:" + socket_path(folder, node);
}
std::string etcd_mark(const std::string& folder) { return etcd_path(folder); }

std::unexpected<Error> failed(std::string_view what, const std::string& path, int problem) {
  return fail(ErrorCode::kUnavailable, fmt::format("{} '{}': {}", what, path, strerror(problem)));
}

// ---- The folder ----

// One spelling, whatever the way there: without links above it, and without a slash at its end.
std::string spelled(const std::string& folder) {
  std::error_code ignored;
  fs::path path = fs::absolute(folder, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const fs::path parent = fs::weakly_canonical(path.parent_path(), ignored);
  return ignored ? path.string() : (parent / path.filename()).string();
}

// Whoever may write there could have put anything there.
Status check_owner(std::string_view what, const std::string& path, const struct stat& status) {
  if (status.st_uid != geteuid()) {
    return fail(
        ErrorCode::kDenied,
        fmt::format("{} '{}' belongs to user {}, not to user {} who runs this: what is in it "
                    "is not trusted; remove it, or give another --dir",
                    what, path, status.st_uid, geteuid()));
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) == 0) return {};
  return fail(ErrorCode::kDenied,
              fmt::format("{} '{}' may be written by others (mode {:o}): what is in it is not "
                          "trusted; remove it, or give another --dir",
                          what, path, status.st_mode & ALLPERMS));
}

Status check_folder(const std::string& folder) {
  struct stat status = {};
  if (lstat(folder.c_str(), &status) != 0) return failed("the folder", folder, errno);
  if (S_ISLNK(status.st_mode)) return failed("the folder", folder, ELOOP);
  if (!S_ISDIR(status.st_mode)) return failed("the folder", folder, ENOTDIR);
  return check_owner("the folder", folder, status);
}

Status make_folder(const std::string& folder) {
  std::error_code problem;
  fs::create_directories(fs::path(folder).parent_path(), problem);
  if (problem) return failed("the folder", folder, problem.value());
  if (mkdir(folder.c_str(), 0700) == 0) return {};
  if (errno != EEXIST) return failed("the folder", folder, errno);
  if (Status own = check_folder(folder); !own) return own;
  // It holds the key.
  if (chmod(folder.c_str(), 0700) != 0) return failed("the folder", folder, errno);
  return {};
}

// A file that nobody had open or linked before. -1 and errno where that cannot be.
int create_file(const std::string& path) {
  unlink(path.c_str());
  return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_CLOEXEC, 0600);
}

Status write_file(std::string_view what, const std::string& path, const std::string& content) {
  const int file = create_file(path);
  if (file < 0) return failed(what, path, errno);
  const ssize_t written = write(file, content.data(), content.size());
  const int problem = written < 0 ? errno : ENOSPC;
  const bool closed = close(file) == 0;
  if (written != static_cast<ssize_t>(content.size())) return failed(what, path, problem);
  if (!closed) return failed(what, path, errno);
  return {};
}

// Nothing where it is not there.
Result<std::optional<std::string>> read_own_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return std::nullopt;
  if (file < 0) return failed("the file", path, errno);
  struct stat status = {};
  Status own = fstat(file, &status) == 0 ? check_owner("the file", path, status)
                                         : Status(failed("the file", path, errno));
  if (own && !S_ISREG(status.st_mode)) own = failed("the file", path, EINVAL);
  std::string content;
  std::array<char, 4096> piece;
  ssize_t bytes = 0;
  while (own && (bytes = read(file, piece.data(), piece.size())) > 0) {
    content.append(piece.data(), static_cast<std::size_t>(bytes));
  }
  close(file);
  if (!own) return fail(own.error());
  return content;
}

Status make_key(const std::string& path) {
  std::string key;
  for (int i = 0; i < 4; ++i) key += fmt::format("{:016x}", base::random_word());
  return write_file("the key", path, key + '\n');
}

// ---- Processes ----

// A process in a session of its own, so that it outlives the terminal.
Result<Process> spawn(const char* program, std::vector<std::string> words, std::string log,
                      std::string mark) {
  Process node;
  node.log = std::move(log);
  node.mark = std::move(mark);
  const int file = create_file(node.log);
  if (file < 0) return failed("the log", node.log, errno);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, file, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, file, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  const int problem =
      posix_spawnp(&node.process, program, &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  close(file);
  if (problem == ENOENT) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("'{}' is not on this machine: install it", program));
  }
  if (problem != 0) return failed("starting a process, with its log in", node.log, problem);
  node.started = process_started(node.process);
  return node;
}

// This program as a memory node.
Result<Process> spawn_memory_node(const LocalCluster& cluster, const std::string& size) {
  const std::size_t number = cluster.memory_nodes.size();
  std::vector<std::string> words = {
      "pando",        "memnode",     "--size",     size,
      "--listen",     "127.0.0.1:0", "--listen",   node_mark(cluster.folder, number),
      "--http",       "127.0.0.1:0", "--key-file", key_path(cluster.folder),
      "--log-format", "json"};
  if (cluster.etcd) {
    const std::vector<std::string> more = {"--etcd", cluster.etcd->place, "--cluster", kName};
    words.insert(words.end(), more.begin(), more.end());
  }
  if (cluster.tls) words.insert(words.end(), {"--tls", "on"});
  return spawn("/proc/self/exe", std::move(words), log_path(cluster.folder, number),
               node_mark(cluster.folder, number));
}

Result<Process> start_etcd(const std::string& folder) {
  const auto port = lab::free_port();
  const auto peer_port = lab::free_port();
  if (!port || !peer_port) return fail(port ? peer_port.error() : port.error());
  const std::string url = "http://127.0.0.1:" + *port;
  const std::string peer_url = "http://127.0.0.1:" + *peer_port;
  auto etcd =
      spawn("etcd",
            {"etcd", "--data-dir", etcd_mark(folder), "--listen-client-urls", url,
             "--advertise-client-urls", url, "--listen-peer-urls", peer_url,
             "--initial-advertise-peer-urls", peer_url, "--initial-cluster", "default=" + peer_url},
            etcd_log_path(folder), etcd_mark(folder));
  if (!etcd) return etcd;
  etcd->place = url;
  return etcd;
}

// What the node says of itself: where it listens, once it does. False: not yet.
bool read_places(Process& node) {
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
Status wait_until_serving(std::string_view what, const Process& node, Serves serves) {
  const auto until = SteadyClock::now() + kStartTimeout;
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

Status wait_for_memory_node(Process& node) {
  return wait_until_serving("a memory node", node, [&] { return read_places(node); });
}

Status wait_for_etcd(const Process& etcd) {
  fabric::etcd::Client client({etcd.place});
  return wait_until_serving("etcd", etcd, [&] { return client.range("pando").has_value(); });
}

Status write_state(const LocalCluster& cluster) {
  const auto describe = [](const Process& node) {
    return json{{"process", node.process},
                {"started", node.started},
                {"place", node.place},
                {"http", node.http},
                {"log", node.log}};
  };
  json state = {{"pool", cluster.pool_url()},
                {"tls", cluster.tls},
                {"size", cluster.size},
                {"nodes", json::array()}};
  for (const Process& node : cluster.memory_nodes) state["nodes"].push_back(describe(node));
  if (cluster.etcd) state["etcd"] = describe(*cluster.etcd);
  const std::string path = state_path(cluster.folder);
  const std::string draft = path + ".new";
  if (Status written = write_file("the file", draft, state.dump(2) + "\n"); !written) {
    return written;
  }
  if (rename(draft.c_str(), path.c_str()) != 0) return failed("the file", path, errno);
  return {};
}

// Its words, each with a zero behind it; empty where there is no such process.
std::string words_of(std::int32_t process) {
  std::ifstream file(fmt::format("/proc/{}/cmdline", process));
  return {(std::istreambuf_iterator<char>(file)), {}};
}

// To that very process: while the handle is open, its id means no other.
void signal_process(const Process& node, int number) {
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, node.process, 0));
  if (handle < 0 && errno == ESRCH) return;  // it has ended
  if (node.runs() &&
      (handle < 0 || syscall(SYS_pidfd_send_signal, handle, number, nullptr, 0) != 0)) {
    kill(node.process, number);  // a kernel without such handles
  }
  if (handle >= 0) close(handle);
}

void end_process(const Process& node, SteadyClock::time_point until) {
  signal_process(node, SIGTERM);
  while (node.runs() && SteadyClock::now() < until) std::this_thread::sleep_for(kLook);
  signal_process(node, SIGKILL);
  waitpid(node.process, nullptr, WNOHANG);  // where it was a child of this process
}

std::string text_of(const json& object, const char* name) {
  return object.contains(name) && object[name].is_string() ? object[name].get<std::string>() : "";
}

// Of any file; nullopt where it does not describe a node. Its log and mark follow from the folder.
std::optional<Process> read_node(const json& object, std::string log, std::string mark) {
  const auto number = [&](const char* name) {
    return object.contains(name) && object[name].is_number_unsigned()
               ? object[name].get<std::uint64_t>()
               : 0;
  };
  if (!object.is_object()) return std::nullopt;
  Process node{.process = static_cast<std::int32_t>(number("process")),
               .started = number("started"),
               .place = text_of(object, "place"),
               .http = text_of(object, "http"),
               .log = std::move(log),
               .mark = std::move(mark)};
  if (node.process <= 0 || node.place.empty()) return std::nullopt;
  return node;
}

Result<LocalCluster> start_in(const LocalClusterOptions& options) {
  LocalCluster cluster{.folder = options.folder,
                       .memory_nodes = {},
                       .etcd = {},
                       .tls = options.tls,
                       .size = options.size};
  Status status = make_key(key_path(options.folder));
  if (status && options.etcd) {
    Result<Process> etcd = start_etcd(options.folder);
    if (etcd) cluster.etcd = std::move(*etcd);
    status = etcd ? wait_for_etcd(*cluster.etcd) : Status(fail(etcd.error()));
  }
  for (std::size_t i = 0; status && i < options.nodes; ++i) {
    Result<Process> node = spawn_memory_node(cluster, options.size);
    if (node) {
      cluster.memory_nodes.push_back(std::move(*node));
    } else {
      status = fail(node.error());
    }
    // With etcd one after the other: ids go to who comes first.
    if (status && cluster.etcd) status = wait_for_memory_node(cluster.memory_nodes.back());
  }
  for (std::size_t i = 0; status && i < options.nodes; ++i) {
    status = wait_for_memory_node(cluster.memory_nodes[i]);
  }
  if (status) status = write_state(cluster);
  if (status) return cluster;
  (void)end_cluster(cluster);
  return fail(status.error());
}

}  // namespace

LocalCluster::Process::State LocalCluster::Process::state() const {
  if (started == 0 || process_started(process) != started) return State::kEnded;
  const std::string words = words_of(process);
  // It has no words while it is ending, or has not begun: then it cannot be told apart any more.
  if (words.empty()) return State::kEnded;
  const std::string zero(1, '\0');
  return words.contains(zero + mark + zero) ? State::kRuns : State::kOther;
}

std::string LocalCluster::pool_url() const {
  const std::string key = key_path(folder) + (tls ? "&tls=on" : "");
  if (etcd) return fmt::format("tcp:?etcd={}&cluster={}&key_file={}", etcd->place, kName, key);
  std::string places;
  for (const Process& node : memory_nodes) places += (places.empty() ? "" : ",") + node.place;
  return fmt::format("tcp:{}?key_file={}", places, key);
}

std::string LocalCluster::mapped_url() const {
  std::string places;
  for (std::size_t i = 0; i < memory_nodes.size(); ++i) {
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

std::string folder_words(const std::string& folder) {
  if (folder == spelled(default_cluster_folder())) return {};
  return " --dir " + quoted_for_shell(folder);
}

Result<LocalCluster> start_cluster(const LocalClusterOptions& options) {
  LocalClusterOptions in_place = options;
  in_place.folder = spelled(options.folder);
  if (Status made = make_folder(in_place.folder); !made) return fail(made.error());
  const auto old = find_cluster(in_place.folder);
  if (!old && old.error().code() == ErrorCode::kDenied) return fail(old.error());
  if (old && std::ranges::any_of(old->memory_nodes, &Process::runs)) {
    return fail(ErrorCode::kBusy,
                fmt::format("a cluster runs in '{}': end it with 'pando cluster down{}', or give "
                            "another --dir",
                            in_place.folder, folder_words(in_place.folder)));
  }
  return start_in(in_place);
}

Status add_memory_node(LocalCluster& cluster, const std::string& size) {
  if (!cluster.etcd) {
    return fail(ErrorCode::kInvalidArgument,
                "only a cluster with etcd can grow: start one with 'pando cluster up --etcd'");
  }
  Result<Process> node = spawn_memory_node(cluster, size);
  if (!node) return fail(node.error());
  Status serves = wait_for_memory_node(*node);
  cluster.memory_nodes.push_back(std::move(*node));
  if (serves) serves = write_state(cluster);
  if (serves) return {};
  end_process(cluster.memory_nodes.back(), SteadyClock::now() + kMercy);
  cluster.memory_nodes.pop_back();
  return serves;
}

Result<LocalCluster> find_cluster(const std::string& named) {
  const std::string folder = spelled(named);
  struct stat status = {};
  if (lstat(folder.c_str(), &status) == 0) {
    if (Status own = check_folder(folder); !own) return fail(own.error());
  }
  const auto content = read_own_file(state_path(folder));
  if (!content) return fail(content.error());
  if (!*content) {
    return fail(ErrorCode::kNotFound,
                fmt::format("no cluster in '{}': start one with 'pando cluster up', or tell where "
                            "it is with --dir",
                            folder));
  }
  const json state = json::parse(**content, nullptr, false);
  LocalCluster cluster{.folder = folder, .memory_nodes = {}, .etcd = {}, .size = "1GiB"};
  if (state.is_object()) {
    if (state.contains("etcd")) {
      cluster.etcd = read_node(state["etcd"], etcd_log_path(folder), etcd_mark(folder));
    }
    cluster.tls = state.contains("tls") && state["tls"] == true;
    if (state.contains("size")) cluster.size = text_of(state, "size");
  }
  if (state.is_object() && state.contains("nodes") && state["nodes"].is_array()) {
    for (const json& each : state["nodes"]) {
      const std::size_t number = cluster.memory_nodes.size();
      auto node = read_node(each, log_path(folder, number), node_mark(folder, number));
      if (node) cluster.memory_nodes.push_back(std::move(*node));
    }
  }
  if (cluster.memory_nodes.empty()) {
    return fail(ErrorCode::kCorrupt, fmt::format("'{}' is not a cluster's: remove it, and end its "
                                                 "memory nodes by hand if there are any",
                                                 state_path(folder)));
  }
  return cluster;
}

Status end_cluster(const LocalCluster& cluster) {
  std::vector<Process> all = cluster.memory_nodes;
  if (cluster.etcd) all.push_back(*cluster.etcd);
  for (const Process& node : all) {
    if (node.state() != Process::State::kOther) continue;
    return fail(ErrorCode::kDenied,
                fmt::format("process {} may not be this cluster's: it was not started with '{}'; "
                            "end it by hand if it is, and remove '{}'",
                            node.process, node.mark, cluster.folder));
  }
  for (const Process& node : cluster.memory_nodes) signal_process(node, SIGTERM);
  const auto until = SteadyClock::now() + kMercy;
  for (const Process& node : all) end_process(node, until);  // etcd last: nodes take leave of it
  std::error_code ignored;
  for (std::size_t i = 0; i < cluster.memory_nodes.size(); ++i) {
    fs::remove(socket_path(cluster.folder, i), ignored);
    fs::remove(cluster.memory_nodes[i].log, ignored);
  }
  if (cluster.etcd) {
    fs::remove(cluster.etcd->log, ignored);
    fs::remove_all(etcd_path(cluster.folder), ignored);
  }
  fs::remove(key_path(cluster.folder), ignored);
  fs::remove(state_path(cluster.folder), ignored);
  fs::remove(cluster.folder, ignored);  // unless something else is there
  return {};
}

}  // namespace pando::cli
