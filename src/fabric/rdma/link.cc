#include "fabric/rdma/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace pando::fabric::rdma {
namespace {

// The socket has little to say while verbs go by the queue pair, and asking costs a system call.
constexpr auto kBetweenLooks = std::chrono::milliseconds(1);
constexpr std::uint8_t kRetries = 7;

// READs and WRITEs of nothing are not sent.
bool travels(const Verb& verb) { return is_atomic(verb.kind) || verb.length > 0; }

// So that all tries together take no longer than `time`: a try takes 4.096 µs × 2^exponent.
std::uint8_t ack_timeout(std::chrono::milliseconds time) {
  constexpr std::uint8_t kLeast = 10;
  constexpr std::uint8_t kMost = 18;  // a second
  std::uint8_t exponent = kLeast;
  while (exponent < kMost &&
         std::chrono::nanoseconds(4096) * (2 << exponent) * (kRetries + 1) <= time) {
    ++exponent;
  }
  return exponent;
}

}  // namespace

Link::Link(remote::Cluster& cluster, NodeId id, Owner& owner, const Device& device,
           const LinkOptions& options, Arena& arena)
    : remote::Link(cluster, id, owner),
      device_(device),
      options_(options),
      arena_(arena),
      slots_(reinterpret_cast<std::uint64_t*>(arena.allocate(kSlots * sizeof(std::uint64_t)))) {}

Error Link::unavailable(std::string_view what) const {
  return {ErrorCode::kUnavailable, fmt::format("{}, by RDMA: {}", name(), what)};
}

// ---- Coming in ----

void Link::let_in(const wire::Welcome& /*welcome*/) {
  wire::append_empty(outbox().bytes(), wire::Kind::kRdmaRequest);
}

bool Link::take(const wire::Frame& frame, std::span<const std::byte> body) {
  if (frame.kind == wire::Kind::kRefusal) {
    refused(Error(refusal(body)));
    return false;
  }
  const Result<wire::RdmaOffer> offer = wire::parse_rdma_offer(frame, body);
  if (!offer) {
    refused(offer.error());
  } else if (state() == State::kUp || id_ != nullptr) {
    lost(Error(ErrorCode::kCorrupt, name() + " answers something that was not asked"));
  } else {
    connect(*offer);
  }
  return state() != State::kDown;
}

void Link::connect(const wire::RdmaOffer& offer) {
  if ((options_.line_atomic && offer.line_atomic == 0) ||
      (options_.masked_cas && offer.masked_cas == 0)) {
    return refused(Error(ErrorCode::kIncompatible,
                         name() + " has come back with a device that cannot do what the one before "
                                  "it did; open the pool anew"));
  }
  offer_ = offer;
  Result<Owned<rdma_event_channel>> channel = make_channel();
  if (!channel) return lost(channel.error());
  events_ = std::move(*channel);
  Result<Owned<rdma_cm_id>> id = make_id(*events_);
  if (!id) return lost(id.error());
  id_ = std::move(*id);
  SocketAddress source;
  if (!options_.device.name.empty()) {
    Result<SocketAddress> own = address_of(options_.device);
    if (!own) return lost(own.error());
    source = *own;
  }
  SocketAddress to = make_address(offer.address, offer.port);
  const auto time = static_cast<int>(cluster().options().timeout.count());
  if (rdma_resolve_addr(id_.get(), options_.device.name.empty() ? nullptr : source.get(), to.get(),
                        time) != 0) {
    lost(rdma_error(fmt::format("{}, by RDMA at {}", name(), to.to_string()), errno));
  }
}

// What the connection's events say.
void Link::hear() {
  Event event;
  while (state() != State::kDown && events_ != nullptr && next_event(*events_, event)) {
    if (const Status taken = take_event(event); !taken) {
      talk();  // the node may have said why
      if (state() != State::kDown) lost(taken.error());
    }
  }
}

Status Link::take_event(const Event& event) {
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (id_->verbs != device_.context()) {
        return fail(unavailable(fmt::format(
            "it is reached by device {}, and other nodes of the pool by {}; a pool uses one",
            ibv_get_device_name(id_->verbs->device), device_.name())));
      }
      if (rdma_resolve_route(id_.get(), static_cast<int>(cluster().options().timeout.count())) !=
          0) {
        return fail(rdma_error(name(), errno));
      }
      return {};
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      if (Status made = make_queues(); !made) return made;
      return enter();
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      if (state() != State::kComingIn) return {};
      if (Status ready = establish(); !ready) return ready;
      come_up();
      return {};
    default:
      return fail(unavailable(rdma_event_str(event.type)));
  }
}

