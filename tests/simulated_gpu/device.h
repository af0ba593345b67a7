// The simulated GPU as torch asks for a device: its guard, its generators and what the host knows of it.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"

namespace simulated {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return GPU; }
  Device exchangeDevice(Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return {GPU, current}; }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < visible, "CUDA error: invalid device ordinal ", int(device.index()));
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  DeviceIndex deviceCount() const noexcept override { return visible; }
  // One stream a GPU, in which all is done when it is asked for.
  c10::Stream getStream(Device device) const override { return c10::Stream(c10::Stream::DEFAULT, indexed(device)); }
  c10::Stream getDefaultStream(Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  c10::Stream getNewStream(Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { synchronize(); }
  void record(void** event, const c10::Stream&, DeviceIndex, c10::EventFlag) const override { *event = &home; }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { synchronize(); }
  void synchronizeDevice(DeviceIndex) const override { synchronize(); }
  double elapsedTime(void*, void*, DeviceIndex) const override { return 1.0; }
};

// A generator of the GPU: its numbers are those that a generator of the host gives from the same seed.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(DeviceIndex index)
      : c10::GeneratorImpl(Device(GPU, index < 0 ? current : index), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        host(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->host = host.clone();
    return copy;
  }

  at::Generator host;
};

inline const at::Generator& default_generator(DeviceIndex index) {
  static auto all = [] {
    std::vector<at::Generator> made;
    for (DeviceIndex number = 0; number < visible; ++number) made.push_back(at::make_generator<Generator>(number));
    return made;
  }();
  return all.at(index < 0 ? current : index);
}

struct Hooks final : at::CUDAHooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return visible; }
  int getNumGPUs() const override { return visible; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { Guard().setDevice({GPU, index}); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return Guard().exchangeDevice({GPU, index}).index(); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  void deviceSynchronize(DeviceIndex) const override { synchronize(); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override { return at::make_generator<Generator>(index); }
  bool isPinnedPtr(const void* place) const override { return PinnedMemory::holds(place); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return at::getHostAllocator(GPU); }
  c10::Allocator* getCUDADeviceAllocator() const override { return c10::GetAllocator(GPU); }
};

}  // namespace simulated
