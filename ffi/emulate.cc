#include "emulate.h"

#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "content_cache.h"
#include "ptx/program.h"

namespace jax_ptx {
namespace {

struct Loaded {
  std::shared_ptr<const ptx::Module> module;
  std::unique_ptr<emulator::Programs> programs;
};
using Modules = ContentCache<Loaded>;

Modules& ModuleCache() {
  static auto& cache = *new Modules;  // never destroyed: threads may still run at exit
  return cache;
}

Result<const Loaded*> FindOrParse(const LaunchRecord& record) {
  return ModuleCache().FindOrMake(record, [&record]() -> Result<Loaded> {
    JAX_PTX_RETURN_IF_ERROR(Validate(record));
    auto parsed = ptx::Parse(record.ptx);
    if (!parsed.ok()) {
      return Status(parsed.status().code(), Prefix(record) + parsed.status().message());
    }
    return Loaded{*std::move(parsed), std::make_unique<emulator::Programs>()};
  });
}

Status EmulateUnguarded(const LaunchRecord& record, const Buffers& buffers,
                        const std::vector<emulator::Scalar>& given,
                        const emulator::Options& options,
                        const emulator::ParallelFor& parallel_for) {
  ResolvedLaunch resolved;
  JAX_PTX_RETURN_IF_ERROR(Resolve(record, buffers, &resolved));
  if (resolved.empty) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!buffers[i].is_result || resolved.tensors[i].is_aliased || buffers[i].bytes == 0)
        continue;
      std::memset(reinterpret_cast<void*>(buffers[i].address), 0, buffers[i].bytes);
    }
    return {};
  }
  auto loaded = FindOrParse(record);
  if (!loaded.ok()) return loaded.status();
  std::vector<Buffer> tensors(resolved.tensors.begin(), resolved.tensors.end());
  std::vector<emulator::Scalar> scalars = given;
  for (uint64_t size : resolved.run_time_dims) {
    emulator::Scalar& scalar = scalars.emplace_back();
    scalar.position = tensors.size() + scalars.size() - 1;
    scalar.bytes.resize(sizeof size);
    std::memcpy(scalar.bytes.data(), &size, sizeof size);
  }
  for (int64_t element = 0; element < resolved.batch_size; ++element) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].address = buffers[i].address + BatchOffset(record, resolved, i, element);
    }
    JAX_PTX_RETURN_IF_ERROR(emulator::Run(*(*loaded)->module, *(*loaded)->programs, record.entry,
                                          resolved.geometry, tensors, scalars, options,
                                          parallel_for));
  }
  return {};
}

// An allocation that fails must not unwind into XLA's C API.
template <class Function>
Status CatchExceptions(const LaunchRecord& record, Function function) {
  try {
    return function();
  } catch (const std::exception& error) {
    return ResourceExhausted(Prefix(record) + "the emulator could not go on: " + error.what());
  }
}

}  // namespace

Status PrepareEmulation(const LaunchRecord& record) {
  return CatchExceptions(record, [&] {
    JAX_PTX_RETURN_IF_ERROR(Validate(record));
    auto loaded = FindOrParse(record);
    if (!loaded.ok()) return loaded.status();
    return emulator::Check(*(*loaded)->module, record.entry);
  });
}

Result<uint64_t> WarpBytes(const LaunchRecord& record) {
  JAX_PTX_RETURN_IF_ERROR(PrepareEmulation(record));
  auto loaded = FindOrParse(record);
  if (!loaded.ok()) return loaded.status();
  return emulator::WarpBytes(*(*loaded)->module, record.entry);
}

Status Emulate(const LaunchRecord& record, const Buffers& buffers,
               const std::vector<emulator::Scalar>& scalars, const emulator::Options& options,
               const emulator::ParallelFor& parallel_for) {
  return CatchExceptions(
      record, [&] { return EmulateUnguarded(record, buffers, scalars, options, parallel_for); });
}

}  // namespace jax_ptx
