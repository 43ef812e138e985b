// Who comes in by the offer for RDMA, seen through rdma-core itself: clients that keep to nothing.
// Runs where there is a device (support/memory_nodes.h).

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "fabric/conformance.h"
#include "fabric/open.h"
#include "fabric/rdma/acceptor.h"
#include "fabric/rdma/device.h"
#include "fabric/rdma/queue.h"
#include "fabric/wire/control.h"
#include "support/memory_nodes.h"

namespace pando::fabric {
namespace {

using pando::testing::MemoryNodes;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Address kClientWord(0, 4096);

// A connection with a token, and WRITEs through it, past all of our code.
class RawClient {
 public:
  RawClient(const wire::RdmaOffer& offer, const base::Digest& token, std::uint32_t mtu = 0)
      : offer_(offer) {
    rdma_cm_id* id = nullptr;
    if (rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) != 0) return;
    id_.reset(id);
    rdma::SocketAddress to = rdma::make_address(offer.address, offer.port);
    ibv_qp_init_attr wanted{};
    wanted.cap = {.max_send_wr = 8,
                  .max_recv_wr = 1,
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = 64};
    wanted.qp_type = IBV_QPT_RC;
    if (rdma_resolve_addr(id, nullptr, to.get(), 5'000) != 0 ||
        rdma_resolve_route(id, 5'000) != 0 || rdma_create_qp(id, nullptr, &wanted) != 0) {
      return;
    }
    const wire::Ticket ticket{.token = token, .mtu = mtu};
    rdma_conn_param parameters{};
    parameters.private_data = &ticket;
    parameters.private_data_len = sizeof(ticket);
    parameters.retry_count = 2;
    std::uint8_t timeout = 12;
    rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout));
    in_ = rdma_connect(id, &parameters) == 0;
  }

