#include "lab/check/side_indexes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "api/state.h"
#include "index/creating.h"
#include "index/registry.h"

namespace pando::lab::check {
namespace {

using base::Random;
using pool::IndexRecord;
using pool::Session;

constexpr std::array<const char*, 2> kSideNames = {"side one", "side two"};
constexpr std::uint64_t kKeys = 40;

std::string value_of(std::uint32_t id, std::uint64_t number) {
  return fmt::format("{}.{}", id, number);
}

}  // namespace

SideIndexes::SideIndexes(const CheckPlan& plan, Judge judge)
    : plan_(plan), judge_(std::move(judge)) {
  kind_ = index::find_kind(plan.index.kind).value();
  settings_ = kind_->normalize(plan.index).value();
  IndexOptions stored = settings_;
  for (const index::Setting& setting : kind_->settings()) {
    if (!setting.format) stored.settings.erase(setting.name);
  }
  stored_ = stored.to_string();
}

OwnedKey SideIndexes::key(std::uint64_t number) const {
  if (plan_.index.key_type == KeyType::kInteger) return OwnedKey(number);
  return OwnedKey(fmt::format("{:03}", number));
}

void SideIndexes::judge(std::string_view what, const std::string& name, const Error& error,
                        std::initializer_list<ErrorCode> answers) {
  if (std::ranges::find(answers, error.code()) != answers.end()) return;
  if (judge_.excused(error.code())) return;
  judge_.problem(fmt::format("{} index \"{}\": {}", what, name, error.message()));
}

Task<void> SideIndexes::client(Worker& worker, Random random, unsigned rounds) {
  Session& session = *api::Internals::of(worker).lane->session;
  for (unsigned i = 0; i < rounds; ++i) {
    const std::string name = kSideNames[random.below(kSideNames.size())];
    const std::uint64_t what = random.below(10);
    if (what < 4) {
      co_await create(session, name);
    } else if (what < 8) {
      co_await use(session, name, random);
    } else {
      co_await drop(session, name);
    }
    co_await session.worker().sleep_for(std::chrono::microseconds(1 + random.below(400)));
  }
}

// ---- Creating ----

Task<void> SideIndexes::create(Session& session, const std::string& name) {
  const auto made = co_await index::create_index(session, name, *kind_, settings_, stored_);
  if (!made) co_return judge("creating", name, made.error(), {ErrorCode::kExists});
  ++created_;
}

// ---- Using ----

Task<void> SideIndexes::use(Session& session, const std::string& name, Random& random) {
  pool::Catalogue& catalogue = session.compute_node().catalogue();
  Result<IndexRecord> record = fail(ErrorCode::kBusy);
  {
    pool::Operation op(session);
    record = co_await catalogue.open(op, name);
  }
  if (!record) co_return judge("opening", name, record.error(), {ErrorCode::kNotFound});
  {
    const Trees tree = kind_->make(session.compute_node(), *record, settings_);
    if (!tree) co_return judge("opening", name, tree.error(), {});
    for (std::uint64_t i = 1 + random.below(20); i > 0; --i) {
      const std::uint64_t number = random.below(kKeys);
      if (random.below(2) == 0) {
        co_await put(session, **tree, record->index_id, number);
      } else {
        co_await get(session, **tree, record->index_id, number);
      }
    }
  }
  pool::Operation op(session);
  const Status closed = co_await catalogue.close(op, *record);
  if (!closed) judge("closing", name, closed.error(), {});
}

Task<void> SideIndexes::put(Session& session, index::Tree& tree, std::uint32_t id,
                            std::uint64_t number) {
  const OwnedKey key = this->key(number);
  const std::string value = value_of(id, number);
  pool::Operation op(session);
  const Status done = co_await tree.put(op, key, value, index::PutMode::kPut);
  if (done) {
    acknowledged_[id].insert(number);
  } else {
    judge("a put into", std::to_string(id), done.error(), {});
  }
}

Task<void> SideIndexes::get(Session& session, index::Tree& tree, std::uint32_t id,
                            std::uint64_t number) {
  const bool there = acknowledged_[id].contains(number);
  const OwnedKey key = this->key(number);
  pool::Operation op(session);
  const Result<std::string> found = co_await tree.get(op, key);
  if (found) {
    if (*found == value_of(id, number)) co_return;
    judge_.problem(fmt::format("side index {}: key {} holds '{}'", id, number, *found));
  } else if (found.error().code() != ErrorCode::kNotFound) {
    judge("a get from", std::to_string(id), found.error(), {});
  } else if (there) {
    judge_.problem(fmt::format("side index {}: key {} is gone", id, number));
  }
}

// ---- Dropping ----

Task<void> SideIndexes::drop(Session& session, const std::string& name) {
  const Status done = co_await index::drop_index(session, name);
  if (!done) judge("dropping", name, done.error(), {ErrorCode::kNotFound, ErrorCode::kBusy});
}

// ---- At the end ----

void SideIndexes::check(Pool& pool, const std::function<void()>& wait) {
  constexpr int kTries = 8;  // those who died unseen have yet to be found out
  std::vector<const char*> again;
  for (const char* name : kSideNames) {
    const auto drop = [&] {
      Status dropped = pool.drop_index(name);
      for (int i = 0; i < kTries && !dropped && dropped.error().code() == ErrorCode::kBusy; ++i) {
        wait();
        dropped = pool.drop_index(name);
      }
      return dropped;
    };
    Status gone = drop();
    if (!gone && gone.error().code() != ErrorCode::kNotFound) {
      judge_.problem(
          fmt::format("index \"{}\" cannot be dropped: {}", name, gone.error().message()));
      continue;
    }
    const auto made = pool.create_index(name, plan_.index);
    if (!made) {
      judge("creating once more", name, made.error(), {});
      continue;
    }
    again.push_back(name);
  }
  for (const char* name : again) {
    const Status gone = pool.drop_index(name);
    if (!gone) {
      judge_.problem(fmt::format("index \"{}\" stays: {}", name, gone.error().message()));
    }
  }
}

}  // namespace pando::lab::check
