#include "fabric/open.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "base/parse.h"
#include "base/secret.h"
#include "fabric/embedded/embedded.h"
#include "fabric/mapped/mapped.h"
#include "fabric/rdma/rdma.h"
#include "fabric/remote/options.h"
#include "fabric/sim/simulation.h"
#include "fabric/tcp/tcp.h"
#include "fabric/wire/socket.h"

namespace pando::fabric {
namespace {

// What follows the scheme, cut at the question mark.
struct Rest {
  std::string_view place;
  base::Settings settings;
};

Result<Rest> parse_rest(std::string_view text) {
  const std::size_t mark = text.find('?');
  if (mark == std::string_view::npos) return Rest{text, {}};
  auto settings = base::parse_settings(text.substr(mark + 1), '&');
  if (!settings) return fail(settings.error());
  return Rest{text.substr(0, mark), std::move(*settings)};
}

Result<bool> parse_masked_cas(const std::string& text) {
  if (text == "native") return true;
  if (text == "emulated") return false;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("masked_cas: '{}' is neither native nor emulated", text));
}

Result<std::uint32_t> parse_mtu(const std::string& text) {
  const auto bytes = base::parse_unsigned("mtu", text, 1, rdma::kMtus.back());
  if (bytes && rdma::find_mtu(static_cast<std::uint32_t>(*bytes))) {
    return static_cast<std::uint32_t>(*bytes);
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("mtu: '{}' is none of {}", text, fmt::join(rdma::kMtus, ", ")));
}

// Stores the value, or hands the error on.
template <class To, class From>
Status assign(To& to, const Result<From>& value) {
  if (!value) return fail(value.error());
  to = static_cast<To>(*value);
  return {};
}

// What stands before the parameters: the size of all nodes, or where they are.
template <class Options>
Status set_place(Options& options, std::string_view scheme, std::string_view place) {
  if (place.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the size is missing, as in {}:4GiB", scheme));
  }
  return assign(options.bytes, base::parse_size("size", place));
}

template <class Options>
Status set_places(Options& options, std::string_view places, std::string_view example) {
  while (!places.empty()) {
    const std::size_t comma = places.find(',');
    Result<wire::Place> place = wire::parse_place(places.substr(0, comma));
    if (!place) return fail(place.error());
    options.nodes.push_back(std::move(*place));
    places.remove_prefix(comma == std::string_view::npos ? places.size() : comma + 1);
  }
  if (!options.nodes.empty()) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("the memory nodes are missing, as in {}", example));
}

std::string remote_example(std::string_view scheme) {
  return fmt::format(
      "{0}:10.0.0.1:7470,10.0.0.2:7470 or {0}:?etcd=http://10.0.0.9:2379&cluster=orders", scheme);
}

Status set_place(remote::Options& options, std::string_view scheme, std::string_view place) {
  if (place.empty()) return {};  // etcd knows them; finish() makes sure that it is named
  return set_places(options, place, remote_example(scheme));
}

Status set_place(rdma::RdmaOptions& options, std::string_view scheme, std::string_view place) {
  remote::Options& shared = options;
  return set_place(shared, scheme, place);
}

Status set_place(mapped::MappedOptions& options, std::string_view /*scheme*/,
                 std::string_view place) {
  return set_places(options, place, "mapped:unix:/run/pando/0.sock");
}

// Parameters that embedded and sim have; nothing where `name` is not one of them.
template <class Options>
std::optional<Status> apply_common(Options& options, const std::string& name,
                                   const std::string& text) {
  if (name == "nodes") {
    return assign(options.nodes, base::parse_unsigned(name, text, 1, Options::kMaxNodes));
  }
  if (name == "masked_cas") return assign(options.native_masked_cas, parse_masked_cas(text));
  if (name == "huge") return assign(options.huge_pages, base::parse_bool(name, text));
  return std::nullopt;
}

Status apply_own(EmbeddedOptions& options, const std::string& name, const std::string& text) {
  if (name == "onchip") {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
    const auto bytes = base::parse_size(name, text);
    if (bytes && *bytes > kMost) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("onchip: '{}' is too large", text));
    }
    return assign(options.onchip_bytes, bytes);
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is no parameter of embedded; those are nodes, masked_cas, onchip "
                          "and huge",
                          name));
}

// Those of memory nodes that are other processes.
Status set_tls(remote::Options& options, const std::string& text) {
  return assign(options.tls, base::parse_bool("tls", text));
}
Status set_tls(mapped::MappedOptions& /*options*/, const std::string& /*text*/) {
  return fail(ErrorCode::kInvalidArgument,
              "tls: mapped goes by Unix sockets, which need none; leave it out");
}

template <class Options>
Status apply_remote(Options& options, std::string_view scheme, const std::string& name,
                    const std::string& text) {
  if (name == "key_file") return assign(options.key, base::read_key(text));
  if (name == "tls") return set_tls(options, text);
  if (name == "cluster") {
    options.cluster = text;
    return {};
  }
  if (name == "timeout") {
    // A node's process may have to wait for its turn; less would take that for a failure.
    constexpr std::uint64_t kLeast = 10;
    constexpr std::uint64_t kMost = 3'600'000;
    const auto milliseconds = base::parse_unsigned(name, text, kLeast, kMost);
    if (!milliseconds) return fail(milliseconds.error());
    options.timeout = std::chrono::milliseconds(*milliseconds);
    return {};
  }
  if (name == "masked_cas") return assign(options.native_masked_cas, parse_masked_cas(text));
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' is no parameter of {}; those are key_file, cluster, timeout (in "
                  "milliseconds){}",
                  name, scheme,
                  scheme == "rdma"  ? ", tls, etcd, device, port, gid_index, mtu and masked_cas"
                  : scheme == "tcp" ? ", tls, etcd and masked_cas"
                                    : " and masked_cas"));
}

