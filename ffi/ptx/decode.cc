#include "ptx/decode.h"

#include <cstring>

namespace jax_ptx::ptx {
namespace {

std::string Quoted(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string quoted = "`";
  quoted += text.substr(0, kLongest);
  return quoted + (text.size() > kLongest ? "…`" : "`");
}

// Takes the next word off `list`, which is separated by `separator`.
std::string_view TakeWord(std::string_view* list, char separator) {
  size_t end = list->find(separator);
  std::string_view word = list->substr(0, end);
  *list = end == std::string_view::npos ? std::string_view() : list->substr(end + 1);
  return word;
}

bool SlotAccepts(std::string_view slot, std::string_view modifier) {
  while (!slot.empty()) {
    std::string_view choice = TakeWord(&slot, '|');
    if (choice == modifier) return true;
    if (!choice.empty() && choice[0] == '$' && SlotAccepts(TypeSet(choice), modifier)) return true;
  }
  return false;
}

// Slots are taken greedily: no form has an optional slot whose words also start the next one.
bool MatchModifiers(const Form& form, const std::vector<Token>& modifiers) {
  std::string_view slots = form.modifiers;
  size_t next = 0;
  while (!slots.empty()) {
    std::string_view slot = TakeWord(&slots, ' ');
    bool optional = slot.back() == '?';
    if (optional) slot.remove_suffix(1);
    if (next < modifiers.size() && SlotAccepts(slot, modifiers[next].text.substr(1))) {
      ++next;
    } else if (!optional) {
      return false;
    }
  }
  return next == modifiers.size();
}

std::string Spelling(const Statement& statement) {
  std::string name(statement.opcode.text);
  for (const Token& modifier : statement.modifiers) name += modifier.text;
  return name;
}

class Decoder {
 public:
  Decoder(const Statement& statement, const Module& module, Symbols* symbols, Function* function)
      : statement_(statement), module_(module), symbols_(symbols), function_(function) {}

  Status Run();

 private:
  Status Match(const Form& form);
  Status AddTerm(std::string_view pattern, const Term& term);
  Status AddAtom(std::string_view type, bool is_destination, const Atom& atom);
  Status AddAddress(const Term& term);
  Status AddWord(std::string_view type_name, bool is_destination, const Atom& atom);
  Status AddPredicate(const Atom& atom, bool is_destination);
  Type Resolve(std::string_view name) const;
  Status Wrong(const Token& at, const std::string& what) const {
    return InvalidArgument(At(at) + ": " + Quoted(statement_.text) + ": " + what);
  }

