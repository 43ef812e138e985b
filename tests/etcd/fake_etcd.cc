#include "etcd/fake_etcd.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

namespace pando::fabric::etcd {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

std::string bytes(const Json& json, const char* name) {
  return from_base64(json.value(name, std::string())).value();
}

}  // namespace

FakeEtcd::FakeEtcd()
    : listener_(wire::listen_at({.host = "127.0.0.1", .port = "0", .path = {}}).value()) {
  thread_ = std::thread([this] { serve(); });
}

FakeEtcd::~FakeEtcd() {
  stopping_ = true;
  thread_.join();
}

std::string FakeEtcd::url() const {
  return "http://127.0.0.1:" + std::to_string(wire::port_of(listener_));
}

void FakeEtcd::end_lease(Lease lease) {
  const std::scoped_lock lock(mutex_);
  leases_[lease] = false;
  std::erase_if(entries_, [&](const auto& entry) { return entry.second.lease == lease; });
}

void FakeEtcd::forget_everything() {
  const std::scoped_lock lock(mutex_);
  entries_.clear();
  leases_.clear();
}

void FakeEtcd::serve() {
  while (!stopping_) {
    const wire::Socket socket = wire::accept_from(listener_);
    if (!socket) {
      std::this_thread::sleep_for(1ms);
      continue;
    }
    if (away_) continue;
    std::string request;
    const auto until = std::chrono::steady_clock::now() + 2s;
    while (!stopping_ && std::chrono::steady_clock::now() < until) {
      std::array<std::byte, 4096> part;
      const auto got = socket.receive(part);
      if (!got) break;
      request.append(reinterpret_cast<const char*>(part.data()), *got);
      const std::size_t end = request.find("\r\n\r\n");
      const std::size_t length = request.find("Content-Length: ");
      if (end != std::string::npos && length != std::string::npos &&
          request.size() >= end + 4 + std::stoul(request.substr(length + 16))) {
        const std::size_t path = request.find(' ') + 1;
        const std::string body =
            answer(std::string_view(request).substr(path, request.find(' ', path) - path),
                   std::string_view(request).substr(end + 4));
        const std::string all = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " +
                                std::to_string(body.size()) + "\r\n\r\n" + body;
        (void)socket.send(std::as_bytes(std::span(all)));
        break;
      }
      if (*got == 0) std::this_thread::sleep_for(1ms);
    }
  }
}

std::string FakeEtcd::answer(std::string_view path, std::string_view body) {
  const std::scoped_lock lock(mutex_);
  const Json asked = Json::parse(body);
  Json said{{"header", {{"revision", std::to_string(revision_)}}}};
  const auto lease_asked = [&] { return Lease{std::stoll(asked.at("ID").get<std::string>())}; };
  if (path == "/v3/kv/range") {
    const std::string end = bytes(asked, "range_end");
    for (auto at = entries_.lower_bound(bytes(asked, "key"));
         at != entries_.end() && at->first < end; ++at) {
      said["kvs"].push_back({{"key", base64(at->first)},
                             {"value", base64(at->second.value)},
                             {"mod_revision", std::to_string(at->second.revision)}});
    }
  } else if (path == "/v3/kv/txn") {
    for (const Json& compare : asked.at("compare")) {
      const auto at = entries_.find(bytes(compare, "key"));
      const std::int64_t is = at == entries_.end() ? 0 : at->second.revision;
      if (std::to_string(is) != compare.at("mod_revision").get<std::string>()) return said.dump();
    }
    ++revision_;
    for (const Json& each : asked.at("success")) {
      const Json& put = each.at("request_put");
      entries_[bytes(put, "key")] = {bytes(put, "value"), revision_,
                                     std::stoll(put.value("lease", std::string("0")))};
    }
    said["succeeded"] = true;
  } else if (path == "/v3/lease/grant") {
    leases_[++last_lease_] = true;
    said["ID"] = std::to_string(last_lease_);
  } else if (path == "/v3/lease/keepalive") {
    const auto lease = leases_.find(lease_asked());
    const bool alive = lease != leases_.end() && lease->second;
    said = {{"result", {{"ID", asked.at("ID")}}}};
    if (alive) said["result"]["TTL"] = "10";
  } else if (path == "/v3/lease/revoke") {
    const Lease lease = lease_asked();
    leases_.erase(lease);
    std::erase_if(entries_, [&](const auto& entry) { return entry.second.lease == lease; });
  }
  return said.dump();
}

}  // namespace pando::fabric::etcd
