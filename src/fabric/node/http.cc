#include "fabric/node/http.h"

#include <fmt/format.h>

namespace pando::fabric::node {
namespace {

std::string respond(int code, std::string_view reason, std::string_view type,
                    std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      code, reason, type, body.size(), body);
}

class Metrics {
 public:
  void add(std::string_view name, std::string_view kind, std::string_view help) {
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, kind);
  }
  void value(std::string_view name, std::string_view labels, std::uint64_t number) {
    text_ += fmt::format("{}{} {}\n", name, labels, number);
  }
  void single(std::string_view name, std::string_view kind, std::string_view help,
              std::uint64_t number) {
    add(name, kind, help);
    value(name, "", number);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string metrics(const NodeMemory& memory, const ServerCounts& counts) {
  Metrics out;
  out.add("pando_node_verbs_total", "counter", "Verbs executed for clients that come by a socket.");
  out.value("pando_node_verbs_total", R"({kind="read"})", counts.reads);
  out.value("pando_node_verbs_total", R"({kind="write"})", counts.writes);
  out.value("pando_node_verbs_total", R"({kind="compare_swap"})", counts.compare_swaps);
  out.value("pando_node_verbs_total", R"({kind="fetch_add"})", counts.fetch_adds);
  out.add("pando_node_bytes_total", "counter", "Bytes that READs took and WRITEs brought.");
  out.value("pando_node_bytes_total", R"({direction="read"})", counts.bytes_read);
  out.value("pando_node_bytes_total", R"({direction="written"})", counts.bytes_written);
  out.single("pando_node_batches_total", "counter", "Batches executed.", counts.batches);
  out.single("pando_node_connections_total", "counter", "Connections let in.", counts.connections);
  out.single("pando_node_refused_total", "counter", "Connections refused.", counts.refused);
  out.single("pando_node_broken_total", "counter", "Connections closed for breaking the protocol.",
             counts.broken);
  out.single("pando_node_fenced_total", "counter", "Clients shut out.", counts.fenced);
  out.single("pando_node_forgotten_total", "counter",
             "Clients forgotten, who had no place in a pool and no connection.", counts.forgotten);
  out.single("pando_node_finished_stripes_total", "counter",
             "Writes finished for processes that were killed.", counts.finished_stripes);
  out.single("pando_node_connections", "gauge", "Connections open.", counts.open_connections);
  out.single("pando_node_clients", "gauge", "Clients admitted.", counts.clients);
  out.single("pando_node_redo_slots", "gauge", "Threads that map the memory.", counts.redo_slots);
  out.single("pando_node_memory_bytes", "gauge", "The node's size.", memory.bytes());
  return out.take();
}

}  // namespace

std::string answer_http(std::string_view request, const NodeMemory& memory,
                        const ServerCounts& counts) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  if (!line.starts_with("GET ")) {
    return respond(405, "Method Not Allowed", "text/plain", "only GET is answered here\n");
  }
  const std::string_view rest = line.substr(4);
  const std::string_view path = rest.substr(0, rest.find_first_of(" ?"));
  if (path == "/metrics") {
    return respond(200, "OK", "text/plain; version=0.0.4", metrics(memory, counts));
  }
  if (path == "/health") return respond(200, "OK", "text/plain", "ok\n");
  return respond(404, "Not Found", "text/plain", "there are /metrics and /health\n");
}

}  // namespace pando::fabric::node