  const Statement& statement_;
  const Module& module_;
  Symbols* symbols_;
  Function* function_;
  Instruction instruction_;
  std::vector<Operand> operands_;
};

// The type an operand pattern stands for.
Type Decoder::Resolve(std::string_view name) const {
  constexpr Type kBySize[] = {Type::kB8, Type::kB16, Type::kB32, Type::kB64, Type::kB128};
  auto sized = [&](unsigned bits) {
    for (Type type : kBySize) {
      if (Bits(type) == bits) return type;
    }
    return Type::kNone;
  };
  const Type* type = instruction_.type;
  if (name == "T" || name == "R") return type[0];
  if (name == "U" || name == "S") return type[1];
  if (name == "V") return type[2];
  if (name == "W") {
    Type wide = sized(2 * Bits(type[0]));
    if (wide == Type::kB32) return IsSigned(type[0]) ? Type::kS32 : Type::kU32;
    return IsSigned(type[0]) ? Type::kS64 : Type::kU64;
  }
  return FindType(name);
}

Status Decoder::AddPredicate(const Atom& atom, bool is_destination) {
  Operand operand;
  operand.kind = Operand::Kind::kPredicate;
  operand.type = Type::kPred;
  operand.is_destination = is_destination;
  operand.is_negated = atom.is_negated;
  if (atom.kind == Atom::Kind::kInteger && !is_destination) {  // mov.pred p, 1
    operand.kind = Operand::Kind::kImmediate;
    operand.value = atom.bits != 0;
    operands_.push_back(operand);
    return {};
  }
  if (atom.word == "_" && is_destination) {
    operand.kind = Operand::Kind::kSink;
    operands_.push_back(operand);
    return {};
  }
  const Symbol* symbol = atom.kind == Atom::Kind::kWord ? symbols_->Find(atom.word) : nullptr;
  if (symbol == nullptr || symbol->kind != Symbol::Kind::kPredicate || atom.addend != 0) {
    return Wrong(atom.at, Quoted(atom.at.text) + " is not a declared predicate register (.pred)");
  }
  operand.index = symbol->index;
  operands_.push_back(operand);
  return {};
}

Status Decoder::AddWord(std::string_view type_name, bool is_destination, const Atom& atom) {
  Type type = Resolve(type_name);
  Operand operand;
  operand.is_destination = is_destination;
  operand.type = type;
  if (atom.word == "_" && is_destination) {
    operands_.push_back(operand);
    return {};
  }
  Special special;
  unsigned bits = 0;
  const Symbol* symbol = symbols_->Find(atom.word);
  if (symbol != nullptr && symbol->kind == Symbol::Kind::kRegister) {
    operand.kind = Operand::Kind::kRegister;
    operand.index = symbol->index;
    operand.type = symbol->type;
    bits = Bits(symbol->type);
    if (atom.addend != 0) return Wrong(atom.at, "a register takes no offset outside [ ]");
  } else if (symbol != nullptr && symbol->kind == Symbol::Kind::kVariable && !is_destination) {
    operand.kind = Operand::Kind::kVariable;
    operand.variable = symbol->index;
    operand.value = atom.addend;
    if (Bits(type) < 32) return Wrong(atom.at, "an address needs a 32-bit or 64-bit type");
    operands_.push_back(operand);
    return {};
  } else if (FindSpecial(atom.word, &special)) {
    if (is_destination) return Wrong(atom.at, "a special register is read-only");
    operand.kind = Operand::Kind::kSpecial;
    operand.index = static_cast<uint32_t>(special);
    // The ISA lets 16-bit and 64-bit moves read a 32-bit special register.
    bits = instruction_.op == Op::kMov || instruction_.op == Op::kCvt ? Bits(type) : Bits(special);
  } else if (symbol != nullptr && symbol->kind == Symbol::Kind::kPredicate) {
    return Wrong(atom.at, Quoted(atom.word) + " is a predicate; a register of ." +
                              std::string(Info(type).name) + " is expected");
  } else {
    return Wrong(atom.at, Quoted(atom.word) + " is not declared");
  }
  // Loads, stores and conversions take registers wider than the type; everything else the exact
  // width.
  bool is_relaxed = type_name == "R" || type_name == "S";
  if (is_relaxed ? bits < Bits(type) : bits != Bits(type)) {
    return Wrong(atom.at, Quoted(atom.word) + " has " + std::to_string(bits) + " bits; " +
                              (is_relaxed ? "at least " : "") + std::to_string(Bits(type)) +
                              " are expected");
  }
  operands_.push_back(operand);
  return {};
}

Status Decoder::AddAtom(std::string_view type_name, bool is_destination, const Atom& atom) {
  if (type_name == "p") return AddPredicate(atom, is_destination);
  if (atom.is_negated) return Wrong(atom.at, "`!` belongs to predicates");
  if (atom.kind == Atom::Kind::kWord && type_name != "n") {
    return AddWord(type_name, is_destination, atom);
  }
  Type type = Resolve(type_name);
  if (is_destination) return Wrong(atom.at, "a destination must be a register");
  if (type_name == "n" && atom.kind != Atom::Kind::kInteger) {
    return Wrong(atom.at, "an integer constant is expected");
  }
  Operand operand;
  operand.kind = Operand::Kind::kImmediate;
  operand.type = type;
  operand.value = static_cast<int64_t>(atom.bits);
  bool is_float = atom.kind != Atom::Kind::kInteger;
  if (type_name == "n") {
    operand.type = Type::kB64;
  } else if (type == Type::kF32 || (is_float && Bits(type) == 32)) {
    float value = 0;
    if (!is_float) return Wrong(atom.at, "a float constant is expected, such as 0f3F800000");
    uint32_t bits = static_cast<uint32_t>(atom.bits);
    if (atom.kind == Atom::Kind::kDouble) {
      double wide;
      std::memcpy(&wide, &atom.bits, sizeof wide);
      value = static_cast<float>(wide);
      std::memcpy(&bits, &value, sizeof bits);
    }
    operand.value = bits;
  } else if (type == Type::kF64 || (is_float && Bits(type) == 64)) {
    if (!is_float)
      return Wrong(atom.at, "a float constant is expected, such as 0d3FF0000000000000");
    if (atom.kind == Atom::Kind::kSingle) {
      uint32_t bits = static_cast<uint32_t>(atom.bits);
      float narrow;
      std::memcpy(&narrow, &bits, sizeof narrow);
      double wide = narrow;
      std::memcpy(&operand.value, &wide, sizeof wide);
    }
  } else if (is_float) {
    return Wrong(atom.at, "a float constant does not fit ." + std::string(Info(type).name));
  } else if (Bits(type) < 64) {
    operand.value &= (int64_t{1} << Bits(type)) - 1;
  }
  operands_.push_back(operand);
  return {};
}

Status Decoder::AddAddress(const Term& term) {
  const Atom& atom = term.atoms[0];
  if (term.kind != Term::Kind::kAddress) return Wrong(atom.at, "an address [ ] is expected");
  Operand operand;
  operand.kind = Operand::Kind::kAddress;
  operand.value = atom.addend;
  if (atom.kind == Atom::Kind::kInteger) {
    operand.value = static_cast<int64_t>(atom.bits + static_cast<uint64_t>(atom.addend));
  } else if (atom.kind != Atom::Kind::kWord) {
    return Wrong(atom.at, "an address cannot be a float");
  } else {
    const Symbol* symbol = symbols_->Find(atom.word);
    if (symbol == nullptr) return Wrong(atom.at, Quoted(atom.word) + " is not declared");
    switch (symbol->kind) {
      case Symbol::Kind::kRegister:
        if (Bits(symbol->type) < 32 || Bits(symbol->type) > 64 || IsFloat(symbol->type)) {
          return Wrong(atom.at, Quoted(atom.word) + " cannot hold an address");
        }
        operand.index = symbol->index;
        operand.type = symbol->type;
        break;
      case Symbol::Kind::kVariable:
        operand.variable = symbol->index;
        break;
      case Symbol::Kind::kParameter: {
        const Parameter& parameter = function_->parameters[symbol->index];
        operand.kind = Operand::Kind::kParameter;
        operand.index = symbol->index;
        operand.value = static_cast<int64_t>(parameter.offset) + atom.addend;
        uint64_t bytes = uint64_t{instruction_.vector} * Bytes(instruction_.type[0]);
        if (instruction_.op != Op::kLd || instruction_.space != Space::kParam) {
          return Wrong(atom.at, "a kernel parameter is read with ld.param");
        }
        if (atom.addend < 0 || static_cast<uint64_t>(atom.addend) + bytes > parameter.bytes) {
          return Wrong(atom.at, "reads past the " + std::to_string(parameter.bytes) +
                                    " bytes of parameter " + std::string(parameter.name));
        }
        if (operand.value % Bytes(instruction_.type[0]) != 0) {
          return Wrong(atom.at, "the offset is not a multiple of the type's size");
        }
        break;
      }
      default:
        return Wrong(atom.at, Quoted(atom.word) + " cannot be an address");
    }
  }
  if (instruction_.space == Space::kParam && operand.kind != Operand::Kind::kParameter &&
      operand.variable == kNone) {
    return Unimplemented(At(atom.at) + ": " + Quoted(statement_.text) +
                         ": the parameter space is addressed by name only");
  }
  operands_.push_back(operand);
  return {};
}

// One element of a form's operand pattern against one operand.
Status Decoder::AddTerm(std::string_view pattern, const Term& term) {
  bool is_destination = pattern[0] == '>';
  if (is_destination) pattern.remove_prefix(1);
  bool may_pair = pattern.size() > 2 && pattern.substr(pattern.size() - 2) == "|p";
  if (may_pair) pattern.remove_suffix(2);
  const Atom& atom = term.atoms[0];

  if (pattern == "m") return AddAddress(term);
  if (pattern[0] == '{') {
    size_t count = static_cast<size_t>(pattern[1] - '0');
    std::string_view type = pattern.substr(3, pattern.size() - 4);
    bool is_scalar = count == 1 && term.kind == Term::Kind::kAtom;
    if ((term.kind != Term::Kind::kVector && !is_scalar) || term.atoms.size() != count) {
      return Wrong(atom.at, "a vector of " + std::to_string(count) + " registers is expected");
    }
    for (const Atom& element : term.atoms) {
      JAX_PTX_RETURN_IF_ERROR(AddAtom(type, is_destination, element));
    }
    return {};
  }
  if (pattern.back() == '*') {
    pattern.remove_suffix(1);
    if (instruction_.op == Op::kMov && term.kind == Term::Kind::kVector) {
      // mov packs or unpacks: the elements together have the type's size.
      unsigned bits = Bits(instruction_.type[0]) / static_cast<unsigned>(term.atoms.size());
      std::string_view element = bits == 8 ? "b8" : bits == 16 ? "b16" : bits == 32 ? "b32" : "b64";
      if (bits * term.atoms.size() != Bits(instruction_.type[0]) ||
          Bits(FindType(element)) != bits) {
        return Wrong(atom.at, "the elements do not add up to the type's size");
      }
      for (const Atom& one : term.atoms) {
        JAX_PTX_RETURN_IF_ERROR(AddAtom(element, is_destination, one));
      }
      return {};
    }
    size_t count = instruction_.vector;
    bool is_vector = term.kind == Term::Kind::kVector;
    if ((count > 1) != is_vector || term.atoms.size() != count) {
      return Wrong(atom.at, count > 1
                                ? "a vector of " + std::to_string(count) + " elements is expected"
                                : std::string("a single register is expected"));
    }
    for (const Atom& element : term.atoms) {
      JAX_PTX_RETURN_IF_ERROR(AddAtom(pattern, is_destination, element));
    }
    return {};
  }
  if (term.kind == Term::Kind::kPair && may_pair) {
    JAX_PTX_RETURN_IF_ERROR(AddAtom(pattern, is_destination, atom));
    return AddAtom("p", true, term.atoms[1]);
  }
  if (term.kind != Term::Kind::kAtom) {
    return Wrong(atom.at, term.kind == Term::Kind::kAddress ? "an address is not expected here"
                                                            : "one register is expected here");
  }
  return AddAtom(pattern, is_destination, atom);
}

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
    JAX_PTX_RETURN_IF_ERROR(AddTerm(pattern, statement_.terms[next++]));
  }
  if (next < statement_.terms.size()) {
    return Wrong(statement_.terms[next].atoms[0].at, "too many operands");
  }
  return {};
}

Status Decoder::Run() {
  FormRange forms = FindForms(statement_.opcode.text);
  if (forms.first == nullptr) {
    return Unimplemented(At(statement_.opcode) + ": unknown instruction " +
                         Quoted(Spelling(statement_)));
  }
  // Several rows may share their modifiers and differ in the number of operands: the first whose
  // operands fit wins.
  Status failure;
  const Form* chosen = nullptr;
  for (const Form* form = forms.first; form != forms.last && chosen == nullptr; ++form) {
    if (!MatchModifiers(*form, statement_.modifiers)) continue;
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
  if (statement_.has_guard) {
    Status status = AddPredicate(statement_.guard, false);
    if (!status.ok()) return status;
    if (operands_.back().kind != Operand::Kind::kPredicate) {
      return Wrong(statement_.guard.at, "a guard is a predicate register");
    }
    instruction_.guard = operands_.back().index;
    instruction_.guard_negated = operands_.back().is_negated;
    operands_.pop_back();
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

Status Decode(const Statement& statement, const Module& module, Symbols* symbols,
              Function* function) {
  return Decoder(statement, module, symbols, function).Run();
}

}  // namespace jax_ptx::ptx