Status apply_own(sim::SimOptions& options, const std::string& name, const std::string& text) {
  if (name == "preset") {
    options.preset = text;
    return {};
  }
  if (name == "adversary") {
    options.adversary.emplace();
    return assign(options.adversary->seed,
                  base::parse_unsigned(name, text, 0, std::numeric_limits<std::uint64_t>::max()));
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is no parameter of sim; those are nodes, preset, adversary, "
                          "masked_cas and huge",
                          name));
}

template <class Options>
Status apply(Options& options, const std::string& name, const std::string& text) {
  const std::optional<Status> common = apply_common(options, name, text);
  return common ? *common : apply_own(options, name, text);
}
// Those of memory nodes that may be found through etcd.
Status apply_networked(remote::Options& options, std::string_view scheme, const std::string& name,
                       const std::string& text) {
  if (name == "etcd") {
    auto endpoints = etcd::parse_endpoints(text);
    if (!endpoints) return fail(endpoints.error().code(), "etcd: " + endpoints.error().detail());
    options.registry.emplace().endpoints = std::move(*endpoints);
    return {};
  }
  return apply_remote(options, scheme, name, text);
}

Status apply(remote::Options& options, const std::string& name, const std::string& text) {
  return apply_networked(options, "tcp", name, text);
}
Status apply(mapped::MappedOptions& options, const std::string& name, const std::string& text) {
  return apply_remote(options, "mapped", name, text);
}

Status apply(rdma::RdmaOptions& options, const std::string& name, const std::string& text) {
  if (name == "device") {
    options.device.name = text;
    return {};
  }
  if (name == "port") return assign(options.device.port, base::parse_unsigned(name, text, 1, 255));
  if (name == "gid_index") {
    return assign(options.device.gid_index, base::parse_unsigned(name, text, 0, 65535));
  }
  if (name == "mtu") return assign(options.mtu, parse_mtu(text));
  return apply_networked(options, "rdma", name, text);
}

// What only all parameters together tell.
template <class Options>
Status finish(Options&, std::string_view /*scheme*/) {
  return {};
}
// What tls=on needs.
Status check_tls(const remote::Options& options) {
  if (!options.tls) return {};
  if (options.key.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "tls: it is made with the cluster's key; give it, as in ?tls=on&key_file=PATH");
  }
  const auto local = std::ranges::find_if(options.nodes, &wire::Place::local);
  if (local == options.nodes.end()) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("tls: '{}' is a Unix socket, which needs none; leave it out, or name the "
                          "node as HOST:PORT",
                          local->to_string()));
}
Status finish(remote::Options& options, std::string_view scheme) {
  if (Status fits = check_tls(options); !fits) return fits;
  if (!options.registry && options.nodes.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the memory nodes are missing, as in {}", remote_example(scheme)));
  }
  if (!options.registry) return {};
  if (!options.nodes.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "etcd: the memory nodes are given already; give either them or etcd");
  }
  options.registry->cluster = options.cluster;
  options.registry->key = options.key;
  return options.registry->check();
}
Status finish(rdma::RdmaOptions& options, std::string_view scheme) {
  remote::Options& shared = options;
  return finish(shared, scheme);
}

using Opened = Result<std::unique_ptr<Fabric>>;

// `text`: the URL behind the scheme's colon.
template <class Options, Opened (*Open)(const Options&)>
Opened open_url(std::string_view scheme, std::string_view text) {
  const auto rest = parse_rest(text);
  if (!rest) return fail(rest.error());
  Options options;
  if (Status ok = set_place(options, scheme, rest->place); !ok) return fail(ok.error());
  for (const auto& [name, value] : rest->settings) {
    if (Status ok = apply(options, name, value); !ok) return fail(ok.error());
  }
  if (Status ok = finish(options, scheme); !ok) return fail(ok.error());
  return Open(options);
}

struct Scheme {
  std::string_view name;
  Opened (*open)(std::string_view scheme, std::string_view rest);
};

constexpr std::array kSchemes = {
    Scheme{"embedded", open_url<EmbeddedOptions, open_embedded>},
    Scheme{"sim", open_url<sim::SimOptions, sim::open_sim>},
    Scheme{"mapped", open_url<mapped::MappedOptions, mapped::open_mapped>},
    Scheme{"tcp", open_url<remote::Options, tcp::open_tcp>},
    Scheme{"rdma", open_url<rdma::RdmaOptions, rdma::open_rdma>},
};

std::string known_schemes() {
  std::string names;
  for (const Scheme& scheme : kSchemes) {
    if (!names.empty()) names += ", ";
    names += scheme.name;
  }
  return names;
}

Opened open_by_scheme(std::string_view url) {
  const std::size_t colon = url.find(':');
  const std::string_view name = url.substr(0, colon);
  const std::string_view rest =
      colon == std::string_view::npos ? std::string_view() : url.substr(colon + 1);
  for (const Scheme& scheme : kSchemes) {
    if (scheme.name == name) return scheme.open(name, rest);
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("there is no fabric '{}'; known: {}", name, known_schemes()));
}

}  // namespace

Result<std::unique_ptr<Fabric>> open_fabric(std::string_view url) {
  auto fabric = open_by_scheme(url);
  if (fabric) return fabric;
  const Error& error = fabric.error();
  return fail(error.code(), fmt::format("fabric URL '{}': {}", url, error.detail()));
}

}  // namespace pando::fabric
