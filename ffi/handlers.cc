// There is no FFI state: XLA skips instantiate when an executable comes from a compile cache, so
// every stage gets the whole record and finds its kernel by content.

#include "handlers.h"

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "attributes.h"
#include "cuda/execute.h"
#include "emulate.h"
#include "hints.h"
#include "launch.h"
#include "parallel.h"
#include "status.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace jax_ptx {
namespace {

ffi::Error ToError(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return ffi::Error::Success();
    case Code::kInvalidArgument:
      return ffi::Error(ffi::ErrorCode::kInvalidArgument, status.message());
    case Code::kUnimplemented:
      return ffi::Error(ffi::ErrorCode::kUnimplemented, status.message());
    case Code::kFailedPrecondition:
      return ffi::Error(ffi::ErrorCode::kFailedPrecondition, status.message());
    case Code::kResourceExhausted:
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, status.message());
    case Code::kInternal:
      break;
  }
  return ffi::Error(ffi::ErrorCode::kInternal, status.message());
}

Buffer ToBuffer(const ffi::AnyBuffer& buffer, bool is_result) {
  const auto shape = buffer.dimensions();  // XLA's, for the length of the call
  return {reinterpret_cast<uint64_t>(buffer.untyped_data()),
          buffer.size_bytes(),
          is_result,
          /*is_aliased=*/false,
          {shape.begin(), shape.size()}};
}

// Operands, then results: the order of the entry's parameters.
ffi::Error ToBuffers(ffi::RemainingArgs operands, ffi::RemainingRets results, Buffers* buffers) {
  for (size_t i = 0; i < operands.size(); ++i) {
    auto operand = operands.get<ffi::AnyBuffer>(i);
    if (operand.has_error()) return operand.error();
    buffers->push_back(ToBuffer(*operand, false));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (result.has_error()) return result.error();
    buffers->push_back(ToBuffer(**result, true));
  }
  return ffi::Error::Success();
}

constexpr auto kCpuInstantiate = [](const LaunchRecord& record) {
  return ToError(PrepareEmulation(record));
};

constexpr auto kCpuExecute = [](ffi::ThreadPool pool, ffi::RemainingArgs operands,
                                ffi::RemainingRets results, const LaunchRecord& record) {
  Buffers buffers;
  if (ffi::Error error = ToBuffers(operands, results, &buffers); error.failure()) return error;
  const auto parallel_for = [&pool](int64_t n, const std::function<void(int64_t)>& task) {
    RunShared(n, task, pool.num_threads() - 1,
              [&pool](auto helper) { pool.Schedule(std::move(helper)); });
  };
  return ToError(Emulate(record, buffers, {}, {}, parallel_for));
};

constexpr auto kCudaInstantiate = [](const LaunchRecord& record) {
  return ToError(Validate(record));
};

constexpr auto kCudaInitialize = [](int32_t device, const LaunchRecord& record) {
  return ToError(cuda::Load(record, device));
};

XLA_FFI_DEFINE_HANDLER(kCudaInitializeBound, kCudaInitialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Attrs<LaunchRecord>());

Hints initialized;

// Where a call's attributes lie, its key, and the device, in one number. None for a call that is
// not one of this stage, which is left to the bound handler.
//
// The number proves nothing: the memory of an executable that was freed may hold another's
// attributes by now, with the same key if somebody made it up. That does no harm, since this stage
// only does ahead what execute does where it is missing: it finds its kernel by content, checks it,
// and loads it, even while a graph is captured. The key is there so that it hardly ever does: a
// load in the midst of work on several devices may wait for that work.
std::optional<uint64_t> MarkOf(const XLA_FFI_CallFrame& frame) {
  if (frame.extension_start != nullptr || frame.stage != XLA_FFI_ExecutionStage_INITIALIZE ||
      frame.attrs.size != kAttributes) {
    return std::nullopt;
  }
  AttributeReader read(frame.attrs);
  const int64_t key = read.Number(8, "key");
  ffi::DiagnosticEngine unused;
  const auto device = ffi::CtxDecoding<ffi::DeviceOrdinal>::Decode(frame.api, frame.ctx, unused);
  if (!read.ok() || !device) return std::nullopt;
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // spreads what differs over the bits that choose
  const uint64_t address = reinterpret_cast<uintptr_t>(frame.attrs.attrs);
  return (address ^ static_cast<uint64_t>(key) ^ static_cast<uint64_t>(*device) << 56) * kOdd;
}

constexpr auto kCudaExecute = [](CUstream stream, int32_t device, ffi::RemainingArgs operands,
                                 ffi::RemainingRets results, const LaunchRecord& record) {
  Buffers buffers;
  if (ffi::Error error = ToBuffers(operands, results, &buffers); error.failure()) return error;
  return ToError(cuda::Launch(record, buffers, device, stream));
};

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxPtxCpuInstantiate, kCpuInstantiate,
                              ffi::Ffi::BindInstantiate().Attrs<LaunchRecord>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JaxPtxCpuExecute, kCpuExecute,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs<LaunchRecord>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxPtxCudaInstantiate, kCudaInstantiate,
                              ffi::Ffi::BindInstantiate().Attrs<LaunchRecord>());
// XLA calls it before every execution, and before each replay of a CUDA graph.
extern "C" XLA_FFI_Error* JaxPtxCudaInitialize(XLA_FFI_CallFrame* frame) {
  const std::optional<uint64_t> mark = MarkOf(*frame);
  if (mark && initialized.Has(*mark)) return nullptr;
  XLA_FFI_Error* error = kCudaInitializeBound(frame);
  if (mark && error == nullptr) initialized.Add(*mark);
  return error;
}

// The trait belongs to this stage: XLA may record it into a CUDA graph and replay that.
XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxPtxCudaExecute, kCudaExecute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<CUstream>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs<LaunchRecord>(),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jax_ptx
