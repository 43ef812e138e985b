// StreamLink: a link whose verbs travel over its socket, as Batches and Answers (wire/messages.h).
#pragma once

#include "fabric/remote/link.h"

namespace pando::fabric::tcp {

class StreamLink final : public remote::Link {
 public:
  using Link::Link;

 private:
  void let_in(const wire::Welcome& welcome) override;
  void send_waiting() override;
  void work(task::TimePoint /*now*/) override { talk(); }
  bool take(const wire::Frame& frame, std::span<const std::byte> body) override;

  std::uint64_t region_key_ = 0;
  std::uint64_t last_tag_ = 0;
  std::uint64_t answered_tag_ = 0;
};

}  // namespace pando::fabric::tcp
