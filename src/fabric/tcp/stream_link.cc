#include "fabric/tcp/stream_link.h"

#include <utility>

namespace pando::fabric::tcp {

void StreamLink::let_in(const wire::Welcome& welcome) {
  region_key_ = welcome.region_key;
  last_tag_ = answered_tag_ = 0;
  come_up();
}

void StreamLink::send_waiting() {
  for (remote::Part& part : waiting()) {
    wire::append_batch(outbox().bytes(), ++last_tag_, region_key_, *part.flight->batch, part.verbs);
    sent().push_back(std::move(part));
  }
  waiting().clear();
}

bool StreamLink::take(const wire::Frame& frame, std::span<const std::byte> body) {
  if (frame.kind == wire::Kind::kRefusal) {  // shut out: it answers all that it has executed
    const Error why = refusal(body);
    for (remote::Part& part : sent()) waiting().push_back(std::move(part));
    sent().clear();
    refused(why);
    return false;
  }
  if (frame.kind != wire::Kind::kAnswer || sent().empty() || frame.tag != ++answered_tag_) {
    lost(Error(ErrorCode::kCorrupt, name() + " answers something that was not asked"));
    return false;
  }
  remote::Part part = std::move(sent().front());
  sent().pop_front();
  if (part.flight->batch == nullptr) {
    owner().ended(std::move(part), {});
    return true;
  }
  const Status answered = wire::read_answer(body, *part.flight->batch, part.verbs);
  if (!answered && answered.error().code() == ErrorCode::kCorrupt) {
    sent().push_front(std::move(part));
    lost(answered.error());
    return false;
  }
  owner().ended(std::move(part), answered);
  return true;
}

}  // namespace pando::fabric::tcp
