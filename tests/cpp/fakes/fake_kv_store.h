// A store in memory that any number of ranks share, each through a client of its own that counts
// and can be told to fail.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "bootstrap/kv_store.h"

namespace torch_ucc {

// What the ranks share. Thread safe.
class FakeKvServer {
 public:
  // False if the key was there: most of bootstrap writes its keys once.
  bool set(const std::string& key, const std::string& value) {
    const MutexLock lock(mutex_);
    return values_.insert_or_assign(key, value).second;
  }
  std::optional<std::string> find(const std::string& key) const {
    const MutexLock lock(mutex_);
    const auto at = values_.find(key);
    return at == values_.end() ? std::nullopt : std::optional(at->second);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) {
    const MutexLock lock(mutex_);
    return counters_[key] += amount;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::string> values_ TUCC_GUARDED_BY(mutex_);
  std::map<std::string, std::int64_t> counters_ TUCC_GUARDED_BY(mutex_);
};

// One rank's connection, used by one thread at a time.
class FakeKvStore final : public KvStore {
 public:
  struct Faults {
    int dies_after = -1;  // operations that still work; every later one throws. Negative: never
    bool stalls = false;  // what the others wrote never arrives
    bool lies = false;    // every value read is garbage
    std::string garbage = "\x1e\x1f nonsense";
  };
  struct Counts {
    int set = 0;
    int get = 0;
    int get_all = 0;
    int add = 0;
    int total() const { return set + get + get_all + add; }
  };

  explicit FakeKvStore(FakeKvServer& server) : server_(server) {}

  Faults faults;
  Counts counts;
  std::size_t most_keys = 0;  // in one get_all
  std::size_t bytes_read = 0;
  std::vector<std::string> overwritten;  // keys that this rank wrote although they were there

  void set(const std::string& key, const std::string& value) override {
    ++counts.set;
    operate();
    if (!server_.set(key, value)) {
      overwritten.push_back(key);
    }
  }

  std::optional<std::string> get(const std::string& key) override {
    ++counts.get;
    operate();
    return read(key);
  }

  std::vector<std::string> get_all(const std::vector<std::string>& keys) override {
    ++counts.get_all;
    most_keys = std::max(most_keys, keys.size());
    operate();
    std::vector<std::string> values;
    values.reserve(keys.size());
    for (const std::string& key : keys) {
      std::optional<std::string> value = read(key);
      throw_if_error(value ? Status() : Status(StatusCode::transport, "get_all of a key that is not there: " + key));
      values.push_back(*std::move(value));
    }
    return values;
  }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    ++counts.add;
    operate();
    return server_.add(key, amount);
  }

 private:
  void operate() const {
    if (faults.dies_after >= 0 && counts.total() > faults.dies_after) {
      throw StatusError(Status(StatusCode::transport, "the store is gone"));
    }
  }

  std::optional<std::string> read(const std::string& key) {
    if (faults.stalls) {
      return std::nullopt;
    }
    std::optional<std::string> value = server_.find(key);
    if (value && faults.lies) {
      return faults.garbage;
    }
    bytes_read += value ? value->size() : 0;
    return value;
  }

  FakeKvServer& server_;
};

}  // namespace torch_ucc
