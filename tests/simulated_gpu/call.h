// One call of an operator of the CPU on the memory of tensors of the simulated GPU.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "device.h"

namespace simulated {

using c10::IValue;

class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op) {
    static const std::set<std::string> mixing{"aten::copy_", "aten::_copy_from_and_resize", "aten::set_"};
    static const std::set<std::string> indexing{"aten::index", "aten::index_put_", "aten::_index_put_impl_",
                                                "aten::_unsafe_index"};
    static const std::set<std::string> filling{"aten::fill_", "aten::where", "aten::masked_fill", "aten::masked_fill_"};
    const auto& name = op.schema().name();
    mixes_ = mixing.count(name);
    indexes_ = indexing.count(name);
    takes_host_scalars_ = indexes_ || filling.count(name) || op.hasTag(at::Tag::pointwise);
  }

  // What the operator of the CPU is given for an argument.
  IValue argument(const IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) return on_host(value.toTensor(), argument);
    if (value.isTensorList()) {
      c10::List<Tensor> hosts;
      for (const Tensor& tensor : value.toTensorVector()) hosts.push_back(on_host(tensor, argument));
      return hosts;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> hosts;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
        hosts.push_back(tensor ? std::optional<Tensor>(on_host(*tensor, argument)) : std::nullopt);
      return hosts;
    }
    if (value.isStorage()) return host_storage(value.toStorage());
    if (value.isGenerator()) return host_generator(value.toGenerator());
    if (value.isDevice() && value.toDevice().type() == GPU) {
      device_ = indexed(value.toDevice());
      return Device(c10::kCPU);
    }
    return value;
  }

  // What the caller is given for one of its results.
  IValue result(const IValue& value) {
    if (value.isTensor()) return on_gpu(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> all;
    for (const Tensor& tensor : value.toTensorVector()) all.push_back(on_gpu(tensor));
    return all;
  }

  // Hands on what the operator has done to tensors beside their values: another size, memory of another size.
  void write_back() {
    for (auto& [host, original] : written_) {
      auto* impl = original.unsafeGetTensorImpl();
      const auto& storage = host.storage();
      auto known = storages_.find(storage.unsafeGetStorageImpl());
      if (known == storages_.end())
        impl->set_storage_keep_dtype(same_bytes(storage, *device_));
      else if (known->second.unsafeGetStorageImpl() != original.storage().unsafeGetStorageImpl())
        impl->set_storage_keep_dtype(known->second);
      else if (storage.data() != original.storage().data() || storage.nbytes() != original.storage().nbytes())
        replace_memory(original.storage(), storage);
      shaped(original, host);
    }
  }

 private:
  static void replace_memory(const Storage& storage, const Storage& host) {
    auto moved = same_bytes(host, storage.device());
    auto* impl = storage.unsafeGetStorageImpl();
    impl->set_data_ptr(std::move(moved.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
    impl->set_nbytes(host.nbytes());
  }

  static at::Generator host_generator(const at::Generator& generator) {
    auto device = generator.device();
    TORCH_CHECK(device.type() == GPU, "Expected a 'cuda' device type for generator but found '", device, "'");
    return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->host;
  }

  Storage host_storage(const Storage& storage) {
    if (!storage || storage.device_type() != GPU) return storage;
    auto [place, is_new] = hosts_.try_emplace(storage.unsafeGetStorageImpl());
    if (is_new) {
      place->second = same_bytes(storage, Device(c10::kCPU));
      storages_[place->second.unsafeGetStorageImpl()] = storage;
    }
    return place->second;
  }

  Tensor on_host(const Tensor& tensor, const c10::Argument& argument) {
    if (!tensor.defined()) return tensor;
    bool written = argument.alias_info() && argument.alias_info()->isWrite();
    if (tensor.device().type() != GPU) {
      bool is_index = indexes_ && argument.name() == "indices";
      bool is_scalar = takes_host_scalars_ && tensor.dim() == 0 && !written;
      check_same_device(mixes_ || is_index || is_scalar, tensor, argument);
      return tensor;
    }
    check_same_device(mixes_ || !device_ || *device_ == tensor.device(), tensor, argument);
    device_ = tensor.device();
    auto host = tensor_in(host_storage(tensor.storage()), tensor, c10::DispatchKey::CPU);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) host.unsafeGetTensorImpl()->set_wrapped_number(true);
    originals_[host.unsafeGetTensorImpl()] = tensor;
    keys_[host.storage().unsafeGetStorageImpl()] = tensor.key_set();
    kept_.push_back(host);
    if (written) written_.emplace_back(host, tensor);
    return host;
  }

  void check_same_device(bool same, const Tensor& tensor, const c10::Argument& argument) {
    TORCH_CHECK(same, "Expected all tensors to be on the same device, but found at least two devices, ",
                device_ ? *device_ : Device(GPU), " and ", tensor.device(), "! (when checking argument for argument ",
                argument.name(), " in method ", op_.schema().name(), ")");
  }

  Tensor on_gpu(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (auto original = originals_.find(tensor.unsafeGetTensorImpl()); original != originals_.end())
      return original->second;
    auto* memory = tensor.storage().unsafeGetStorageImpl();
    auto known = storages_.find(memory);
    if (known == storages_.end()) {
      if (mixes_) return tensor;
      TORCH_CHECK(device_, op_.schema().name(), " has neither a tensor nor a device of the GPU");
      known = storages_.emplace(memory, same_bytes(tensor.storage(), *device_)).first;
      kept_.push_back(tensor);
    }
    // A view of a tensor that may have a gradient may have one too, in inference mode as well.
    if (auto keys = keys_.find(memory); keys != keys_.end()) {
      auto view = c10::TensorImpl::VIEW;
      return shaped(
          at::detail::make_tensor<c10::TensorImpl>(view, Storage(known->second), keys->second, tensor.dtype()), tensor);
    }
    return tensor_in(known->second, tensor, c10::DispatchKey::CUDA);
  }

  const c10::OperatorHandle& op_;
  bool mixes_, indexes_, takes_host_scalars_;
  std::optional<Device> device_;
  std::unordered_map<c10::StorageImpl*, Storage> hosts_;     // by that of the GPU
  std::unordered_map<c10::StorageImpl*, Storage> storages_;  // of the GPU, by that of the host
  std::unordered_map<c10::StorageImpl*, c10::DispatchKeySet> keys_;
  std::unordered_map<c10::TensorImpl*, Tensor> originals_;
  std::vector<Tensor> kept_;  // no address is used twice in a call
  std::vector<std::pair<Tensor, Tensor>> written_;
};

}  // namespace simulated
