#include "fabric/etcd/client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>

namespace pando::fabric::etcd {
namespace {

constexpr std::size_t kMaxAnswer = 16 << 20;

struct Answer {
  std::string body;
  const std::atomic<bool>* cancelled;
};

std::size_t take_bytes(const char* bytes, std::size_t /*one*/, std::size_t count, void* to) {
  std::string& body = static_cast<Answer*>(to)->body;
  if (body.size() + count > kMaxAnswer) return 0;  // which ends the request
  body.append(bytes, count);
  return count;
}

int look_whether_cancelled(void* from, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const Answer*>(from)->cancelled->load() ? 1 : 0;
}

void set_up_library() {
  static const CURLcode kDone = curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)kDone;
}

// What etcd's HTTP status says of who is to blame.
ErrorCode code_of(long status) {
  if (status == 401 || status == 403) return ErrorCode::kDenied;
  return status >= 500 || status == 408 || status == 429 ? ErrorCode::kUnavailable
                                                         : ErrorCode::kCorrupt;
}

}  // namespace

Result<std::vector<std::string>> parse_endpoints(std::string_view text) {
  std::vector<std::string> endpoints;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    std::string_view one = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    while (one.ends_with('/')) one.remove_suffix(1);
    const std::size_t scheme = one.find("://");
    const bool known = one.starts_with("http://") || one.starts_with("https://");
    if (!known || one.size() == scheme + 3) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is no address of etcd, as in http://127.0.0.1:2379", one));
    }
    endpoints.emplace_back(one);
  }
  if (!endpoints.empty()) return endpoints;
  return fail(ErrorCode::kInvalidArgument,
              "the addresses of etcd are missing, as in http://127.0.0.1:2379");
}

struct Client::Connection {
  Connection() : handle(curl_easy_init()) {
    headers = curl_slist_append(nullptr, "Content-Type: application/json");
  }
  ~Connection() {
    curl_slist_free_all(headers);
    curl_easy_cleanup(handle);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // One request to one endpoint.
  Result<std::string> post(const std::string& url, const std::string& request,
                           const std::atomic<bool>& cancelled) const;

  CURL* handle;
  curl_slist* headers;
};

Result<std::string> Client::Connection::post(const std::string& url, const std::string& request,
                                             const std::atomic<bool>& cancelled) const {
  Answer answer{{}, &cancelled};
  curl_easy_reset(handle);  // its connections stay
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_PROXY, "");  // etcd is near
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(kConnectTime.count()));
  curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, static_cast<long>(kRequestTime.count()));
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE, static_cast<long>(request.size()));
  curl_easy_setopt(handle, CURLOPT_POSTFIELDS, request.c_str());
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, take_bytes);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &answer);
  curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, look_whether_cancelled);
  curl_easy_setopt(handle, CURLOPT_XFERINFODATA, &answer);
  if (const CURLcode done = curl_easy_perform(handle); done != CURLE_OK) {
    return fail(ErrorCode::kUnavailable, curl_easy_strerror(done));
  }
  long status = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  if (status == 200) return std::move(answer.body);
  return fail(code_of(status), fmt::format("{} ({})", parse_failure(answer.body), status));
}

Client::Client(std::vector<std::string> endpoints) : endpoints_(std::move(endpoints)) {
  set_up_library();
  connection_ = std::make_unique<Connection>();
}

Client::~Client() = default;

Result<std::string> Client::ask(const char* path, const std::string& request) {
  const base::MutexLock lock(mutex_);
  if (connection_->handle == nullptr) {
    return fail(ErrorCode::kOutOfMemory, "there is no memory for a connection to etcd");
  }
  std::optional<Error> first;
  for (std::size_t i = 0; i < endpoints_.size() && !cancelled_.load(); ++i) {
    const std::size_t at = (preferred_ + i) % endpoints_.size();
    auto answer = connection_->post(endpoints_[at] + path, request, cancelled_);
    if (answer) {
      preferred_ = at;
      return answer;
    }
    const Error error(answer.error().code(),
                      fmt::format("etcd at {}: {}", endpoints_[at], answer.error().detail()));
    if (error.code() != ErrorCode::kUnavailable) return fail(error);  // it answers, but says no
    if (!first) first = error;
  }
  return fail(first.value_or(Error(ErrorCode::kUnavailable, "etcd is asked no more")));
}

Result<std::vector<KeyValue>> Client::range(std::string_view prefix) {
  const auto answer = ask("/v3/kv/range", range_request(prefix));
  if (!answer) return fail(answer.error());
  return parse_range(*answer);
}

Result<bool> Client::transact(std::span<const Unchanged> where, std::span<const Put> puts) {
  const auto answer = ask("/v3/kv/txn", transact_request(where, puts));
  if (!answer) return fail(answer.error());
  return parse_transact(*answer);
}

Result<Lease> Client::grant(std::chrono::seconds time) {
  const auto answer = ask("/v3/lease/grant", grant_request(time));
  if (!answer) return fail(answer.error());
  return parse_grant(*answer);
}

Result<bool> Client::keep_alive(Lease lease) {
  const auto answer = ask("/v3/lease/keepalive", lease_request(lease));
  if (!answer) return fail(answer.error());
  return parse_keep_alive(*answer);
}

Status Client::revoke(Lease lease) {
  const auto answer = ask("/v3/lease/revoke", lease_request(lease));
  if (!answer) return fail(answer.error());
  return {};
}

}  // namespace pando::fabric::etcd
