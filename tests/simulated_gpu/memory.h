// The memory of the simulated GPU, which is the host's, and copies that are done later than they are asked for.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace simulated {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::Storage;

constexpr auto GPU = c10::DeviceType::CUDA;

inline DeviceIndex visible = 1;               // GPUs
inline thread_local DeviceIndex current = 0;  // of a thread, as in CUDA
inline DeviceIndex home = -1;                 // the GPU that this process has chosen
inline bool used = false;                     // whether CUDA has a context here, which a fork does not hand on
inline bool lost = false;

inline Device indexed(Device device) { return {GPU, device.has_index() ? device.index() : current}; }

// The same bytes on another device; they live as long as either.
inline Storage same_bytes(const Storage& storage, Device device) {
  auto* kept = new Storage(storage);
  auto release = [](void* held) { delete static_cast<Storage*>(held); };
  c10::DataPtr data(kept->mutable_data(), kept, release, device);
  auto* allocator = c10::GetAllocator(device.is_cpu() ? c10::kCPU : GPU);
  return {Storage::use_byte_size_t(), storage.nbytes(), std::move(data), allocator, true};
}

inline Tensor shaped(Tensor made, const Tensor& like) {
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

inline Tensor tensor_in(const Storage& storage, const Tensor& like, c10::DispatchKey key) {
  c10::DispatchKeySet keys(key);
  return shaped(at::detail::make_tensor<c10::TensorImpl>(Storage(storage), keys, like.dtype()), like);
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(!lost, "CUDA error: initialization error (this process is the fork of one that has used CUDA)");
    TORCH_CHECK(home < 0 || home == current, "memory on cuda:", int(current), " in a process of cuda:", int(home));
    used = true;
    auto* kept = new c10::DataPtr(c10::GetAllocator(c10::kCPU)->allocate(bytes));
    // As of a tensor before: NaN in every float, -1 in every integer. Fresh memory of the host is often 0.
    std::memset(kept->get(), 0xff, bytes);
    auto release = [](void* held) { delete static_cast<c10::DataPtr*>(held); };
    return {kept->get(), kept, release, Device(GPU, current)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

// Memory of the host that a GPU copies from and to while the host goes on.
struct PinnedMemory final : at::HostAllocator {
  inline static std::mutex lock;
  inline static std::map<const char*, size_t> blocks;

  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::malloc(std::max<size_t>(bytes, 64));
    std::lock_guard<std::mutex> held(lock);
    blocks[static_cast<char*>(memory)] = std::max<size_t>(bytes, 1);
    return {memory, memory, release, Device(c10::kCPU)};
  }
  static void release(void* memory) {
    {
      std::lock_guard<std::mutex> held(lock);
      blocks.erase(static_cast<char*>(memory));
    }
    std::free(memory);
  }
  static bool holds(const void* place) {
    std::lock_guard<std::mutex> held(lock);
    auto next = blocks.upper_bound(static_cast<const char*>(place));
    if (next == blocks.begin()) return false;
    auto [start, bytes] = *std::prev(next);
    return static_cast<const char*>(place) < start + bytes;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

// Copies between pinned memory and the GPU that nobody has waited for.
class PendingCopies {
 public:
  void add(const Tensor& to, const Tensor& from) {
    std::lock_guard<std::mutex> held(lock_);
    copies_.emplace_back(to, from);
  }

  // Does those to or from the host, of the current GPU.
  void finish(bool to_host) {
    std::vector<std::pair<Tensor, Tensor>> due;
    {
      std::lock_guard<std::mutex> held(lock_);
      auto waits = [&](const auto& copy) {
        const auto& on_gpu = to_host ? copy.second : copy.first;
        return copy.first.device().is_cpu() == to_host && on_gpu.device().index() == current;
      };
      auto rest = std::stable_partition(copies_.begin(), copies_.end(), waits);
      due.assign(copies_.begin(), rest);
      copies_.erase(copies_.begin(), rest);
    }
    at::AutoDispatchBelowADInplaceOrView guard;
    for (auto& [to, from] : due) copy(to, from);
  }

 private:
  static void copy(Tensor& to, const Tensor& from) {
    using Copy = Tensor&(Tensor&, const Tensor&, bool);
    static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "").typed<Copy>();
    op.call(to, from, false);
  }

  std::mutex lock_;
  std::vector<std::pair<Tensor, Tensor>> copies_;
};

inline PendingCopies pending;

// What torch.cuda.synchronize does: of the current GPU.
inline void synchronize() {
  pending.finish(false);
  pending.finish(true);
}

}  // namespace simulated
