#include "emulator/compile.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "emulator/handlers.h"
#include "emulator/layout.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Operand;
using ptx::Space;
using ptx::Type;
using ptx::Variable;

constexpr uint32_t kConstantBank = 0x80000000;
constexpr uint32_t kNegated = 0x80000000;
constexpr uint32_t kMaxStaticSharedBytes = 48 * 1024;  // on every target

// Numbers, symbols and special registers have the type that the form asks for, registers their own.
bool IsWide(const Operand& operand) { return ptx::Bits(operand.type) == 64; }

// The lists of a step; `numbers` are those of its args, of which the first are destinations.
struct Operands {
  std::vector<uint32_t> args, reads, writes, numbers;
  uint32_t destinations = 0;
};

class Compiler {
 public:
  Compiler(const ptx::Module& module, const Function& entry, const std::vector<uint8_t>& parameters)
      : module_(module), entry_(entry), parameters_(parameters), program_(new Program) {}
  Result<std::unique_ptr<Program>> Run();

 private:
  Status EmitFunction(uint32_t function_index);
  Status Emit(uint32_t function_index, const Instruction& instruction);
  void EmitParameterLoad(const Instruction& instruction, const Operand* operands);
  Status EmitCall(const Instruction& instruction, const Operand* operands);
  uint32_t Constant(uint64_t value, bool is_wide);
  uint32_t SpecialArgument(ptx::Special special, bool is_wide);
  uint32_t Argument(const Frame& frame, const Operand& operand, bool is_wide);
  void AddStep(Step step, const Instruction& instruction);
  void AddStep(Step step, const Instruction& instruction, const Operands& operands);
  uint32_t NumberOf(const Operand& operand) const;
  uint64_t VariableAddress(uint32_t index) const { return layout_.addresses.at(index); }

  const ptx::Module& module_;
  const Function& entry_;
  const std::vector<uint8_t>& parameters_;
  std::unique_ptr<Program> program_;
  Layout layout_;
  std::map<std::pair<uint64_t, bool>, uint32_t> constants_;
  struct Lists {
    size_t step, args, reads, writes;
  };
  std::vector<Lists> lists_;
  struct Jump {
    size_t step;  // or, of a table, the entry's place in Program::numbers
    uint32_t function, target;
    bool is_entry = false;
  };
  std::vector<Jump> jumps_;
  std::map<uint32_t, std::vector<uint32_t>> step_of_;
  std::vector<uint32_t> reads_, writes_;  // of the instruction being emitted
  const Frame* frame_ = nullptr;
};

uint32_t Compiler::Constant(uint64_t value, bool is_wide) {
  auto [entry, is_new] = constants_.emplace(std::make_pair(value, is_wide), 0);
  if (is_new) {
    entry->second = static_cast<uint32_t>(program_->constants.size() * 8) | kConstantBank;
    uint64_t pattern = is_wide ? value : (value & 0xFFFFFFFF) * 0x100000001;
    program_->constants.insert(program_->constants.end(), is_wide ? kLanes : kLanes / 2, pattern);
  }
  return entry->second;
}

uint32_t Compiler::SpecialArgument(ptx::Special special, bool is_wide) {
  for (const SpecialSlot& slot : program_->specials) {
    if (slot.special == special && slot.is_wide == is_wide) return slot.offset;
  }
  uint32_t offset = program_->register_bytes;
  program_->register_bytes += kLanes * 8;
  program_->specials.push_back({special, offset, is_wide});
  return offset;
}

uint32_t Compiler::Argument(const Frame& frame, const Operand& operand, bool is_wide) {
  switch (operand.kind) {
    case Operand::Kind::kSink:
      return operand.type == Type::kPred ? layout_.sink_predicate : layout_.sink;
    case Operand::Kind::kRegister:
      (operand.is_destination ? writes_ : reads_).push_back(NumberOf(operand));
      return frame.offsets[operand.index];
    case Operand::Kind::kPredicate: {
      uint32_t predicate = frame.first_predicate + operand.index;
      (operand.is_destination ? writes_ : reads_).push_back(NumberOf(operand));
      return predicate | (operand.is_negated ? kNegated : 0);
    }
    case Operand::Kind::kImmediate:
      if (operand.type == Type::kPred) return layout_.sink_predicate + (operand.value != 0 ? 2 : 1);
      return Constant(static_cast<uint64_t>(operand.value), is_wide);
    case Operand::Kind::kSpecial:
      return SpecialArgument(static_cast<ptx::Special>(operand.index), is_wide);
    case Operand::Kind::kVariable:
      return Constant(VariableAddress(operand.variable) + static_cast<uint64_t>(operand.value),
                      is_wide);
    case Operand::Kind::kParameter:
      return Constant(program_->parameters + static_cast<uint64_t>(operand.value), is_wide);
    default:
      return 0;
  }
}

