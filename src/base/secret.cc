#include "base/secret.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>

namespace pando::base {

void fill_random(std::span<std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = getrandom(bytes.data() + done, bytes.size() - done, 0);
    // It fails only where the kernel has no generator at all; no secret may be made then.
    if (got < 0 && errno != EINTR) std::abort();
    if (got > 0) done += static_cast<std::size_t>(got);
  }
}

std::uint64_t random_word() {
  std::uint64_t word = 0;
  fill_random(std::as_writable_bytes(std::span(&word, 1)));
  return word;
}

Digest sign(std::string_view key, std::span<const std::byte> message) {
  Digest digest{};
  unsigned length = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(),
       reinterpret_cast<unsigned char*>(digest.data()), &length);
  return digest;
}

bool same(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Result<std::string> read_key(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("key file '{}': {}", path, std::generic_category().message(errno)));
  }
  if ((status.st_mode & S_IRWXO) != 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("key file '{}' is open to everyone; make it chmod 640 or 600", path));
  }
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  constexpr std::string_view kWhite = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kWhite);
  if (!file || first == std::string::npos) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("key file '{}' is empty or cannot be read; make one with: "
                            "openssl rand -hex 32",
                            path));
  }
  return text.substr(first, text.find_last_not_of(kWhite) - first + 1);
}

}  // namespace pando::base
