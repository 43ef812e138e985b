#include "fabric/wire/tls.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "fabric/wire/socket.h"

namespace pando::fabric::wire {
namespace {

// Of the protocol: which cluster a client means is said inside, and answered in words.
constexpr std::string_view kIdentity = "pando";
constexpr std::string_view kLabel = "pando tls";
constexpr const char* kCipher = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kCipherNumber = {0x13, 0x01};
// What the records of a send() take beside its bytes, at most: heads, tags, the cipher's blocks.
constexpr std::uint64_t kOverhead = 320;

base::Digest derive(std::string_view key) {
  return base::sign(key, std::as_bytes(std::span(kLabel)));
}

// The key as OpenSSL wants it: as if it were left from a former session. Anew each time, as a
// connection changes it. nullptr: no memory.
SSL_SESSION* make_session(SSL* ssl) {
  const auto* const context =
      static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  const base::Digest& secret = context->secret();
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(secret.data()),
                                  secret.size()) == 1 &&
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kCipherNumber.data())) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int use_session(SSL* ssl, const EVP_MD* /*digest*/, const unsigned char** identity,
                std::size_t* length, SSL_SESSION** session) {
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *length = kIdentity.size();
  *session = make_session(ssl);
  return *session == nullptr ? 0 : 1;
}

int find_session(SSL* ssl, const unsigned char* identity, std::size_t length,
                 SSL_SESSION** session) {
  const std::string_view given(reinterpret_cast<const char*>(identity), length);
  *session = given == kIdentity ? make_session(ssl) : nullptr;
  return 1;
}

bool set_up(SSL_CTX* context) {
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, Tls::kBuffer);
  SSL_CTX_set_psk_use_session_callback(context, use_session);
  SSL_CTX_set_psk_find_session_callback(context, find_session);
  return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_ciphersuites(context, kCipher) == 1 &&
         SSL_CTX_set_num_tickets(context, 0) == 1;
}

}  // namespace

// ---- The context ----

TlsContext::TlsContext(std::string_view key, std::uint64_t renewal)
    : context_(SSL_CTX_new(TLS_method())), secret_(derive(key)), renewal_(renewal) {}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

Result<std::unique_ptr<const TlsContext>> TlsContext::make(std::string_view key,
                                                           std::uint64_t renewal) {
  if (key.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "TLS is made with the cluster's key, and there is none");
  }
  std::unique_ptr<TlsContext> made(new TlsContext(key, renewal));
  if (made->context_ == nullptr || !set_up(made->context_)) {
    ERR_clear_error();
    return fail(ErrorCode::kUnavailable, "OpenSSL has no TLS 1.3 here");
  }
  SSL_CTX_set_app_data(made->context_, made.get());
  return std::unique_ptr<const TlsContext>(std::move(made));
}

// ---- The way to the socket ----

// OpenSSL's own would write() each record by itself and be killed by SIGPIPE, and receive until
// nothing is left.
struct Tls::Bio {
  static const BIO_METHOD* method() {
    static BIO_METHOD* const kMethod = [] {
      BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "pando");
      if (made != nullptr) {
        BIO_meth_set_write(made, write);
        BIO_meth_set_read(made, read);
        BIO_meth_set_ctrl(made, control);
      }
      return made;
    }();
    return kMethod;
  }

 private:
  // A peer that makes us answer and does not fetch the answers is not kept.
  static constexpr std::size_t kMost = 1 << 20;

  static int write(BIO* bio, const char* bytes, int length) {
    Way& way = *static_cast<Way*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (way.out.size() > kMost) return -1;
    const auto* const begin = reinterpret_cast<const std::byte*>(bytes);
    way.out.insert(way.out.end(), begin, begin + length);
    return length;
  }

  static int read(BIO* bio, char* into, int length) {
    Way& way = *static_cast<Way*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (!std::exchange(way.may_receive, false)) {
      BIO_set_retry_read(bio);
      return -1;
    }
    const ssize_t got = recv(way.descriptor, into, static_cast<std::size_t>(length), 0);
    if (got < 0 && would_block(errno)) {
      BIO_set_retry_read(bio);
    } else if (got <= 0) {
      way.ended = true;
    }
    return static_cast<int>(got);
  }

  static long control(BIO* /*bio*/, int what, long /*number*/, void* /*more*/) {
    return what == BIO_CTRL_FLUSH ? 1 : 0;  // at the end of each of our calls
  }
};

