// Writes JSON text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_ucc::trace {

inline std::string json_text(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
      json += escape.data();
    } else {
      json += c;
    }
  }
  return json + '"';
}

// Writes `{...}` or `[...]` with commas between what is added.
class Json {
 public:
  explicit Json(char open) : close_(open == '{' ? '}' : ']'), text_(1, open) {}
  Json& item(const std::string& json) {
    text_ += (text_.size() > 1 ? "," : "") + json;
    return *this;
  }
  Json& field(std::string_view key, const std::string& json) { return item(json_text(key) + ":" + json); }
  Json& text(std::string_view key, std::string_view value) { return field(key, json_text(value)); }
  template <typename Number>
  Json& number(std::string_view key, Number value) {
    return field(key, std::to_string(value));
  }
  std::string end() { return std::move(text_) + close_; }

 private:
  const char close_;
  std::string text_;
};

// Returns ranks as a JSON text in which a large group takes a few bytes: "0-7,16", and "0-14:2" for
// 0, 2, 4 to 14.
inline std::string runs_of(const std::vector<std::int64_t>& ranks) {
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    const std::int64_t step = first + 1 < ranks.size() ? ranks[first + 1] - ranks[first] : 1;
    while (step > 0 && last + 1 < ranks.size() && ranks[last + 1] - ranks[last] == step) {
      ++last;
    }
    last = last - first < 2 ? first : last;
    text += (text.empty() ? "" : ",") + std::to_string(ranks[first]);
    if (last != first) {
      text += "-" + std::to_string(ranks[last]) + (step == 1 ? "" : ":" + std::to_string(step));
    }
    first = last + 1;
  }
  return json_text(text);
}

}  // namespace torch_ucc::trace
