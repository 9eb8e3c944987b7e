#include "emulator/handlers.h"

namespace jax_ptx::emulator {
Handler SelectMatrix(const ptx::Instruction&) { return nullptr; }
}  // namespace jax_ptx::emulator
