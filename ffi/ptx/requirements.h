// Which PTX version and which target an instruction needs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace jax_ptx::ptx {

struct Requirement {
  int version = 0;           // 7.8 is 78
  int target = 0;            // sm_90 is 90
  bool is_specific = false;  // sm_90a: of an architecture-specific target

  bool IsMetBy(const Requirement& given) const {
    return version <= given.version && target <= given.target &&
           (!is_specific || given.is_specific);
  }
};

// What the instruction needs beyond the oldest text that is decoded; nothing where nothing is
// known.
Requirement FindRequirement(std::string_view opcode,
                            const std::vector<std::string_view>& modifiers);
// sm_90a: its number, suffix, and the first version that has it. False for an unknown one.
bool ParseTarget(std::string_view name, Requirement* target);
std::string ToString(const Requirement& requirement);  // .version 7.8 and .target sm_90

}  // namespace jax_ptx::ptx
