#include "emulator/layout.h"

#include <algorithm>

#include "emulator/registers.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Op;
using ptx::Operand;
using ptx::Space;
using ptx::Variable;

constexpr size_t kMaxCallDepth = 64;
constexpr uint64_t kMaxRegisterBytes = uint64_t{256} << 20;  // a warp
constexpr uint64_t kMaxGlobalBytes = uint64_t{4} << 30;      // all variables of a kernel
constexpr uint64_t kMaxLocalBytes = 512 * 1024;              // a thread, as on hardware

class Maker {
 public:
  Maker(const ptx::Module& module, const Function& entry, Program* program, Layout* layout)
      : module_(module), entry_(entry), program_(program), layout_(layout) {}
  Status FindFunctions();
  Status LayOutRegisters();
  Status LayOutVariables();

 private:
  // An error of the text that the kernel has by way of something that it uses.
  Status Of(std::string_view name, const Status& error) const {
    return {error.code(), "kernel `" + std::string(entry_.name) + "`: " + error.message() +
                              " (in `" + std::string(name) + "`, which the kernel uses)"};
  }
  void UseVariable(uint32_t index);
  uint32_t ReservedSharedBytes() const;

  const ptx::Module& module_;
  const Function& entry_;
  Program* program_;
  Layout* layout_;
};

// Depth-first over calls. Registers belong to functions, not to calls, so recursion is refused.
Status Maker::FindFunctions() {
  auto entry_index = static_cast<uint32_t>(&entry_ - module_.functions.data());
  std::map<uint32_t, int> state;  // 1: on the path, 2: finished
  struct Visit {
    uint32_t function;
    size_t next = 0;
  };
  std::vector<Visit> path{{entry_index}};
  state[entry_index] = 1;
  layout_->reachable.push_back(entry_index);
  while (!path.empty()) {
    Visit& visit = path.back();
    const Function& function = module_.functions[visit.function];
    if (visit.next == function.code.size()) {
      state[visit.function] = 2;
      path.pop_back();
      continue;
    }
    const Instruction& instruction = function.code[visit.next++];
    if (instruction.op != Op::kCall || !module_.functions[instruction.target].is_defined) continue;
    int& callee = state[instruction.target];
    if (callee == 1 || path.size() == kMaxCallDepth) {
      return Unimplemented("kernel `" + std::string(entry_.name) + "`: PTX line " +
                           std::to_string(instruction.line) + ": the call of `" +
                           std::string(module_.functions[instruction.target].name) +
                           "`: recursive or very deep calls are not supported");
    }
    if (callee == 2) continue;
    const Function& called = module_.functions[instruction.target];
    if (!called.error.ok()) return Of(called.name, called.error);
    callee = 1;
    layout_->reachable.push_back(instruction.target);
    path.push_back({instruction.target});
  }
  return {};
}

Status Maker::LayOutRegisters() {
  uint64_t bytes = 0;
  auto take = [&](uint64_t size) {
    uint64_t offset = bytes;
    bytes += size;
    return static_cast<uint32_t>(offset);
  };
  layout_->scratch = take(kScratchSlots * kLanes * 4);
  layout_->sink = take(kLanes * 8);
  program_->bits = take(kBitsSlots * kLanes * 8);
  program_->names.assign(kCarryNumber + 1, "");
  uint32_t number = kCarryNumber + 1, predicates = 0;
  for (uint32_t index : layout_->reachable) {
    const Function& function = module_.functions[index];
    Frame& frame = layout_->frames[index];
    frame.first_number = number;
    frame.return_offset = take(kLanes * 4);
    RegisterSlots slots = ShareRegisters(function);
    uint32_t narrow = take(uint64_t{slots.narrow} * kLanes * 4);
    uint32_t wide = take(uint64_t{slots.wide} * kLanes * 8);
    if (bytes > kMaxRegisterBytes) return ResourceExhausted("the kernel has too many registers");
    for (size_t r = 0; r < function.registers.size(); ++r) {
      if (ptx::Bits(function.registers[r]) > 64) {
        return Unimplemented("register " + std::string(function.register_names[r]) +
                             ": 128-bit registers are not supported");
      }
      bool is_wide = ptx::Bits(function.registers[r]) == 64;
      uint32_t slot = slots.slot[r] * kLanes;
      frame.offsets.push_back(is_wide ? wide + slot * 8 : narrow + slot * 4);
      program_->names.push_back(function.register_names[r]);
      ++number;
    }
  }
  layout_->predicate_base = number;
  program_->first_predicate = number;
  for (uint32_t index : layout_->reachable) {
    const Function& function = module_.functions[index];
    layout_->frames[index].first_predicate = predicates;
    predicates += function.predicate_count;
    program_->names.insert(program_->names.end(), function.predicate_names.begin(),
                           function.predicate_names.end());
  }
  layout_->sink_predicate = predicates;
  program_->predicate_count = predicates + 3;  // a sink, false, true
  program_->register_bytes = static_cast<uint32_t>(bytes);
  return {};
}