// In Warp::defined, or kNone.
uint32_t Compiler::NumberOf(const Operand& operand) const {
  if (operand.kind == Operand::Kind::kPredicate)
    return layout_.predicate_base + frame_->first_predicate + operand.index;
  bool is_address = operand.kind == Operand::Kind::kAddress && operand.index != kNone;
  bool is_register = operand.kind == Operand::Kind::kRegister || is_address;
  return is_register ? frame_->first_number + operand.index : kNone;
}

void Compiler::AddStep(Step step, const Instruction& i) {
  step.source = &i;
  if (i.guard != kNone) {
    step.guard = frame_->first_predicate + i.guard;
    step.guard_negated = i.guard_negated;
  }
  program_->steps.push_back(step);
}

void Compiler::AddStep(Step step, const Instruction& i, const Operands& lists) {
  std::vector<uint32_t>& all = program_->numbers;
  size_t reads = all.size() + lists.args.size(), writes = reads + lists.reads.size();
  lists_.push_back({program_->steps.size(), all.size(), reads, writes});
  for (const auto* list : {&lists.args, &lists.reads, &lists.writes})
    all.insert(all.end(), list->begin(), list->end());
  all.insert(all.end(), {lists.destinations, static_cast<uint32_t>(lists.numbers.size())});
  all.insert(all.end(), lists.numbers.begin(), lists.numbers.end());
  step.read_count = static_cast<uint8_t>(lists.reads.size());
  step.write_count = static_cast<uint8_t>(lists.writes.size());
  AddStep(step, i);
}

// Parameters are the same for all threads and known by now: a load of one is a move of a constant.
void Compiler::EmitParameterLoad(const Instruction& i, const Operand* operands) {
  size_t bytes = ptx::Bytes(i.type[0]);
  for (size_t e = 0; e < i.vector; ++e) {
    uint64_t value = 0;
    size_t offset = static_cast<size_t>(operands[i.vector].value) + e * bytes;
    if (offset + bytes <= parameters_.size()) std::memcpy(&value, &parameters_[offset], bytes);
    if (ptx::IsSigned(i.type[0]) && bytes < 8 && value >> (8 * bytes - 1))
      value |= ~uint64_t{0} << (8 * bytes);
    bool is_wide = IsWide(operands[e]);
    reads_.clear();
    writes_.clear();
    Step step;
    step.run = is_wide ? Move64 : Move32;
    uint32_t destination = Argument(*frame_, operands[e], is_wide);
    lists_.push_back(
        {program_->steps.size(), program_->numbers.size(), 0, program_->numbers.size() + 2});
    program_->numbers.insert(program_->numbers.end(), {destination, Constant(value, is_wide)});
    program_->numbers.insert(program_->numbers.end(), writes_.begin(), writes_.end());
    step.write_count = static_cast<uint8_t>(writes_.size());
    AddStep(step, i);
  }
}

// The arguments are copied to the callee's variables at the call, the results back at the step
// behind it.
Status Compiler::EmitCall(const Instruction& i, const Operand* operands) {
  const Function& callee = module_.functions[i.target];
  if (!callee.is_defined) {
    Step step;
    step.run = callee.name == "vprintf" ? CallPrintf : CallUndefined;
    lists_.push_back({program_->steps.size(), program_->numbers.size(), 0, 0});
    bool has_result = i.operand_count != 0 && operands[0].is_destination;
    program_->numbers.push_back(
        has_result ? static_cast<uint32_t>(VariableAddress(operands[0].variable)) : kNone);
    uint32_t first = has_result ? 1 : 0;
    program_->numbers.push_back(i.operand_count - first);
    for (uint32_t k = first; k < i.operand_count; ++k) {
      bool is_variable = operands[k].variable != kNone;
      program_->numbers.push_back(
          is_variable ? static_cast<uint32_t>(VariableAddress(operands[k].variable)) : kNone);
    }
    AddStep(step, i);
    return {};
  }
  size_t results = callee.results.size(), arguments = callee.arguments.size();
  if (i.operand_count != results + arguments) {
    return InvalidArgument("PTX line " + std::to_string(i.line) + ": the call does not fit `" +
                           std::string(callee.name) + "`");
  }
  auto copies = [&](const Operand* passed, const std::vector<uint32_t>& own, bool is_result) {
    std::vector<uint32_t> list{static_cast<uint32_t>(own.size())};
    for (size_t k = 0; k < own.size(); ++k) {
      uint64_t outer = VariableAddress(passed[k].variable), inner = VariableAddress(own[k]);
      uint64_t bytes =
          std::min(module_.variables[passed[k].variable].bytes, module_.variables[own[k]].bytes);
      list.push_back(static_cast<uint32_t>(is_result ? outer : inner));
      list.push_back(static_cast<uint32_t>(is_result ? inner : outer));
      list.push_back(static_cast<uint32_t>(bytes));
    }
    return list;
  };
  for (bool is_result : {false, true}) {
    std::vector<uint32_t> list = is_result ? copies(operands, callee.results, true)
                                           : copies(operands + results, callee.arguments, false);
    Step step;
    step.run = is_result ? CopyResults : Call;
    step.value = layout_.frames[i.target].return_offset;
    lists_.push_back({program_->steps.size(), program_->numbers.size(), 0, 0});
    program_->numbers.insert(program_->numbers.end(), list.begin(), list.end());
    if (!is_result) jumps_.push_back({program_->steps.size(), i.target, 0});
    AddStep(step, i);
  }
  return {};
}