Status Link::make_queues() {
  completions_.reset(ibv_create_comp_channel(device_.context()));
  if (completions_ == nullptr) return fail(rdma_error(name(), errno));
  set_non_blocking(completions_->fd);
  // Every work request completes when the queue pair breaks.
  completed_queue_.reset(ibv_create_cq(device_.context(), kSlots, nullptr, completions_.get(), 0));
  if (completed_queue_ == nullptr) return fail(registration_error(kSlots * sizeof(ibv_wc), errno));
  Result<std::unique_ptr<Queue>> queue = make_queue(device_, *completed_queue_,
                                                    {.max_send_wr = kSlots,
                                                     .max_recv_wr = 1,
                                                     .max_send_sge = 1,
                                                     .max_recv_sge = 1,
                                                     .max_inline_data = kInlineBytes},
                                                    options_.masked_cas);
  if (!queue) return fail(unavailable(queue.error().detail()));
  queue_ = std::move(*queue);
  return {};
}

Status Link::enter() {
  std::uint8_t exponent = ack_timeout(cluster().options().timeout);
  // Without it the system's own choice holds, which only takes longer to give up.
  (void)rdma_set_option(id_.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &exponent,
                        sizeof(exponent));
  const wire::Ticket ticket{.token = offer_.token, .mtu = options_.mtu};
  rdma_conn_param wanted{};
  wanted.private_data = &ticket;
  wanted.private_data_len = sizeof(ticket);
  wanted.responder_resources = RDMA_MAX_RESP_RES;
  wanted.initiator_depth = RDMA_MAX_INIT_DEPTH;
  wanted.retry_count = kRetries;
  wanted.rnr_retry_count = kRetries;
  wanted.qp_num = queue_->pair().qp_num;
  if (rdma_connect(id_.get(), &wanted) != 0) return fail(rdma_error(name(), errno));
  return {};
}

// The node has let us in. Whoever makes queue pairs without librdmacm ends the greeting, too.
Status Link::establish() {
  const ibv_mtu mtu = find_mtu(options_.mtu).value_or(IBV_MTU_4096);
  if (Status ready = make_ready(queue_->pair(), *id_, device_, mtu); !ready) return ready;
  if (rdma_establish(id_.get()) != 0) return fail(rdma_error(name(), errno));
  return {};
}

// ---- Verbs ----

void Link::send_waiting() {
  while (!waiting().empty() && !broken_) {
    remote::NodeBatch& node_batch = waiting().front();
    if (posted_ - completed_ + node_batch.verbs.size() > kSlots) return;
    const Posted posted{.first = posted_, .end = posted_};
    under_way_.push_back(posted);
    sent().push_back(std::move(node_batch));
    waiting().pop_front();
    std::size_t count = 0;
    const remote::Flight& flight = *sent().back().flight;
    Batch& batch = *flight.batch;
    if (std::exchange(ordered_, &flight) != &flight) order_ = {};
    for (const std::uint32_t i : sent().back().verbs) {
      if (!travels(batch[i])) continue;
      describe(batch[i], requests_[count]);
      requests_[count].work.send_flags |= order_.flags_of(batch[i].kind);
      ++posted_;
      ++count;
    }
    under_way_.back().end = posted_;
    if (count == 0) continue;  // ends with the next look
    ibv_send_wr& last = requests_[count - 1].work;
    last.send_flags |= IBV_SEND_SIGNALED;
    last.wr_id = posted_;
    if (const int problem = queue_->post(std::span(requests_).first(count)); problem != 0) {
      // Whoever posts cannot be told yet that it has ended.
      broken_ = unavailable(wire::system_reason(problem));
    }
  }
}

