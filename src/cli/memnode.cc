// `pando memnode`: a memory node, as a daemon.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/parse.h"
#include "base/secret.h"
#include "cli/command.h"
#include "cli/event_log.h"
#include "cli/words.h"
#include "fabric/etcd/registry.h"
#include "fabric/node/memory.h"
#include "fabric/node/server.h"
#include "fabric/rdma/acceptor.h"
#include "lab/progress.h"

namespace pando::cli {
namespace {

using fabric::node::HugePages;
using fabric::node::NodeMemory;
using fabric::node::OnChipPlace;
using fabric::node::Server;

constexpr const char* kMemnodeFooter =
    R"(A memory node owns memory and has almost nothing to do: clients read and change it with one-sided
verbs. It serves until SIGTERM or SIGINT. docs/operations.md tells how to run several as a cluster.

Where the memory lives decides what a restart finds: without --shm and --file it is gone with the
process, and clients are told so (data lost); with them, the memory of the last run is taken over,
and clients go on where they were.

With --etcd the node registers under its cluster's name, and clients find it there: they open
tcp:?etcd=http://10.0.0.9:2379&cluster=orders, or rdma:?etcd=… where it has --rdma. A node that is
started while they run is used as soon as all of them have seen it.

Examples:
  pando memnode --size 4GiB
  pando memnode --size 64GiB --listen 10.0.0.1:7470 --key-file /etc/pando/key --cluster orders \
      --shm pando0 --huge on --numa 1 --prefault --http 10.0.0.1:9470
  pando memnode --size 64GiB --listen 10.0.0.1:7470 --shm pando0 --cluster orders \
      --etcd http://10.0.0.9:2379,http://10.0.0.10:2379
  pando memnode --size 64GiB --listen 10.0.0.1:7470 --key-file /etc/pando/key --tls on
  pando memnode --size 1GiB --listen unix:/run/pando/0.sock
  pando memnode --size 64GiB --listen 10.0.0.1:7470 --rdma 10.0.0.1
  pando bench --pool tcp:127.0.0.1:7470 --workload C,A)";

struct MemnodeWords {
  std::string size;
  std::vector<std::string> listen = {"127.0.0.1:7470"};
  std::string http;
  std::string rdma;
  std::string shm;
  std::string file;
  std::string onchip = "256KiB";
  std::string onchip_in = "auto";
  std::string huge = "where-free";
  int numa = -1;
  bool prefault = false;
  std::string key_file;
  std::string tls = "off";
  std::string cluster;
  std::string etcd;
  std::vector<std::string> advertise;
  std::uint64_t max_connections = 4096;
  std::uint64_t spin_microseconds = 50;
  std::string log_file;
  std::string log_format = "text";
};

struct Request {
  fabric::node::MemoryOptions memory;
  fabric::node::ServerOptions server;
  std::optional<fabric::etcd::RegistryOptions> registry;
  std::vector<fabric::wire::Place> advertise;  // empty: where it listens
};

Result<HugePages> parse_huge(const std::string& text) {
  if (text == "off") return HugePages::kOff;
  if (text == "where-free") return HugePages::kWhereFree;
  if (text == "on") return HugePages::kRequired;
  return invalid("--huge", fmt::format("'{}' is none of on, off and where-free", text));
}

Result<OnChipPlace> parse_onchip_in(const std::string& text, bool rdma) {
  if (text == "auto") return OnChipPlace::kAutomatic;
  if (text == "host") return OnChipPlace::kHost;
  if (text != "card") {
    return invalid("--onchip-in", fmt::format("'{}' is none of auto, card and host", text));
  }
  if (!rdma) return invalid("--onchip-in", "only verbs by RDMA reach a card's memory; give --rdma");
  return OnChipPlace::kCard;
}

// ADDRESS[:PORT] or DEVICE[:PORT]. The port may be left to the system: clients are told.
Result<fabric::wire::Place> parse_rdma(const std::string& text) {
  const bool bare_v6 = std::ranges::count(text, ':') > 1 && !text.starts_with('[');
  const bool has_port = !bare_v6 && text.contains(':') && !text.ends_with(']');
  if (has_port) return fabric::wire::parse_place(text);
  return fabric::wire::parse_place((bare_v6 ? "[" + text + "]" : text) + ":0");
}

Status parse_registry(const MemnodeWords& words, Request& request) {
  if (words.etcd.empty()) {
    if (words.advertise.empty()) return {};
    return invalid("--advertise", "it is for clients that look in etcd; give --etcd, too");
  }
  auto endpoints = fabric::etcd::parse_endpoints(words.etcd);
  if (!endpoints) return invalid("--etcd", endpoints.error().detail());
  request.registry = {
      .endpoints = std::move(*endpoints), .cluster = words.cluster, .key = request.server.key};
  if (Status valid = request.registry->check(); !valid) {
    return invalid("--etcd", "it needs a --cluster; " + valid.error().detail());
  }
  for (const std::string& text : words.advertise) {
    auto place = fabric::wire::parse_place(text);
    if (!place) return invalid("--advertise", place.error().detail());
    request.advertise.push_back(std::move(*place));
  }
  if (!request.advertise.empty()) return {};
  for (const fabric::wire::Place& place : request.server.listen) {
    const std::string& host = place.host;
    if (place.local() || (!host.empty() && host != "0.0.0.0" && host != "::")) continue;
    return invalid("--advertise", fmt::format("the node listens at every address of its machine "
                                              "({}); say by which one clients reach it",
                                              place.to_string()));
  }
  return {};
}

Status parse_tls(const MemnodeWords& words, fabric::node::ServerOptions& server) {
  auto tls = base::parse_bool("--tls", words.tls);
  if (!tls) return fail(tls.error());
  server.tls = *tls;
  if (!server.tls) return {};
  if (server.key.empty()) {
    return invalid("--tls", "it is made with the cluster's key; give a --key-file, too");
  }
  if (std::ranges::all_of(server.listen, &fabric::wire::Place::local)) {
    return invalid("--tls", "the node listens at Unix sockets alone, which need none");
  }
  return {};
}

Result<Request> parse(const MemnodeWords& words) {
  Request request;
  auto bytes = base::parse_size("--size", words.size);
  if (!bytes) return fail(bytes.error());
  request.memory.bytes = *bytes;
  auto onchip = base::parse_size("--onchip", words.onchip);
  if (!onchip) return fail(onchip.error());
  if (*onchip > fabric::node::kMaxOnChip) {
    return invalid("--onchip", fmt::format("'{}' is more than {}", words.onchip,
                                           base::format_size(fabric::node::kMaxOnChip)));
  }
  request.memory.onchip_bytes = static_cast<std::uint32_t>(*onchip);
  request.memory.shm = words.shm;
  request.memory.file = words.file;
  auto huge = parse_huge(words.huge);
  if (!huge) return fail(huge.error());
  request.memory.huge_pages = *huge;
  request.memory.numa_node = words.numa;
  request.memory.prefault = words.prefault;
  request.memory.locked = !words.rdma.empty();
  request.memory.cluster = words.cluster;
  for (const std::string& text : words.listen) {
    auto place = fabric::wire::parse_place(text);
    if (!place) return invalid("--listen", place.error().detail());
    request.server.listen.push_back(std::move(*place));
  }
  if (!words.http.empty()) {
    auto place = fabric::wire::parse_place(words.http);
    if (!place) return invalid("--http", place.error().detail());
    request.server.http = std::move(*place);
  }
  auto onchip_place = parse_onchip_in(words.onchip_in, !words.rdma.empty());
  if (!onchip_place) return fail(onchip_place.error());
  if (!words.rdma.empty()) {
    auto place = parse_rdma(words.rdma);
    if (!place) return invalid("--rdma", place.error().detail());
    request.server.rdma = fabric::rdma::acceptor_at(std::move(*place), *onchip_place);
  }
  if (!words.key_file.empty()) {
    auto key = base::read_key(words.key_file);
    if (!key) return invalid("--key-file", key.error().detail());
    request.server.key = std::move(*key);
  }
  if (Status ok = parse_tls(words, request.server); !ok) return fail(ok.error());
  request.server.cluster = words.cluster;
  request.server.max_connections = words.max_connections;
  request.server.spin = std::chrono::microseconds(words.spin_microseconds);
  if (Status ok = parse_registry(words, request); !ok) return fail(ok.error());
  return request;
}

bool is_loopback(const fabric::wire::Place& place) {
  return place.local() || place.host == "localhost" || place.host.starts_with("127.") ||
         place.host == "::1";
}

// SIGTERM and SIGINT, held back from all threads and asked for where the program can stop.
class StopSignals {
 public:
  // Before there are threads, so that all of them leave the signals to who asks for them here.
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }
  // Whether one has come, at any time. Not for two threads at once.
  bool came() {
    constexpr timespec kNow = {};
    if (came_ == 0) came_ = std::max(0, sigtimedwait(&signals_, nullptr, &kNow));
    return came_ != 0;
  }
  void wait() {
    if (came_ == 0) sigwait(&signals_, &came_);
  }
  // REQUIRES: one has come.
  const char* name() const {
    assert(came_ != 0);
    return came_ == SIGTERM ? "SIGTERM" : "SIGINT";
  }

