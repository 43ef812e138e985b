#include "fabric/tcp/stream_link.h"

#include <utility>

namespace pando::fabric::tcp {

void StreamLink::let_in(const wire::Welcome& welcome) {
  region_key_ = welcome.region_key;
  last_tag_ = answered_tag_ = 0;
  come_up();
}

void StreamLink::send_waiting() {
  for (remote::NodeBatch& node_batch : waiting()) {
    wire::append_batch(outbox().bytes(), ++last_tag_, region_key_, *node_batch.flight->batch,
                       node_batch.verbs);
    sent().push_back(std::move(node_batch));
  }
  waiting().clear();
}

bool StreamLink::take(const wire::Frame& frame, std::span<const std::byte> body) {
  if (frame.kind == wire::Kind::kRefusal) {  // shut out: it answers all that it has executed
    const Error why = refusal(body);
    for (remote::NodeBatch& node_batch : sent()) waiting().push_back(std::move(node_batch));
    sent().clear();
    refused(why);
    return false;
  }
  if (frame.kind != wire::Kind::kAnswer || sent().empty() || frame.tag != ++answered_tag_) {
    lost(Error(ErrorCode::kCorrupt, name() + " answers something that was not asked"));
    return false;
  }
  remote::NodeBatch node_batch = std::move(sent().front());
  sent().pop_front();
  if (node_batch.flight->batch == nullptr) {
    owner().ended(std::move(node_batch), {});
    return true;
  }
  const Status answered = wire::read_answer(body, *node_batch.flight->batch, node_batch.verbs);
  if (!answered && answered.error().code() == ErrorCode::kCorrupt) {
    sent().push_front(std::move(node_batch));
    lost(answered.error());
    return false;
  }
  owner().ended(std::move(node_batch), answered);
  return true;
}

}  // namespace pando::fabric::tcp
