#include "lab/check/run.h"

namespace pando::lab::check {

Run::Run(const CheckPlan& plan, CheckObserver* observer, std::function<bool(ErrorCode)> excused)
    : plan_(plan),
      random_(base::mix64(plan.seed, 2)),
      observer_(observer),
      watch_(observer),
      recorder_(std::move(excused)) {}

void Run::let_time_pass(Time time) {
  simulation_->engine().run_until([] { return false; }, simulation_->time() + time);
}

void Run::note_ends() {
  for (ComputeNode& node : nodes_) {
    const bool over = simulation_->is_fenced(node.client) || watch_.has_left(node.client);
    if (over && !std::exchange(node.over, true)) recorder_.shut_out(node.client);
    if (!recorder_.has_open(node.client)) continue;
    if (over) {
      recorder_.shut_out(node.client);
    } else if (simulation_->nothing_under_way(node.client)) {
      recorder_.nothing_under_way(node.client);
    }
  }
}

void Run::dismiss_all(ComputeNode& node) {
  node.builders.clear();
  node.crews.clear();
  for (RecordedIndex& view : node.views) view.abandon();
  node.views.clear();
}

std::uint64_t Run::held_bytes(const pool::Allocator& allocator) {
  std::uint64_t bytes = 0;
  for (const pool::FreeRun& run : allocator.held()) bytes += run.count * run.block.bytes();
  return bytes;
}

}  // namespace pando::lab::check