 private:
  sigset_t signals_;
  int came_ = 0;
};

void show_prefault(Request& request) {
  if (!request.memory.prefault) return;
  const auto progress = std::make_shared<lab::Progress>(lab::Progress::style_for_stderr(),
                                                        lab::RateUnit{"GiB/s", 1 << 30});
  const auto begun = std::chrono::steady_clock::now();
  request.memory.progress = [progress, begun](std::uint64_t done, std::uint64_t all) {
    progress->show("touching memory", done, all, std::chrono::steady_clock::now() - begun);
    if (done == all) progress->clear();
  };
}

// Registers the node, and keeps it registered. Fresh memory that nobody can find is of no use, and
// the words are likely wrong. Memory that survived may have clients that know where it is: they are
// not kept waiting for etcd.
Result<std::unique_ptr<fabric::etcd::Registration>> enter(const Request& request,
                                                          const NodeMemory& memory,
                                                          const Server& server, EventLog& log) {
  using fabric::NodeId;
  fabric::node::Header& header = memory.header();
  fabric::etcd::MemoryNodeRecord node{
      .life = memory.life(),
      .bytes = memory.bytes(),
      .places = request.advertise.empty() ? server.places() : request.advertise};
  // Before that, what is wrong ends the program, with a message of its own.
  const auto serves = std::make_shared<std::atomic<bool>>(memory.survived());
  std::optional<NodeId> remembered;
  if (header.registered > 0) remembered = static_cast<NodeId>(header.registered - 1);
  auto registration = std::make_unique<fabric::etcd::Registration>(
      *request.registry, std::move(node), remembered,
      fabric::etcd::Registration::Events{
          .entered =
              [&header, &log, name = request.registry->cluster](NodeId id) {
                header.registered = std::uint32_t{id} + 1;
                log.event("registered", fmt::format("memory node {} of cluster '{}'", id, name));
              },
          .failed =
              [&log, serves](const Error& error) {
                if (!serves->load()) return;
                log.event("warning", fmt::format("not registered: {}; the node serves, and tries "
                                                 "again",
                                                 error.message()));
              }});
  if (memory.survived()) return registration;
  if (const Status first = registration->first_attempt(); !first) return fail(first.error());
  serves->store(true);
  return registration;
}

