#include "emulator/handlers.h"

namespace jax_ptx::emulator {
Handler SelectAsync(const ptx::Instruction&) { return nullptr; }
}  // namespace jax_ptx::emulator