Status Compiler::Emit(uint32_t function_index, const Instruction& i) {
  const Function& function = module_.functions[function_index];
  const Operand* operands = function.operands.data() + i.first_operand;
  const Frame& frame = *frame_;
  if (i.op == Op::kNop) return {};
  if (i.op == Op::kCall) return EmitCall(i, operands);
  if (i.op == Op::kLd && operands[i.vector].kind == Operand::Kind::kParameter) {
    EmitParameterLoad(i, operands);
    return {};
  }

  Step step;
  step.vector = i.vector;
  step.space = i.space;
  // A parameter's address is a generic one.
  if (i.op == Op::kLd && i.space == Space::kParam && operands[i.vector].index != kNone)
    step.space = Space::kNone;
  step.run = SelectHandler(i);
  if (step.run == nullptr) {
    return Unimplemented("PTX line " + std::to_string(i.line) + ": `" +
                         std::string(i.text.substr(0, 80)) +
                         "`: the emulator does not run this form");
  }
  reads_.clear();
  writes_.clear();
  std::vector<uint32_t> args, numbers;
  uint32_t destinations = 0;
  std::vector<std::pair<Step, Operands>> after;
  bool is_relaxed = i.op == Op::kLd || i.op == Op::kSt || i.op == Op::kCvt;
  uint32_t scratch_uses = 0;  // at most one for each element of a vector, which has up to eight
  for (size_t k = 0; k < i.operand_count; ++k) {
    const Operand& operand = operands[k];
    if (operand.kind == Operand::Kind::kAddress) {
      step.value = static_cast<uint64_t>(operand.value);
      if (operand.variable != kNone) step.value += VariableAddress(operand.variable);
      step.is_address_wide = operand.index == kNone || ptx::Bits(operand.type) == 64;
      if (operand.index == kNone) {
        args.push_back(Constant(0, true));
      } else {
        reads_.push_back(NumberOf(operand));
        args.push_back(frame.offsets[operand.index]);
      }
      numbers.resize(args.size(), kNone);
      numbers.back() = NumberOf(operand);
      if (IsAsync(i.op)) {  // may have several addresses: offset and width go with each
        args.push_back(step.is_address_wide);
        args.push_back(static_cast<uint32_t>(step.value));
        args.push_back(static_cast<uint32_t>(step.value >> 32));
      }
      continue;
    }
    bool is_wide = IsWide(operand);
    if (operand.kind == Operand::Kind::kSpecial &&
        operand.index >= static_cast<uint32_t>(ptx::Special::kClock)) {
      Step clock;
      clock.run = ReadClock;
      clock.value = operand.index;
      lists_.push_back({program_->steps.size(), program_->numbers.size(), 0, 0});
      program_->numbers.push_back(
          SpecialArgument(static_cast<ptx::Special>(operand.index),
                          ptx::Bits(static_cast<ptx::Special>(operand.index)) == 64));
      AddStep(clock, i);
    }
    uint32_t argument = Argument(frame, operand, is_wide), number = NumberOf(operand);
    Type form_type = i.op == Op::kCvt && !operand.is_destination ? i.type[1] : i.type[0];
    if (is_relaxed && is_wide && operand.kind == Operand::Kind::kRegister &&
        ptx::Bits(form_type) < 64) {
      // A 64-bit register for a narrower value: by way of a scratch register.
      uint32_t slot = scratch_uses++, scratch = layout_.scratch + kLanes * 4 * slot;
      Step convert;
      convert.run = !operand.is_destination    ? Narrow
                    : ptx::IsSigned(form_type) ? WidenSigned
                                               : Widen;
      if (operand.is_destination) {
        after.push_back(
            {convert, {{argument, scratch}, {slot}, {number}, {kWideArgument | number, slot}, 1}});
        writes_.back() = slot;
      } else {
        AddStep(convert, i,
                {{scratch, argument}, {number}, {slot}, {slot, kWideArgument | number}, 1});
        reads_.back() = slot;
      }
      argument = scratch;
      number = slot;
      is_wide = false;
    }
    numbers.resize(args.size(), kNone);
    numbers.push_back(is_wide ? number | kWideArgument : number);
    args.push_back(argument);
    if (operand.is_destination) destinations = static_cast<uint32_t>(args.size());
    // A second destination that was left out: a predicate nobody reads.
    bool may_pair =
        i.op == Op::kSetp || i.op == Op::kShfl || i.op == Op::kMatch || i.op == Op::kElect;
    if (!may_pair || k != 0 || i.destination_count != 1) continue;
    args.push_back(layout_.sink_predicate);
    ++destinations;
  }
  numbers.resize(args.size(), kNone);
  FinishStep(i, operands, &step);
  if (i.op == Op::kAddc || i.op == Op::kSubc) {
    if (step.value != 0) reads_.push_back(kCarryNumber);
    if (i.Has(Mod::kCc)) writes_.push_back(kCarryNumber);
  }
  if (i.op == Op::kBrx) {
    step.value = function.tables[i.target].size();
    for (uint32_t target : function.tables[i.target]) {
      jumps_.push_back({program_->numbers.size() + args.size(), function_index, target, true});
      args.push_back(0);
    }
  }
  if (i.op == Op::kBra) jumps_.push_back({program_->steps.size(), function_index, i.target});
  if (i.op == Op::kRet)
    step.value = function_index == layout_.reachable[0] ? kNone : frame.return_offset;
  AddStep(step, i, {args, reads_, writes_, numbers, destinations});
  for (const auto& [convert, lists] : after) AddStep(convert, i, lists);
  return {};
}

