// A logger of c10d, as a cluster's own: writes what it is told to a file, a line `name=value` for
// each field.
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/logger.hpp>

namespace {

class FileLogger final : public c10d::C10dLogger {
 public:
  explicit FileLogger(std::string path) : C10dLogger(std::move(path)) {}
  void log(const c10d::C10dLoggingData& data) override {
    std::ofstream file(logDestination_, std::ios::app);
    for (const auto& [name, value] : data.strings) {
      file << name << '=' << value << '\n';
    }
    for (const auto& [name, value] : data.integers) {
      file << name << '=' << value << '\n';
    }
  }
};

}  // namespace

extern "C" void register_file_logger(const char* path) { c10d::C10dLogger::registerLogger(std::make_unique<FileLogger>(path)); }
