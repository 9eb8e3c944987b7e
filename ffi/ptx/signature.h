// What can be read off a PTX text without understanding its instructions.
#pragma once

#include <cstddef>
#include <string_view>

#include "status.h"

namespace jax_ptx::ptx {

// How many parameters the text declares for `.entry entry`.
Result<size_t> CountParameters(std::string_view text, std::string_view entry);

}  // namespace jax_ptx::ptx
