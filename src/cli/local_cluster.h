// LocalCluster: memory nodes as processes of this machine, for trying things. A folder holds what
// is needed to find and end them again: the cluster's key, their sockets and logs, and
// cluster.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <pando/result.h>

namespace pando::cli {

struct LocalCluster {
  struct Node {
    std::int32_t process = 0;
    std::uint64_t started = 0;  // process ids are reused, a pair with this is not
    std::string place;          // HOST:PORT; of etcd: its URL
    std::string http;           // HOST:PORT of /metrics and /health
    std::string log;            // a file

    bool runs() const;
  };

  std::string folder;
  std::vector<Node> nodes;
  std::optional<Node> etcd;
  bool tls = false;

  std::string pool_url() const;    // by tcp
  std::string mapped_url() const;  // by the nodes' sockets in the folder
};

struct LocalClusterOptions {
  std::string folder;
  std::size_t nodes = 3;
  std::string size = "1GiB";  // of each
  bool etcd = false;          // that nodes register with, so that more can be added
  bool tls = false;           // for who comes by TCP
};

// Where a cluster is when nobody says: $XDG_RUNTIME_DIR/pando, or a folder of the user's in /tmp.
std::string default_cluster_folder();

// Starts the nodes and waits until all serve. Nothing is left of it where one does not: the error
// holds what that one said. kBusy where a cluster runs in the folder.
Result<LocalCluster> start_cluster(const LocalClusterOptions& options);
// One more. kInvalidArgument where the cluster has no etcd.
Status add_node(LocalCluster& cluster, const std::string& size);
// kNotFound where there is none.
Result<LocalCluster> find_cluster(const std::string& folder);
// Ends the nodes in order, and those that do not end with force; their memory is gone, and so is
// what the cluster had in its folder.
void end_cluster(const LocalCluster& cluster);

}  // namespace pando::cli