Status Compiler::EmitFunction(uint32_t index) {
  static const Instruction kEnd = [] {
    Instruction end;
    end.op = Op::kRet;
    end.text = "}";
    return end;
  }();
  const Function& function = module_.functions[index];
  Frame& frame = layout_.frames[index];
  frame_ = &frame;
  frame.first_step = static_cast<uint32_t>(program_->steps.size());
  std::vector<uint32_t>& step_of = step_of_[index];
  for (const Instruction& instruction : function.code) {
    step_of.push_back(static_cast<uint32_t>(program_->steps.size()));
    JAX_PTX_RETURN_IF_ERROR(Emit(index, instruction));
  }
  step_of.push_back(static_cast<uint32_t>(program_->steps.size()));
  return Emit(index, kEnd);  // the end of a body returns
}

Result<std::unique_ptr<Program>> Compiler::Run() {
  program_->module = &module_;
  program_->entry = &entry_;
  JAX_PTX_RETURN_IF_ERROR(LayOut(module_, entry_, program_.get(), &layout_));
  uint32_t declared = program_->static_shared_bytes - program_->reserved_shared_bytes;
  if (declared > kMaxStaticSharedBytes) {
    return ResourceExhausted(
        "kernel `" + std::string(entry_.name) + "` declares " + std::to_string(declared) +
        " bytes of shared memory; at most " + std::to_string(kMaxStaticSharedBytes) +
        " may be declared, and more comes as .extern .shared with a size at the launch");
  }
  for (uint32_t index : layout_.reachable) JAX_PTX_RETURN_IF_ERROR(EmitFunction(index));
  for (const Jump& jump : jumps_) {
    uint32_t target = step_of_[jump.function][jump.target];
    (jump.is_entry ? program_->numbers[jump.step] : program_->steps[jump.step].target) = target;
  }
  // The number list has stopped growing: its addresses hold now.
  for (const Lists& list : lists_) {
    Step& step = program_->steps[list.step];
    step.args = program_->numbers.data() + list.args;
    step.reads = program_->numbers.data() + list.reads;
    step.writes = program_->numbers.data() + list.writes;
  }
  return std::move(program_);
}

}  // namespace

Result<std::unique_ptr<Program>> Compile(const ptx::Module& module, const Function& entry,
                                         const std::vector<uint8_t>& parameters) {
  return Compiler(module, entry, parameters).Run();
}

}  // namespace jax_ptx::emulator