void Maker::UseVariable(uint32_t index) {
  std::vector<uint32_t> pending{index};
  while (!pending.empty()) {
    uint32_t next = pending.back();
    pending.pop_back();
    if (!layout_->addresses.emplace(next, 0).second) continue;
    for (const auto& relocation : module_.variables[next].relocations) {
      pending.push_back(relocation.variable);
    }
  }
}

// Hardware has them before the kernel's own; here only kernels that ask for them have any.
uint32_t Maker::ReservedSharedBytes() const {
  auto asks = [](const Operand& operand) {
    return operand.kind == Operand::Kind::kSpecial &&
           operand.index >= static_cast<uint32_t>(ptx::Special::kReservedSmemBegin) &&
           operand.index <= static_cast<uint32_t>(ptx::Special::kReservedSmem1);
  };
  for (uint32_t index : layout_->reachable) {
    const auto& operands = module_.functions[index].operands;
    if (std::any_of(operands.begin(), operands.end(), asks)) return kReservedSharedBytes;
  }
  return 0;
}

Status Maker::LayOutVariables() {
  for (uint32_t index : layout_->reachable) {
    const Function& function = module_.functions[index];
    for (const Operand& operand : function.operands) {
      if (operand.variable != kNone) UseVariable(operand.variable);
    }
    for (uint32_t variable : function.results) UseVariable(variable);
    for (uint32_t variable : function.arguments) UseVariable(variable);
  }
  program_->reserved_shared_bytes = ReservedSharedBytes();
  uint64_t shared = program_->reserved_shared_bytes, local = 0, global = 0, dynamic_align = 16;
  auto place = [](uint64_t* end, const Variable& variable) {
    uint64_t begin = (*end + variable.align - 1) / variable.align * variable.align;
    *end = begin + variable.bytes;
    return begin;
  };
  for (auto& [index, address] : layout_->addresses) {
    const Variable& variable = module_.variables[index];
    if (!variable.error.ok()) return Of(variable.name, variable.error);
    switch (variable.space) {
      case Space::kShared:
        if (variable.is_dynamic) {
          dynamic_align = std::max<uint64_t>(dynamic_align, variable.align);
        } else {
          address = place(&shared, variable);
        }
        break;
      case Space::kLocal:
      case Space::kParam:
        address = place(&local, variable);
        break;
      default:
        if (program_->globals.size() == kMaxVariables) {
          return ResourceExhausted("the kernel uses more than 4096 global variables");
        }
        global += variable.bytes;
        address = VariableSlot(program_->globals.size());
        program_->globals.push_back(index);
    }
    if (shared > kMaxSharedBytes) {
      return ResourceExhausted("the kernel's static shared memory exceeds the limit of " +
                               std::to_string(kMaxSharedBytes) + " bytes");
    }
    if (global > kMaxGlobalBytes) {
      return ResourceExhausted("kernel `" + std::string(entry_.name) +
                               "`: the .global and .const variables that it uses exceed the limit "
                               "of " +
                               std::to_string(kMaxGlobalBytes) + " bytes");
    }
    if (local > kMaxLocalBytes) {
      return ResourceExhausted(
          "the kernel's local memory exceeds the limit of 524288 bytes a thread");
    }
  }
  shared = (shared + dynamic_align - 1) / dynamic_align * dynamic_align;
  for (auto& [index, address] : layout_->addresses) {
    const Variable& variable = module_.variables[index];
    if (variable.space != Space::kShared) continue;
    if (variable.is_dynamic) address = shared;
    program_->shared_variables.push_back(
        {variable.name, static_cast<uint32_t>(address),
         variable.is_dynamic ? 0 : static_cast<uint32_t>(variable.bytes)});
  }
  program_->parameters = VariableSlot(program_->globals.size());
  program_->static_shared_bytes = static_cast<uint32_t>(shared);
  program_->local_bytes = static_cast<uint32_t>((local + 15) / 16 * 16);
  return {};
}

}  // namespace

Status LayOut(const ptx::Module& module, const Function& entry, Program* program, Layout* layout) {
  Maker maker(module, entry, program, layout);
  JAX_PTX_RETURN_IF_ERROR(maker.FindFunctions());
  JAX_PTX_RETURN_IF_ERROR(maker.LayOutRegisters());
  return maker.LayOutVariables();
}

}  // namespace jax_ptx::emulator