bool Tls::Way::flush() {
  while (sent < out.size()) {
    const ssize_t more = ::send(descriptor, out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
    if (more < 0) return would_block(errno);
    sent += static_cast<std::size_t>(more);
  }
  out.clear();
  sent = 0;
  return true;
}

// ---- A connection ----

std::unique_ptr<Tls> Tls::make(const TlsContext& context, TlsRole role, int descriptor) {
  std::unique_ptr<Tls> tls(new Tls(context, role, descriptor));
  tls->ssl_ = SSL_new(context.get());
  BIO* const bio = Bio::method() == nullptr ? nullptr : BIO_new(Bio::method());
  if (tls->ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    ERR_clear_error();
    return nullptr;
  }
  BIO_set_data(bio, &tls->way_);
  BIO_set_init(bio, 1);
  SSL_set_bio(tls->ssl_, bio, bio);
  if (role == TlsRole::kClient) {
    SSL_set_connect_state(tls->ssl_);
    // Nobody is trusted to sign certificates: a node that comes with one, and not by the key, is
    // refused. A node has none, so a client without the key has no way in.
    SSL_set_verify(tls->ssl_, SSL_VERIFY_PEER, nullptr);
  } else {
    SSL_set_accept_state(tls->ssl_);
  }
  return tls;
}

Tls::~Tls() { SSL_free(ssl_); }

void Tls::begin() {
  ERR_clear_error();  // of this thread: whoever left something there
  agreed_ = agreed_ || SSL_is_init_finished(ssl_) != 0;
}

std::optional<std::size_t> Tls::send(std::span<const std::byte> bytes) {
  if (over_) return std::nullopt;
  way_.may_receive = true;
  bool open = way_.flush();
  if (open && taken_ == 0 && !way_.waits()) {
    taken_ = encrypt(bytes.first(std::min(bytes.size(), kBuffer)));
    open = way_.flush();
  }
  if (!open && !over_) end();
  if (over_) return std::nullopt;
  // Who sends waits for room as long as not all is taken.
  return way_.waits() ? 0 : std::exchange(taken_, 0);
}

// How many of them: all, or none in the handshake.
std::size_t Tls::encrypt(std::span<const std::byte> bytes) {
  if (bytes.empty()) return 0;
  // The peer renews its own key, and is not asked to: nobody has to answer.
  if (used_ >= renewal_ && SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) used_ = 0;
  begin();
  std::size_t done = 0;
  if (SSL_write_ex(ssl_, bytes.data(), bytes.size(), &done) != 1) {
    look_why();
    return 0;
  }
  used_ += done + kOverhead;
  return done;
}

std::optional<std::size_t> Tls::receive(std::span<std::byte> into) {
  if (over_) return std::nullopt;
  way_.may_receive = true;
  std::size_t got = 0;
  while (got < into.size()) {
    begin();
    std::size_t more = 0;
    if (SSL_read_ex(ssl_, into.data() + got, into.size() - got, &more) != 1) {
      look_why();
      break;
    }
    got += more;
  }
  way_.flush();  // the handshake's answers, or what we have to say at the end
  if (!over_) return got;
  if (got == 0) return std::nullopt;
  // The next call says so. Whoever waits for the connection shall make it.
  shutdown(way_.descriptor, SHUT_RDWR);
  return got;
}

short Tls::events(short wanted) const {
  const int to_send = way_.waits() ? POLLOUT : 0;
  if (SSL_is_init_finished(ssl_) != 0) return static_cast<short>(wanted | to_send);
  const bool begun = SSL_want_nothing(ssl_) == 0;
  return static_cast<short>(POLLIN | (begun ? to_send : POLLOUT));
}

void Tls::look_why() {
  const int what = SSL_get_error(ssl_, 0);
  if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) return;
  const unsigned long error = ERR_peek_error();
  ERR_clear_error();
  if (!way_.ended && what == SSL_ERROR_SSL) note_problem(error);
  end();
}

void Tls::end() {
  over_ = true;
  if (problem_ || agreed_ || role_ == TlsRole::kNode) return;
  problem_.emplace(ErrorCode::kUnavailable,
                   "the connection was closed before TLS was agreed on; if the node serves no TLS, "
                   "start it with --tls on, or leave tls=on out of the URL");
}

void Tls::note_problem(unsigned long error) {
  const int reason = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
  const int alert = reason - SSL_AD_REASON_OFFSET;  // where it came from the peer
  // The node finds that the client's proof of the key is wrong, and says so in few words.
  const bool denied = reason == SSL_R_BINDER_DOES_NOT_VERIFY ||
                      reason == SSL_R_CERTIFICATE_VERIFY_FAILED ||
                      (role_ == TlsRole::kClient &&
                       (alert == SSL_AD_ILLEGAL_PARAMETER || alert == SSL_AD_DECRYPT_ERROR ||
                        alert == SSL_AD_HANDSHAKE_FAILURE || alert == SSL_AD_UNKNOWN_PSK_IDENTITY));
  const char* const known = ERR_reason_error_string(error);
  const std::string_view words = known == nullptr ? "a broken record" : known;
  if (!agreed_ && denied) {
    problem_.emplace(ErrorCode::kDenied,
                     role_ == TlsRole::kClient
                         ? "TLS: the node has another key: give the cluster's own, as in "
                           "?key_file=PATH"
                         : "TLS: wrong key");
  } else if (!agreed_) {
    problem_.emplace(ErrorCode::kIncompatible,
                     fmt::format("what is there does not speak TLS as we do: {}", words));
  } else {
    problem_.emplace(ErrorCode::kUnavailable, fmt::format("TLS: {}", words));
  }
}

}  // namespace pando::fabric::wire
