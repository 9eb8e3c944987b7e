#include "emulator/compile.h"

namespace jax_ptx::emulator {

using ptx::Function;

Result<std::shared_ptr<const Program>> Programs::Find(const ptx::Module& module,
                                                      const Function& entry,
                                                      const std::vector<uint8_t>& parameters) {
  constexpr size_t kMost = 8;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const Entry& known : recent_) {
      if (known.first == parameters) return known.second;
    }
  }
  Result<std::unique_ptr<Program>> made = Compile(module, entry, parameters);
  if (!made.ok()) return made.status();
  std::shared_ptr<const Program> program(std::move(*made));
  std::lock_guard<std::mutex> lock(mutex_);
  if (recent_.size() == kMost) recent_.erase(recent_.begin());
  recent_.emplace_back(parameters, program);
  return program;
}

}  // namespace jax_ptx::emulator