  bool in() const { return in_; }
  // Whether it was done.
  bool write(std::uint64_t word, std::uint64_t at) const {
    if (rdma_post_write(id_.get(), nullptr, &word, sizeof(word), nullptr,
                        IBV_SEND_INLINE | IBV_SEND_SIGNALED, at, offer_.memory_key) != 0) {
      return false;
    }
    ibv_wc done{};
    for (int i = 0; i < 500; ++i) {
      if (ibv_poll_cq(id_->send_cq, 1, &done) > 0) return done.status == IBV_WC_SUCCESS;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }
  bool write(std::uint64_t word) const {
    return write(word, offer_.memory_at + kClientWord.offset());
  }

 private:
  wire::RdmaOffer offer_;
  rdma::Owned<rdma_cm_id> id_;
  bool in_ = false;
};

class RdmaAcceptor : public ::testing::TestWithParam<std::string> {
 protected:
  static wire::ControlLink come(const MemoryNodes& nodes, ClientId client,
                                std::uint32_t generation) {
    return wire::ControlLink::open(wire::parse_place(nodes.tcp_url().substr(4)).value(), "", "",
                                   {.client = client,
                                    .generation = generation,
                                    .purpose = wire::Purpose::kRdma,
                                    .joins = static_cast<std::uint8_t>(client == 0 ? 1 : 0)},
                                   20s)
        .value();
  }
  const MemoryNodes nodes_{{.rdma = true}};
  Client watcher_{open_fabric(nodes_.rdma_url() + "?timeout=20000").value()};
};

std::vector<std::string> addresses() {
  const char* const address = pando::testing::rdma_address();
  return address == nullptr ? std::vector<std::string>() : std::vector<std::string>{address};
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RdmaAcceptor);
INSTANTIATE_TEST_SUITE_P(Soft, RdmaAcceptor, ::testing::ValuesIn(addresses()),
                         [](const auto&) { return std::string("rdma"); });

TEST_P(RdmaAcceptor, OpensToTheTokenOnce) {
  auto link = come(nodes_, 0, 1);
  const wire::RdmaOffer offer = link.ask_for_rdma(20s).value();
  EXPECT_FALSE(RawClient(offer, {}).in()) << "no token";
  base::Digest wrong = offer.token;
  wrong[31] ^= std::byte{1};
  EXPECT_FALSE(RawClient(offer, wrong).in()) << "not quite the token";
  const RawClient client(offer, offer.token);
  ASSERT_TRUE(client.in());
  EXPECT_FALSE(RawClient(offer, offer.token).in()) << "the token was used";
  EXPECT_TRUE(client.write(41));
  EXPECT_EQ(watcher_.read_word(kClientWord), 41u);
}

TEST_P(RdmaAcceptor, ATokenOfAConnectionThatEndedIsWorthNothing) {
  wire::RdmaOffer offer;
  {
    auto link = come(nodes_, 0, 1);
    offer = link.ask_for_rdma(20s).value();
  }
  watcher_.write_word(kClientWord, 1);
  bool in = true;
  for (int i = 0; i < 100 && in; ++i) {  // until the node has seen the end
    in = RawClient(offer, offer.token).in();
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_FALSE(in);
}

TEST_P(RdmaAcceptor, AFenceEndsVerbsThatAreStillToCome) {
  auto link = come(nodes_, 0, 1);
  const wire::RdmaOffer offer = link.ask_for_rdma(20s).value();
  const RawClient client(offer, offer.token);
  ASSERT_TRUE(client.in());
  ASSERT_TRUE(client.write(1));
  ASSERT_TRUE(watcher_.fence(link.welcome().client));
  EXPECT_FALSE(client.write(2));
  EXPECT_EQ(watcher_.read_word(kClientWord), 1u);
  EXPECT_FALSE(RawClient(offer, offer.token).in());
}

TEST_P(RdmaAcceptor, ANewerGenerationEndsVerbsThatAreStillToCome) {
  auto link = come(nodes_, 0, 1);
  const wire::RdmaOffer offer = link.ask_for_rdma(20s).value();
  const RawClient client(offer, offer.token);
  ASSERT_TRUE(client.in());
  ASSERT_TRUE(client.write(1));
  auto newer = come(nodes_, link.welcome().client, 2);
  EXPECT_FALSE(client.write(2));
  EXPECT_EQ(watcher_.read_word(kClientWord), 1u);
  const wire::RdmaOffer other = newer.ask_for_rdma(20s).value();
  EXPECT_TRUE(RawClient(other, other.token).in());
}

// The header and the redo slots lie before the memory that is served.
TEST_P(RdmaAcceptor, NothingBesideTheMemoryIsServed) {
  for (const bool before : {true, false}) {
    auto link = come(nodes_, 0, 1);
    const wire::RdmaOffer offer = link.ask_for_rdma(20s).value();
    const RawClient client(offer, offer.token);
    ASSERT_TRUE(client.in());
    EXPECT_FALSE(
        client.write(7, before ? offer.memory_at - 8 : offer.memory_at + nodes_.memory(0).bytes()));
  }
  EXPECT_TRUE(open_fabric(nodes_.rdma_url() + "?timeout=20000")) << "the node goes on";
}

// Sides that do not agree on it take each other's packets for broken ones.
TEST_P(RdmaAcceptor, TheMtuIsTheClientsChoice) {
  constexpr std::size_t kBytes = 100'000;
  for (const std::uint32_t mtu : rdma::kMtus) {
    Client client(
        open_fabric(nodes_.rdma_url() + "?timeout=20000&mtu=" + std::to_string(mtu)).value());
    const Buffer out = client.endpoint().buffer(kBytes);
    const Buffer in = client.endpoint().buffer(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) out.data()[i] = static_cast<std::byte>(i * mtu % 251);
    Batch batch;
    batch.write(kClientWord, out.data(), kBytes);
    batch.read(kClientWord, in.data(), kBytes);
    const Status done = client.submit(batch);
    ASSERT_TRUE(done) << mtu << ": " << done.error().message();
    EXPECT_EQ(std::memcmp(out.data(), in.data(), kBytes), 0) << mtu;
  }
}

TEST_P(RdmaAcceptor, AnMtuThatThereIsNotIsRefused) {
  auto link = come(nodes_, 0, 1);
  const wire::RdmaOffer offer = link.ask_for_rdma(20s).value();
  EXPECT_EQ(offer.knows_mtu, 1);
  EXPECT_FALSE(RawClient(offer, offer.token, 1500).in());
}

// Soft-RoCE has neither.
TEST_P(RdmaAcceptor, WhatOnlyCardsHaveIsNotClaimed) {
  auto link = come(nodes_, 0, 1);
  EXPECT_EQ(link.ask_for_rdma(20s).value().masked_cas, 0);
  const auto fabric = open_fabric(nodes_.rdma_url() + "?timeout=20000&masked_cas=native").value();
  EXPECT_FALSE(fabric->caps().masked_cas);
  EXPECT_NE(nodes_.memory(0).header().onchip_in_card, 1u);

  const auto memory = node::NodeMemory::make({.bytes = 1 << 20}).value();
  const auto place = wire::parse_place(GetParam() + ":0").value();
  node::ServerOptions options{.listen = {wire::parse_place("127.0.0.1:0").value()},
                              .rdma = rdma::acceptor_at(place, node::OnChipPlace::kCard)};
  const auto refused = node::Server::open(memory, options);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().detail(),
              HasSubstr("has 0B of memory on its chip, less than 256KiB"));
  EXPECT_EQ(memory.header().onchip_in_card, 0u);
  options.rdma = rdma::acceptor_at(place);
  const auto server = node::Server::open(memory, options);
  ASSERT_TRUE(server);
  EXPECT_FALSE((*server)->onchip_in_card());
}

// The socket beside the verbs: to come in, to be offered RDMA, to fence, to be shut out.
TEST_P(RdmaAcceptor, IsShownByTls) {
  const MemoryNodes nodes({.rdma = true, .tls = true});
  const std::string url = nodes.rdma_url() + "?timeout=20000&";
  Client watcher(open_fabric(url + nodes.tls_words()).value());
  Client victim(open_fabric(url + nodes.tls_words()).value());
  victim.write_word(kClientWord, 5);
  EXPECT_EQ(watcher.read_word(kClientWord), 5u);
  ASSERT_TRUE(watcher.fence(victim.fabric().client()));
  std::uint64_t word = 6;
  Batch batch;
  batch.write_word(kClientWord, &word);
  const Status shut_out = victim.submit(batch);
  ASSERT_FALSE(shut_out);
  EXPECT_EQ(shut_out.error().code(), ErrorCode::kFenced);
  EXPECT_EQ(watcher.read_word(kClientWord), 5u);
  const auto plain = open_fabric(url + "key_file=" + nodes.key_file());
  ASSERT_FALSE(plain);
  EXPECT_EQ(plain.error().code(), ErrorCode::kDenied);
}

TEST_P(RdmaAcceptor, OtherWaysAreShut) {
  for (const std::string& url : {nodes_.tcp_url(), nodes_.mapped_url()}) {
    const auto refused = open_fabric(url);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().detail(), HasSubstr("open rdma:"));
  }
  const MemoryNodes plain({});
  const auto refused = open_fabric(plain.rdma_url());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().detail(), HasSubstr("start it with --rdma"));
  const auto no_device = open_fabric(nodes_.rdma_url() + "?device=none0");
  ASSERT_FALSE(no_device);
  EXPECT_THAT(no_device.error().detail(), HasSubstr("there is no RDMA device 'none0'; there are:"));
}

}  // namespace
}  // namespace pando::fabric
