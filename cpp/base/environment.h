// Variables of the process's environment, set for as long as a library needs to read them.
#pragma once

#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "base/settings.h"

namespace torch_ucc {

// Where nothing else reaches a library. A variable that is set stays as it is; the others are gone again at the end. One lives
// at a time: the next waits for it. A thread that reads the environment by getenv() meanwhile takes the risk that setenv() is
// in any program: keep the scope short.
class TemporaryEnvironment {
 public:
  TemporaryEnvironment(const std::string& prefix, const NamedValues& values) : lock_(mutex()) {
    for (const auto& [name, value] : values) {
      std::string variable = prefix + name;
      // NOLINTNEXTLINE(concurrency-mt-unsafe): see above
      if (std::getenv(variable.c_str()) == nullptr && ::setenv(variable.c_str(), value.c_str(), 0) == 0) {
        set_.push_back(std::move(variable));
      }
    }
  }
  ~TemporaryEnvironment() {
    for (const std::string& variable : set_) {
      ::unsetenv(variable.c_str());  // NOLINT(concurrency-mt-unsafe): see above
    }
  }
  TemporaryEnvironment(const TemporaryEnvironment&) = delete;
  TemporaryEnvironment& operator=(const TemporaryEnvironment&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  const std::lock_guard<std::mutex> lock_;
  std::vector<std::string> set_;
};

}  // namespace torch_ucc