int run(const MemnodeWords& words) {
  Result<Request> request = parse(words);
  if (!request) return complain("memnode", request.error());
  if (words.log_format != "text" && words.log_format != "json") {
    return complain("memnode", Error(ErrorCode::kInvalidArgument,
                                     fmt::format("--log-format: '{}' is neither text nor json",
                                                 words.log_format)));
  }
  auto log = EventLog::open(words.log_file, words.log_format == "json" ? EventLog::Format::kJson
                                                                       : EventLog::Format::kText);
  if (!log) return complain("memnode", log.error());

  StopSignals stop;
  show_prefault(*request);
  request->memory.stopped = [&] { return stop.came(); };
  Result<NodeMemory> memory = NodeMemory::make(request->memory);
  if (!memory && stop.came()) {
    (*log)->event("stopping", stop.name());
    return kSuccess;
  }
  if (!memory) return complain("memnode", memory.error());
  Result<std::unique_ptr<Server>> server = Server::open(*memory, request->server, log->get());
  // Nobody has used the memory yet. Left behind, the next start would take it for one that has
  // clients.
  const auto give_up = [&](const Error& error) {
    if (server) server->reset();
    memory->take_back();
    return complain("memnode", error);
  };
  if (!server) return give_up(server.error());

  std::vector<std::string> places;
  bool exposed = false;
  for (const auto& place : (*server)->places()) {
    places.push_back(place.to_string());
    exposed |= !is_loopback(place);
  }
  (*log)->event("memory",
                fmt::format("{}, {}", base::format_size(memory->bytes()),
                            memory->survived() ? "taken over as it was"
                            : memory->lost() ? "emptied: its on-chip memory was in a card when its "
                                               "last process was killed, and what it held is lost"
                                             : "fresh"));
  if (exposed && request->server.key.empty()) {
    (*log)->event("warning",
                  "anyone who reaches this address may read and change the memory; give "
                  "a --key-file");
  }
  if (request->server.tls) (*log)->event("tls", "clients that come by TCP must use it");
  if (const auto http = (*server)->http_place()) {
    (*log)->event("http", fmt::format("http://{}/metrics", http->to_string()));
  }
  if (const auto rdma = (*server)->rdma_place()) {
    const bool in_card = (*server)->onchip_in_card();
    (*log)->event("rdma", fmt::format("{}, on-chip memory in the {}", rdma->to_string(),
                                      in_card ? "card" : "host"));
    if (in_card && memory->outlives_process()) {
      (*log)->event("warning",
                    "the on-chip memory is in the card: if this process is killed, all that the "
                    "memory holds is lost");
    }
  }
  std::unique_ptr<fabric::etcd::Registration> registration;
  if (request->registry) {
    auto entered = enter(*request, *memory, **server, **log);
    if (!entered) return give_up(entered.error());
    registration = std::move(*entered);
  }
  (*log)->event("serving", fmt::format("{}", fmt::join(places, " ")));

  std::thread waiter([&] {
    stop.wait();
    (*log)->event("stopping", stop.name());
    (*server)->stop();
  });
  (*server)->run();
  waiter.join();
  registration.reset();  // clients look for it no more
  return kSuccess;
}

}  // namespace

