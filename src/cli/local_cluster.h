// LocalCluster: memory nodes as processes of this machine, for trying things. A folder holds what
// is needed to find and end them again: the cluster's key, their sockets and logs, and
// cluster.json.
//
// The folder's usual place is one where everyone may make it first. So it is believed only where it
// is this user's and nobody else may write there, links are not followed, and a process is ended
// only if it is the one that was started and still has the words that it was started with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <pando/result.h>

namespace pando::cli {

struct LocalCluster {
  struct Process {
    std::int32_t process = 0;
    std::uint64_t started = 0;  // process ids are reused, a pair with this is not
    std::string place;          // HOST:PORT; of etcd: its URL
    std::string http;           // HOST:PORT of /metrics and /health
    std::string log;            // a file
    std::string mark;           // one of its words, which no other process has

    enum class State : std::uint8_t {
      kEnded,
      kRuns,
      kOther,  // has its id, and began when it did, but without the mark
    };
    State state() const;
    bool runs() const { return state() == State::kRuns; }
  };

  std::string folder;
  std::vector<Process> memory_nodes;
  std::optional<Process> etcd;
  bool tls = false;
  std::string size;  // of each node that 'up' started

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
// What the commands of the cluster in this folder need to find it: "", or " --dir '…'".
std::string folder_words(const std::string& folder);

// Starts the nodes and waits until all serve. Nothing is left of it where one does not: the error
// holds what that one said. kBusy where a cluster runs in the folder; kDenied where the folder is
// not to be trusted.
Result<LocalCluster> start_cluster(const LocalClusterOptions& options);
// One more. kInvalidArgument where the cluster has no etcd.
Status add_memory_node(LocalCluster& cluster, const std::string& size);
// kNotFound where there is none; kDenied where the folder is not to be trusted.
Result<LocalCluster> find_cluster(const std::string& folder);
// Ends the nodes in order, and those that do not end with force; their memory is gone, and so is
// what the cluster had in its folder. kDenied, and nothing is done, where a process may be another.
Status end_cluster(const LocalCluster& cluster);

}  // namespace pando::cli
