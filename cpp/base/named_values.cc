#include "base/named_values.h"

#include <cstddef>

#include "base/status.h"

namespace torch_ucc {
namespace {

constexpr char kField = '\x1f';   // between the name and the value
constexpr char kRecord = '\x1e';  // after the value

}  // namespace

void refuse_published() {
  throw StatusError(
      Status(StatusCode::transport,
             "a rank published a record that cannot be read: check that all ranks have the same version of torch-ucc"));
}

std::string encode_values(const NamedValues& values) {
  std::string text;
  for (const auto& [name, value] : values) {
    text += name;
    text += kField;
    text += value;
    text += kRecord;
  }
  return text;
}

NamedValues decode_values(const std::string& text) {
  NamedValues fields;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find(kRecord, at);
    const std::size_t split = text.find(kField, at);
    if (end == std::string::npos || split == std::string::npos || split > end) {
      refuse_published();
    }
    fields.emplace_back(text.substr(at, split - at), text.substr(split + 1, end - split - 1));
    at = end + 1;
  }
  return fields;
}

const std::string& value_at(const NamedValues& values, std::size_t index, const std::string& name) {
  if (index >= values.size() || values[index].first != name) {
    refuse_published();
  }
  return values[index].second;
}

}  // namespace torch_ucc
