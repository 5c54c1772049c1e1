#include "device.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "memory.h"

namespace fake {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr c10::StreamId kPool = 4;  // streams of the pool are 1 to 4, which come round soon

c10::Device device(c10::DeviceIndex index) { return {kType, index}; }

std::atomic<bool> is_broken{false};
void check_works() { TORCH_CHECK(!is_broken, "the fake accelerator is broken"); }
thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

struct Streams {
  std::mutex mutex;
  std::vector<std::unique_ptr<Stream>> all;  // by id
  c10::StreamId next_of_pool = 0;
  std::set<c10::StreamId> capturing;

  Stream& get(c10::StreamId id) {
    const std::lock_guard<std::mutex> lock(mutex);
    while (static_cast<c10::StreamId>(all.size()) <= id) {
      all.push_back(std::make_unique<Stream>());
    }
    return *all[static_cast<std::size_t>(id)];
  }
  c10::StreamId from_pool() {
    const std::lock_guard<std::mutex> lock(mutex);
    return 1 + next_of_pool++ % kPool;
  }
  c10::StreamId fresh() {
    const std::lock_guard<std::mutex> lock(mutex);
    while (static_cast<c10::StreamId>(all.size()) <= kPool) {
      all.push_back(std::make_unique<Stream>());
    }
    all.push_back(std::make_unique<Stream>());
    return static_cast<c10::StreamId>(all.size()) - 1;
  }
};

Streams& streams(c10::DeviceIndex index) {
  static auto* const all = new std::array<Streams, kDevices>();
  return all->at(static_cast<std::size_t>(index));
}

// An event: the mark of its last record.
struct Event {
  std::mutex mutex;
  MarkPtr latest;

  MarkPtr mark() {
    const std::lock_guard<std::mutex> lock(mutex);
    return latest;
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device next) const override {
    return device(std::exchange(current_device, next.index() < 0 ? current_device : next.index()));
  }
  c10::Device getDevice() const override { return device(current_device); }
  void setDevice(c10::Device next) const override { exchangeDevice(next); }
  void uncheckedSetDevice(c10::Device next) const noexcept override { exchangeDevice(next); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device of) const override {
    return stream(of, current_streams.at(static_cast<std::size_t>(own(of))));
  }
  c10::Stream getDefaultStream(c10::Device of) const override { return stream(of, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool /*priority*/) const override {
    return stream(of, streams(own(of)).from_pool());
  }
  c10::Stream getNewStream(c10::Device of, int /*priority*/) const override { return stream(of, streams(own(of)).fresh()); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::StreamId before = std::exchange(current_streams.at(static_cast<std::size_t>(next.device_index())), next.id());
    return stream(next.device(), before);
  }
  bool queryStream(const c10::Stream& stream) const override { return stream_of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { stream_of(stream).mark()->wait(); }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    std::vector<MarkPtr> marks;
    {
      Streams& of = streams(index);
      const std::lock_guard<std::mutex> lock(of.mutex);
      for (const auto& each : of.all) {
        marks.push_back(each->mark());
      }
    }
    for (const MarkPtr& mark : marks) {
      mark->wait();
    }
  }
  bool isStreamCapturing(const c10::Stream& stream) const {  // no override: torch 2.11 does not ask
    Streams& of = streams(stream.device_index());
    const std::lock_guard<std::mutex> lock(of.mutex);
    return of.capturing.count(stream.id()) != 0;
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/, c10::EventFlag /*flag*/) const override {
    check_works();
    if (*event == nullptr) {
      *event = new Event();
    }
    auto* const recorded = static_cast<Event*>(*event);
    const std::lock_guard<std::mutex> lock(recorded->mutex);
    recorded->latest = stream_of(stream).mark();
  }
  void block(void* event, const c10::Stream& stream) const override {
    check_works();
    if (event == nullptr) {
      return;
    }
    if (MarkPtr mark = static_cast<Event*>(event)->mark()) {
      stream_of(stream).wait_for(std::move(mark));
    }
  }
  bool queryEvent(void* event) const override {
    check_works();
    const MarkPtr mark = event == nullptr ? nullptr : static_cast<Event*>(event)->mark();
    return mark == nullptr || mark->passed();
  }
  void synchronizeEvent(void* event) const override {
    if (const MarkPtr mark = event == nullptr ? nullptr : static_cast<Event*>(event)->mark()) {
      mark->wait();
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override { delete static_cast<Event*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get() != nullptr) {
      device_record(data.get(), stream_of(stream));
    }
  }

 private:
  static c10::DeviceIndex own(c10::Device of) { return of.index() < 0 ? current_device : of.index(); }
  static c10::Stream stream(c10::Device of, c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device(own(of)), id); }
};

struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device here = device(current_device);
    void* const address = bytes == 0 ? nullptr : device_allocate(bytes, current_stream(here));
    return {address, address, raw_deleter(), here};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* address) {
      if (address != nullptr) {
        device_free(address);
      }
    };
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const address = bytes == 0 ? nullptr : pinned_allocate(bytes);
    return {address, address, raw_deleter(), c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* address) {
      if (address != nullptr) {
        pinned_free(address);
      }
    };
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// What was in it is lost.
void resize(const c10::Storage& storage, std::size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  storage.set_data_ptr(c10::GetAllocator(kType)->allocate(bytes));
  storage.set_nbytes(bytes);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_device = index; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current_device, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override { resize(storage, bytes); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedMemory memory;
    return &memory;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

const bool registered = [] {
  static DeviceMemory memory;
  c10::SetAllocator(kType, &memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  c10::register_privateuse1_backend("privateuseone");
  return true;
}();

}  // namespace

c10::DeviceIndex current_index() { return current_device; }

Stream& stream_of(const c10::Stream& stream) { return streams(stream.device_index()).get(stream.id()); }

Stream& current_stream(c10::Device device) {
  return streams(device.index()).get(current_streams.at(static_cast<std::size_t>(device.index())));
}

}  // namespace fake

// For tests, by ctypes. A stream is named by its device and its id.
extern "C" {

__attribute__((visibility("default"))) void fake_set_delay(int microseconds) { fake::set_delay(microseconds); }

__attribute__((visibility("default"))) void fake_let_arrive(int copies) { fake::let_arrive(copies); }
// From now on events can be neither recorded nor asked.
__attribute__((visibility("default"))) void fake_break() { fake::is_broken = true; }

// Holds the stream up until the gate, whose number is returned, is opened.
__attribute__((visibility("default"))) int fake_close_gate(int device, std::int64_t stream) {
  const int gate = fake::make_gate();
  fake::streams(static_cast<c10::DeviceIndex>(device)).get(stream).wait_for(fake::gate(gate));
  return gate;
}
__attribute__((visibility("default"))) void fake_open_gate(int gate) { fake::gate(gate)->pass(); }

__attribute__((visibility("default"))) void fake_capture(int device, std::int64_t stream, int on) {
  fake::Streams& of = fake::streams(static_cast<c10::DeviceIndex>(device));
  const std::lock_guard<std::mutex> lock(of.mutex);
  on != 0 ? (void)of.capturing.insert(stream) : (void)of.capturing.erase(stream);
}

__attribute__((visibility("default"))) void fake_show() { fake::show_to_host(); }

__attribute__((visibility("default"))) int fake_faults() { return fake::faults(); }
}
