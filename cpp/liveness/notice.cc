#include "liveness/notice.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/hex.h"
#include "base/named_values.h"
#include "base/random.h"

namespace torch_ucc {
namespace {

constexpr std::string_view kMagic = "tuccline";
constexpr std::size_t kWord = kNumberBytes;
static_assert(kMagic.size() == kWord);
static_assert(Hello::kBytes == kWord + Secret::kHalf + kWord);

std::string put(std::uint64_t value) {
  std::string bytes;
  for (std::size_t i = 0; i < kWord; ++i) {
    bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
  return bytes;
}

std::uint64_t get(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < kWord; ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

std::string random_bytes(std::size_t count) {
  std::string bytes;
  while (bytes.size() < count) {
    bytes += put(random_number());
  }
  bytes.resize(count);
  return bytes;
}

}  // namespace

std::string encode_number(std::uint64_t value) { return put(value); }

std::optional<std::uint64_t> decode_number(std::string_view bytes) {
  return bytes.size() < kNumberBytes ? std::nullopt : std::optional(get(bytes));
}

std::string Notice::encode() const { return put(peer) + put(static_cast<std::uint64_t>(how)); }

std::optional<Notice> Notice::decode(std::string_view bytes) {
  if (bytes.size() != kBytes) {
    return std::nullopt;
  }
  const std::uint64_t how = get(bytes.substr(kWord));
  if (how < static_cast<std::uint64_t>(Ending::left) || how > static_cast<std::uint64_t>(Ending::unreachable)) {
    return std::nullopt;
  }
  return Notice{get(bytes), static_cast<Ending>(how)};
}

Secret Secret::random() { return {random_bytes(kHalf), random_bytes(kHalf)}; }

std::string Hello::encode() const { return std::string(kMagic) + knock + put(from); }

std::optional<Hello> Hello::decode(std::string_view bytes) {
  if (bytes.size() != kBytes || bytes.substr(0, kWord) != kMagic) {
    return std::nullopt;
  }
  return Hello{std::string(bytes.substr(kWord, Secret::kHalf)), get(bytes.substr(kWord + Secret::kHalf))};
}

std::string LineAddress::encode() const {
  return encode_values({{"secret", to_hex(secret.knock + secret.answer)}, {"port", std::to_string(port)}, {"hosts", hosts}});
}

LineAddress LineAddress::decode(const std::string& text) {
  const NamedValues fields = decode_values(text);
  const std::optional<std::string> secret = from_hex(value_at(fields, 0, "secret"));
  const std::string& port = value_at(fields, 1, "port");
  LineAddress address;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (!secret || secret->size() != 2 * Secret::kHalf || error != std::errc() || end != port.data() + port.size()) {
    refuse_published();
  }
  address.secret = {secret->substr(0, Secret::kHalf), secret->substr(Secret::kHalf)};
  address.hosts = value_at(fields, 2, "hosts");
  return address;
}

bool equal_secrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) {
    return false;
  }
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace torch_ucc
