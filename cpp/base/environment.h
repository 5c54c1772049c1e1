// Sets environment variables of the process for as long as a library needs to read them.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "base/settings.h"

namespace torch_ucc {

// For libraries that can be configured in no other way. The constructor sets each value under every
// prefix; the destructor restores the earlier values. One object exists at a time: the constructor
// waits until the object of another thread is destroyed. setenv() is not safe while another thread
// calls getenv(), so an object must live for a short time only.
class TemporaryEnvironment {
 public:
  TemporaryEnvironment(std::initializer_list<std::string> prefixes, const NamedValues& values) : lock_(mutex()) {
    for (const std::string& prefix : prefixes) {
      for (const auto& [name, value] : values) {
        set(prefix + name, value);
      }
    }
  }
  ~TemporaryEnvironment() {
    // NOLINTBEGIN(concurrency-mt-unsafe): see above
    for (const auto& [variable, value] : before_) {
      if (value) {
        ::setenv(variable.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(variable.c_str());
      }
    }
    // NOLINTEND(concurrency-mt-unsafe)
  }
  TemporaryEnvironment(const TemporaryEnvironment&) = delete;
  TemporaryEnvironment& operator=(const TemporaryEnvironment&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  void set(const std::string& variable, const std::string& value) {
    const char* const before = std::getenv(variable.c_str());  // NOLINT(concurrency-mt-unsafe): see above
    before_.emplace(variable, before == nullptr ? std::nullopt : std::optional<std::string>(before));
    ::setenv(variable.c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): see above
  }

  const std::lock_guard<std::mutex> lock_;
  // By variable: its value before this object set it
  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace torch_ucc
