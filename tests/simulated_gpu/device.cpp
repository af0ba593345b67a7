// A GPU that is not there: tensors of the device "cuda" whose memory is the host's, for a torch built without CUDA.
//
// Every operator of such tensors is the CPU's, over the same memory, so its numbers are those of a CPU. What differs is
// what torch asks of a device: tensors of the host and of a GPU do not mix, generators belong to a device, results stay
// where arguments are, and a copy to the host that nobody waits for is not there yet.

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <pthread.h>
#include <torch/library.h>

#include "call.h"

namespace simulated {
namespace {

using Format = std::optional<c10::MemoryFormat>;
using Type = std::optional<at::ScalarType>;

// A copy that is not waited for, between pinned memory and the GPU: whether it is one, and is done later.
bool is_put_off(const torch::jit::Stack& arguments) {
  auto to = torch::jit::peek(arguments, 0, 3).toTensor(), from = torch::jit::peek(arguments, 1, 3).toTensor();
  if (!torch::jit::peek(arguments, 2, 3).toBool()) return false;
  const auto& host = to.device().is_cpu() ? to : from;
  if (!host.device().is_cpu() || !PinnedMemory::holds(host.storage().data())) return false;
  if (from.device().is_cpu()) {
    pending.add(to, from);  // what the host writes there in the meantime reaches the GPU
    return true;
  }
  // The GPU does all in its order: what it writes to the source afterwards does not reach the copy.
  using Clone = Tensor(const Tensor&, Format);
  static auto clone = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "").typed<Clone>();
  pending.add(to, clone.call(from, std::nullopt));
  return true;
}

void on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const auto& schema = op.schema();
  pending.finish(false);
  if (schema.name() == "aten::copy_" && is_put_off(*stack)) {
    torch::jit::drop(*stack, 2);
    return;
  }
  if (schema.name() == "aten::_local_scalar_dense") synchronize();
  Call call(op);
  auto first = stack->size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i)
    (*stack)[first + i] = call.argument((*stack)[first + i], schema.arguments()[i]);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.write_back();
  for (auto i = stack->size() - schema.returns().size(); i < stack->size(); ++i)
    (*stack)[i] = call.result((*stack)[i]);
}

template <class Make>
Tensor made_on(std::optional<Device> device, Type type, Make make) {
  c10::DeviceGuard guard(indexed(device.value_or(Device(GPU))));
  auto number = type.value_or(at::typeMetaToScalarType(at::get_default_dtype()));
  return make(c10::GetAllocator(GPU), c10::DispatchKeySet(c10::DispatchKey::CUDA), number);
}

Tensor empty(c10::SymIntArrayRef size, Type type, std::optional<at::Layout>, std::optional<Device> device,
             std::optional<bool> pinned, Format format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  return made_on(device, type, [&](auto* memory, auto keys, auto number) {
    return at::detail::empty_generic_symint(size, memory, keys, number, format);
  });
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, Type type, std::optional<at::Layout>,
                     std::optional<Device> device, std::optional<bool>) {
  return made_on(device, type, [&](auto* memory, auto keys, auto number) {
    return at::detail::empty_strided_symint_generic(size, stride, memory, keys, number);
  });
}

void record_stream(Tensor&, c10::Stream) {}

void start(int64_t count) {
  visible = static_cast<DeviceIndex>(count);
  static Memory memory;
  static PinnedMemory pinned;
  static Guard guard;
  pthread_atfork(nullptr, nullptr, [] { lost = used; });
  c10::SetAllocator(GPU, &memory);
  at::setHostAllocator(GPU, &pinned, 1);
  c10::impl::device_guard_impl_registry[static_cast<size_t>(GPU)].store(&guard);
  // torch has asked for its hooks while it was imported, and keeps what it got; neither kind of them has members.
  static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) Hooks();
}

int64_t current_device() { return current; }
bool is_lost() { return lost; }

int64_t exchange_device(int64_t index) {
  return Guard().exchangeDevice({GPU, static_cast<DeviceIndex>(index)}).index();
}

void choose_device(int64_t index) {
  exchange_device(index);
  home = static_cast<DeviceIndex>(index);
  used = true;
}

// The memory of a tensor of the GPU, for what carries messages.
Tensor memory_of(const Tensor& tensor) {
  synchronize();
  return tensor_in(same_bytes(tensor.storage(), Device(c10::kCPU)), tensor, c10::DispatchKey::CPU);
}

TORCH_LIBRARY(simulated_gpu, library) {
  library.def("start(int count) -> ()", start);
  library.def("current_device() -> int", current_device);
  library.def("exchange_device(int index) -> int", exchange_device);
  library.def("choose_device(int index) -> ()", choose_device);
  library.def("is_lost() -> bool", is_lost);
  library.def("synchronize() -> ()", synchronize);
  library.def("memory_of(Tensor tensor) -> Tensor", memory_of);
}

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("record_stream", record_stream);
  // Of the operators that torch has for every device this one asks for a kernel of each.
  library.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

}  // namespace
}  // namespace simulated