Command add_memnode(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("memnode", "Serve memory to the pools of other processes.");
  auto words = std::make_shared<MemnodeWords>();
  parser->add_option("--size", words->size, "Bytes of memory, as 4GiB")
      ->type_name("SIZE")
      ->required();
  parser
      ->add_option("--listen", words->listen,
                   "HOST:PORT or unix:PATH; a Unix socket also hands the memory to processes of "
                   "this machine. Several: give it again")
      ->type_name("PLACE")
      ->capture_default_str();
  parser->add_option("--http", words->http, "Serve /metrics and /health there")
      ->type_name("HOST:PORT");
  parser
      ->add_option("--rdma", words->rdma,
                   "Verbs come by RDMA, at this address or device; clients open rdma: with what "
                   "--listen says")
      ->type_name("ADDRESS[:PORT]");
  parser->add_option("--shm", words->shm, "Keep the memory in /dev/shm/NAME")->type_name("NAME");
  parser
      ->add_option("--file", words->file,
                   "Keep the memory in a file of tmpfs or hugetlbfs, or in a DAX device")
      ->type_name("PATH");
  parser
      ->add_option("--huge", words->huge,
                   "Huge pages: where-free (transparent ones), on (reserved ones), off")
      ->type_name("WORD")
      ->capture_default_str();
  parser->add_option("--numa", words->numa, "Take the memory from this NUMA node")->type_name("N");
  parser->add_flag("--prefault", words->prefault, "Touch every page before serving");
  parser->add_option("--onchip", words->onchip, "Bytes of on-chip memory, for locks")
      ->type_name("SIZE")
      ->capture_default_str();
  parser
      ->add_option(
          "--onchip-in", words->onchip_in,
          "With --rdma, where those are: card; host, the memory of this machine; auto, "
          "the card if it has so much and nothing is lost by it (neither --shm nor --file)")
      ->type_name("WORD")
      ->capture_default_str();
  parser
      ->add_option("--key-file", words->key_file,
                   "The cluster's key; only clients that know it are let in")
      ->type_name("PATH");
  parser
      ->add_option("--tls", words->tls,
                   "on: clients that come by TCP are let in by TLS alone, made with the key; they "
                   "open tcp: or rdma: with ?tls=on")
      ->type_name("on|off")
      ->capture_default_str();
  parser->add_option("--cluster", words->cluster, "The cluster that this node belongs to")
      ->type_name("NAME");
  parser
      ->add_option("--etcd", words->etcd,
                   "Register with the etcd there; several addresses of one etcd: with commas")
      ->type_name("URL");
  parser
      ->add_option("--advertise", words->advertise,
                   "Where clients that look in etcd reach this node, if not where it listens")
      ->type_name("PLACE");
  parser->add_option("--max-connections", words->max_connections, "Connections at a time")
      ->type_name("N")
      ->capture_default_str();
  parser
      ->add_option("--spin", words->spin_microseconds,
                   "Microseconds to look for more work before sleeping")
      ->type_name("N")
      ->capture_default_str();
  parser->add_option("--log-file", words->log_file, "Append events there instead of to stderr")
      ->type_name("PATH");
  parser->add_option("--log-format", words->log_format, "text, or json: an object a line")
      ->type_name("WORD")
      ->capture_default_str();
  parser->footer(kMemnodeFooter);
  return {parser, [words] { return run(*words); }};
}

}  // namespace pando::cli
