#include "ptx/decode.h"

#include <algorithm>

#include "ptx/operands.h"

namespace jax_ptx::ptx {
namespace {

std::string Spelling(const Statement& statement) {
  std::string name(statement.opcode.text);
  for (const Token& modifier : statement.modifiers) name += modifier.text;
  return name;
}

class Decoder {
 public:
  Decoder(const Statement& statement, const Requirement& provides, Symbols* symbols,
          Function* function)
      : statement_(statement), provides_(provides), symbols_(symbols), function_(function) {}

  Status Run();

 private:
  Status Match(const Form& form);
  Status Wrong(const Token& at, const std::string& what) const {
    return InvalidArgument(At(at) + ": " + Quoted(statement_.text) + ": " + what);
  }

  const Statement& statement_;
  const Requirement& provides_;
  Symbols* symbols_;
  Function* function_;
  Instruction instruction_;
  std::vector<Operand> operands_;
};

Status Decoder::Match(const Form& form) {
  instruction_.op = form.op;
  instruction_.line = statement_.opcode.line;
  instruction_.text = statement_.text;
  size_t types = 0;
  for (const Token& token : statement_.modifiers) {
    std::string_view name = token.text.substr(1);
    if (Type type = FindType(name); type != Type::kNone) {
      if (types < std::size(instruction_.type)) instruction_.type[types++] = type;
      continue;
    }
    Mod modifier;
    if (FindModifier(name, &modifier)) instruction_.modifiers.set(static_cast<size_t>(modifier));
  }
  const Instruction& i = instruction_;
  instruction_.vector = i.Has(Mod::kV2) ? 2 : i.Has(Mod::kV4) ? 4 : i.Has(Mod::kV8) ? 8 : 1;
  if (i.Has(Mod::kParam) || i.Has(Mod::kParamEntry) || i.Has(Mod::kParamFunc)) {
    instruction_.space = Space::kParam;
  } else if (i.Has(Mod::kGlobal)) {
    instruction_.space = Space::kGlobal;
  } else if (i.Has(Mod::kShared) || i.Has(Mod::kSharedCta) || i.Has(Mod::kSharedCluster)) {
    instruction_.space = Space::kShared;
  } else if (i.Has(Mod::kLocal)) {
    instruction_.space = Space::kLocal;
  } else if (i.Has(Mod::kConst)) {
    instruction_.space = Space::kConst;
  }

  OperandReader reader(statement_, instruction_, *function_, symbols_);
  std::string_view patterns = form.operands;
  size_t next = 0;
  while (!patterns.empty()) {
    // A vector pattern holds a space: {4 b32}.
    size_t brace = patterns.find('{');
    std::string_view pattern;
    if (brace < patterns.find(' ')) {
      size_t end = patterns.find('}') + 1;
      pattern = patterns.substr(0, end);
      patterns.remove_prefix(end < patterns.size() ? end + 1 : end);
    } else {
      pattern = TakeWord(&patterns, ' ');
    }
    bool optional = pattern.back() == '?';
    if (optional) pattern.remove_suffix(1);
    if (next == statement_.terms.size()) {
      if (optional) continue;
      return Wrong(statement_.opcode, "too few operands");
    }
    JAX_PTX_RETURN_IF_ERROR(reader.AddTerm(pattern, statement_.terms[next++]));
  }
  if (next < statement_.terms.size()) {
    return Wrong(statement_.terms[next].atoms[0].at, "too many operands");
  }
  operands_ = std::move(reader.operands());
  return {};
}

Status Decoder::Run() {
  FormRange forms = FindForms(statement_.opcode.text);
  // Several rows may share their modifiers and differ in the number of operands: the first whose
  // operands fit wins.
  Status failure;
  const Form* chosen = nullptr;
  std::vector<std::string_view> modifiers;
  for (const Token& token : statement_.modifiers) modifiers.push_back(token.text.substr(1));
  for (const Form* form = forms.first; form != forms.last && chosen == nullptr; ++form) {
    if (!Matches(*form, modifiers)) continue;
    instruction_ = Instruction();
    operands_.clear();
    // A branch's label and a call's lists are the parser's business.
    bool is_control = form->op == Op::kBra || form->op == Op::kCall;
    Status status =
        is_control ? Match({form->opcode, form->op, form->modifiers, ""}) : Match(*form);
    if (status.ok()) {
      chosen = form;
    } else if (failure.ok()) {
      failure = std::move(status);
    }
  }
  if (chosen == nullptr && !failure.ok()) return failure;
  if (chosen == nullptr) {
    std::string known;
    for (const Form* form = forms.first; form != forms.last; ++form) {
      known += std::string(known.empty() ? "" : "; ") + std::string(form->opcode) + " " +
               std::string(form->modifiers);
    }
    return Unimplemented(At(statement_.opcode) + ": " + Quoted(Spelling(statement_)) +
                         " is not among the known forms: " + known);
  }
  Requirement needed = FindRequirement(statement_.opcode.text, modifiers);
  if (!needed.IsMetBy(provides_)) {
    return Wrong(statement_.opcode, Quoted(Spelling(statement_)) + " needs " + ToString(needed) +
                                        ", the text has " + ToString(provides_));
  }
  if (statement_.has_guard) {
    OperandReader reader(statement_, instruction_, *function_, symbols_);
    JAX_PTX_RETURN_IF_ERROR(reader.AddPredicate(statement_.guard, false));
    const Operand& guard = reader.operands().front();
    if (guard.kind != Operand::Kind::kPredicate) {
      return Wrong(statement_.guard.at, "a guard is a predicate register");
    }
    instruction_.guard = guard.index;
    instruction_.guard_negated = guard.is_negated;
  }
  instruction_.first_operand = static_cast<uint32_t>(function_->operands.size());
  instruction_.operand_count = static_cast<uint8_t>(operands_.size());
  for (const Operand& operand : operands_) instruction_.destination_count += operand.is_destination;
  function_->operands.insert(function_->operands.end(), operands_.begin(), operands_.end());
  function_->code.push_back(instruction_);
  return {};
}

}  // namespace

std::string At(const Token& token) {
  return "PTX line " + std::to_string(token.line) + ", column " + std::to_string(token.column);
}

Status CheckOpcode(const Statement& statement) {
  if (FindForms(statement.opcode.text).first != nullptr) return {};
  static constexpr std::string_view kKnown[] = {"alloca", "istypep", "stackrestore", "stacksave",
                                                "suld",   "suq",     "sured",        "sust",
                                                "tex",    "tld4",    "txq"};
  bool is_known =
      std::find(std::begin(kKnown), std::end(kKnown), statement.opcode.text) != std::end(kKnown);
  std::string name = Quoted(Spelling(statement));
  return Unimplemented(At(statement.opcode) + ": " +
                       (is_known ? name + " is not supported" : "unknown instruction " + name));
}

Status Decode(const Statement& statement, const Requirement& provides, Symbols* symbols,
              Function* function) {
  return Decoder(statement, provides, symbols, function).Run();
}

}  // namespace jax_ptx::ptx
