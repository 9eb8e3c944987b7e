#include "emulate.h"

#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "content_cache.h"
#include "ptx/program.h"

namespace jax_ptx {
namespace {

using Modules = ContentCache<std::shared_ptr<const ptx::Module>>;

Modules& ModuleCache() {
  static auto& cache = *new Modules;  // never destroyed: threads may still run at exit
  return cache;
}

Result<const ptx::Module*> FindOrParse(const LaunchRecord& record) {
  const std::shared_ptr<const ptx::Module>* module = ModuleCache().Find(record);
  if (module == nullptr) {
    JAX_PTX_RETURN_IF_ERROR(Validate(record));
    auto parsed = ptx::Parse(record.ptx);
    if (!parsed.ok())
      return Status(parsed.status().code(), Prefix(record) + parsed.status().message());
    module = ModuleCache().Insert(record, *std::move(parsed));
  }
  return module->get();
}

Status EmulateUnguarded(const LaunchRecord& record, const Buffers& buffers,
                        const emulator::Options& options,
                        const emulator::ParallelFor& parallel_for) {
  auto resolved = Resolve(record, buffers);
  if (!resolved.ok()) return resolved.status();
  if (resolved->empty) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!buffers[i].is_result || resolved->tensors[i].is_aliased || buffers[i].bytes == 0)
        continue;
      std::memset(reinterpret_cast<void*>(buffers[i].address), 0, buffers[i].bytes);
    }
    return {};
  }
  auto module = FindOrParse(record);
  if (!module.ok()) return module.status();
  std::vector<Buffer> tensors(resolved->tensors.begin(), resolved->tensors.end());
  const std::vector<uint64_t> scalars(resolved->run_time_dims.begin(),
                                      resolved->run_time_dims.end());
  for (int64_t element = 0; element < resolved->batch_size; ++element) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].address = buffers[i].address + BatchOffset(record, *resolved, i, element);
    }
    JAX_PTX_RETURN_IF_ERROR(emulator::Run(**module, record.entry, resolved->geometry, tensors,
                                          scalars, options, parallel_for));
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
    auto module = FindOrParse(record);
    if (!module.ok()) return module.status();
    return emulator::Check(**module, record.entry);
  });
}

Status Emulate(const LaunchRecord& record, const Buffers& buffers, const emulator::Options& options,
               const emulator::ParallelFor& parallel_for) {
  return CatchExceptions(record,
                         [&] { return EmulateUnguarded(record, buffers, options, parallel_for); });
}

}  // namespace jax_ptx