// The work request number posted_.
void Link::describe(const Verb& verb, Request& request) {
  const bool onchip = verb.target.on_chip();
  const std::uint64_t at =
      (onchip ? offer_.onchip_at : offer_.memory_at) + verb.target.offset_in_part();
  const std::uint32_t key = onchip ? offer_.onchip_key : offer_.memory_key;
  request = {};
  ibv_send_wr& work = request.work;
  work.sg_list = &request.piece;
  work.num_sge = 1;
  if (is_atomic(verb.kind)) {
    auto* const slot = reinterpret_cast<std::byte*>(&slots_[posted_ % kSlots]);
    request.piece = {.addr = reinterpret_cast<std::uint64_t>(slot),
                     .length = 8,
                     .lkey = arena_.key_of(slot, 8).value_or(0)};
    work.wr.atomic.remote_addr = at;
    work.wr.atomic.rkey = key;
    if (verb.kind == VerbKind::kFetchAdd) {
      work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      work.wr.atomic.compare_add = verb.swap;
      return;
    }
    if (verb.kind == VerbKind::kMaskedCompareSwap && !verb.emulated) {
      request.masked = &verb;
      return;
    }
    work.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    const bool masked = verb.kind == VerbKind::kMaskedCompareSwap;
    work.wr.atomic.compare_add = masked ? verb.guess : verb.compare;
    work.wr.atomic.swap = masked ? verb.swapped(verb.guess) : verb.swap;
    return;
  }
  const bool within = verb.kind == VerbKind::kWrite && verb.length <= kInlineBytes;
  request.piece = {.addr = reinterpret_cast<std::uint64_t>(verb.local),
                   .length = verb.length,
                   .lkey = within ? 0 : arena_.key_of(verb.local, verb.length).value_or(0)};
  work.opcode = verb.kind == VerbKind::kRead ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  work.send_flags = within ? static_cast<unsigned>(IBV_SEND_INLINE) : 0u;
  work.wr.rdma.remote_addr = at;
  work.wr.rdma.rkey = key;
}

void Link::work(task::TimePoint now) {
  if (state() == State::kUp) {
    reap();
    if (state() != State::kUp || now < look_from_) return;
  }
  look_from_ = now + kBetweenLooks;
  talk();
  if (state() != State::kDown) hear();
}

void Link::reap() {
  if (armed_) {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(completions_.get(), &queue, &context) == 0) {
      ibv_ack_cq_events(queue, 1);
      armed_ = false;
    }
  }
  std::array<ibv_wc, 16> done;
  int count = 0;
  while (!broken_ && (count = ibv_poll_cq(completed_queue_.get(), done.size(), done.data())) > 0) {
    for (const ibv_wc& each : std::span(done).first(static_cast<std::size_t>(count))) {
      if (each.status != IBV_WC_SUCCESS) {
        broken_ = unavailable(ibv_wc_status_str(each.status));
        break;
      }
      completed_ = each.wr_id;
    }
  }
  if (count < 0 && !broken_) broken_ = unavailable("the completion queue is broken");
  while (!under_way_.empty() && under_way_.front().end <= completed_) {
    const remote::NodeBatch node_batch = std::move(sent().front());
    sent().pop_front();
    const Posted posted = under_way_.front();
    under_way_.pop_front();
    finish(node_batch, posted.first);
    owner().ended(node_batch, {});
  }
  if (broken_) {
    talk();  // the node may have said why
    if (state() != State::kDown) lost(Error(*broken_));
    return;
  }
  if (!waiting().empty()) send_waiting();
}

void Link::finish(const remote::NodeBatch& node_batch, std::uint64_t number) {
  Batch* const batch = node_batch.flight->batch;
  if (batch == nullptr) return;
  for (const std::uint32_t i : node_batch.verbs) {
    Verb& verb = (*batch)[i];
    verb.outcome = Outcome::kExecuted;
    if (is_atomic(verb.kind)) verb.previous = slots_[number % kSlots];
    if (travels(verb)) ++number;
  }
}

// ---- Waiting and ends ----

bool Link::add_descriptors(std::vector<pollfd>& to) const {
  if (!remote::Link::add_descriptors(to)) return false;
  if (events_ != nullptr) to.push_back({.fd = events_->fd, .events = POLLIN, .revents = 0});
  if (state() != State::kUp) return true;
  to.push_back({.fd = completions_->fd, .events = POLLIN, .revents = 0});
  if (armed_) return true;
  // What completed before it was armed is found by asking once more.
  armed_ = ibv_req_notify_cq(completed_queue_.get(), 0) == 0;
  return false;
}

void Link::close() {
  close_queues();
  remote::Link::close();
}

void Link::close_queues() {
  queue_.reset();
  id_.reset();
  completed_queue_.reset();
  completions_.reset();
  events_.reset();
  under_way_.clear();
  ordered_ = nullptr;
  broken_.reset();
  posted_ = completed_ = 0;
  armed_ = false;
}

}  // namespace pando::fabric::rdma
