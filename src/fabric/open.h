// From a URL to a fabric.
//
//   embedded:SIZE[?nodes=N&masked_cas=native|emulated&onchip=SIZE&huge=on|off]
//   sim:SIZE[?nodes=N&preset=NAME&adversary=SEED&masked_cas=native|emulated&huge=on|off]
//   mapped:unix:PATH[,unix:PATH…][?as tcp, but for tls]
//   tcp:HOST:PORT[,HOST:PORT…][?key_file=PATH&tls=on|off&cluster=NAME&timeout=MILLISECONDS
//       &masked_cas=native|emulated]
//   tcp:?etcd=http://HOST:PORT[,http://HOST:PORT…]&cluster=NAME[&as above]
//   rdma:HOST:PORT[,HOST:PORT…][?key_file=PATH&tls=on|off&cluster=NAME&timeout=MILLISECONDS
//       &device=NAME&port=N&gid_index=N]
//
// SIZE is the total of all nodes, as base::parse_size() has it: 4GiB, 64M. Errors name the part of
// the URL at fault.
#pragma once

#include <memory>
#include <string_view>

#include "fabric/verbs.h"
#include <pando/result.h>

namespace pando::fabric {

Result<std::unique_ptr<Fabric>> open_fabric(std::string_view url);

}  // namespace pando::fabric
