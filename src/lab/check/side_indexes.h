// SideIndexes: further indexes of a check's pool, which several compute nodes create, open, use and
// drop at the same time, whatever else happens.
//
// There are few names, so that they meet. Each step is a coroutine over the catalogue and a tree of
// the plan's kind, as the handles of the public interface make them in a plain call.
//
// What must hold:
//  1. An index holds only what was put into this one: a value tells its index and its key. A key
//     whose put was answered is found from then on, since nobody erases any.
//  2. Every answer is one that the state of the name explains (it exists, it is not there, it is in
//     use), or an error that some fault does.
//  3. Once everybody is calm, no name is blocked: it can be dropped and created again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "index/index.h"
#include "lab/check/plan.h"
#include "pool/catalogue/catalogue.h"
#include <pando/pando.h>

namespace pando::lab::check {

class SideIndexes {
 public:
  struct Judge {
    std::function<bool(ErrorCode)> excused;  // by some fault
    std::function<void(std::string)> problem;
  };
  SideIndexes(const CheckPlan& plan, Judge judge);

  // One compute node's part. The worker and its pool outlive the task.
  Task<void> client(Worker& worker, base::Random random, unsigned rounds);
  // By plain calls, when nothing happens any more. `wait` lets time pass.
  void check(Pool& pool, const std::function<void()>& wait);

  std::uint64_t created() const { return created_; }

 private:
  using Trees = Result<std::unique_ptr<index::Tree>>;

  Task<void> create(pool::Session& session, const std::string& name);
  Task<void> use(pool::Session& session, const std::string& name, base::Random& random);
  Task<void> put(pool::Session& session, index::Tree& tree, std::uint32_t id, std::uint64_t number);
  Task<void> get(pool::Session& session, index::Tree& tree, std::uint32_t id, std::uint64_t number);
  Task<void> drop(pool::Session& session, const std::string& name);

  OwnedKey key(std::uint64_t number) const;
  // Whether it is no answer, and not explained either: told then.
  void judge(std::string_view what, const std::string& name, const Error& error,
             std::initializer_list<ErrorCode> answers);

  const CheckPlan& plan_;
  const Judge judge_;
  const index::Kind* kind_ = nullptr;
  IndexOptions settings_;  // all of them
  std::string stored_;     // those of the format, as text
  std::uint64_t created_ = 0;
  std::map<std::uint32_t, std::set<std::uint64_t>> acknowledged_;  // keys, by index id
};

}  // namespace pando::lab::check
