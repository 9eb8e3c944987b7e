// The tables of instruction forms, by what the instructions are about.
#pragma once

#include "ptx/program.h"

namespace jax_ptx::ptx {

extern const FormRange kComputeForms, kMemoryForms, kWarpForms;

}  // namespace jax_ptx::ptx
