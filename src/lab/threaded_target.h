// A target whose clients are threads, in real time.
#pragma once

#include "lab/target.h"

namespace pando::lab {

class ThreadedTarget : public Target {
 public:
  PhaseResult run(const Works& works) final;

 private:
  // Runs all of `work` on the calling thread: sets itself up, calls work.ready(), works. Called by
  // several threads at once, one for each client.
  virtual void run_client(unsigned client, ClientWork& work) = 0;
};

}  // namespace pando::lab
