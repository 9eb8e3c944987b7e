#include "ptx/operands.h"

#include <algorithm>
#include <cstring>

namespace jax_ptx::ptx {

std::string Quoted(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string quoted = "`";
  quoted += text.substr(0, kLongest);
  return quoted + (text.size() > kLongest ? "…`" : "`");
}

namespace {

// The one-operand moves of addresses and special registers; everything else wants registers.
bool TakesSymbols(Op op) {
  return op == Op::kMov || op == Op::kCvta || op == Op::kMapa || op == Op::kGetctarank;
}

// Special registers of the ISA that nothing here has a value for.
bool IsUnmodelled(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {"%reserved_smem_offset_", "%envreg", "%pm",
                                            "%current_graph_exec"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [=](auto prefix) { return name.substr(0, prefix.size()) == prefix; });
}

// Single results that may be left out; a vector or a pair of results may do without some.
bool MayDiscard(Op op) { return op == Op::kAtom || op == Op::kMbarrierArrive; }

// cvt from and to bfloat16 takes registers of just the width.
bool TakesExactWidths(const Instruction& i) {
  return i.op == Op::kCvt && (i.type[0] == Type::kBF16 || i.type[1] == Type::kBF16);
}

// Of the instructions with one address, those that name its space.
bool IsOfOtherSpace(const Instruction& i, Space space) {
  bool has_one = i.op == Op::kLd || i.op == Op::kSt || i.op == Op::kAtom || i.op == Op::kRed;
  return has_one && i.space != Space::kNone && i.space != space;
}

// Half and packed types have no constants.
bool HasConstants(Type type) {
  return IsFloat(type) ? type == Type::kF32 || type == Type::kF64 : IsDeclarable(type);
}

// The bits of a float constant in the other of the two sizes.
int64_t Converted(const Atom& atom) {
  if (atom.kind == Atom::Kind::kSingle) {
    auto bits = static_cast<uint32_t>(atom.bits);
    float narrow;
    std::memcpy(&narrow, &bits, sizeof narrow);
    double wide = narrow;
    int64_t result;
    std::memcpy(&result, &wide, sizeof wide);
    return result;
  }
  double wide;
  std::memcpy(&wide, &atom.bits, sizeof wide);
  float narrow = static_cast<float>(wide);
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof narrow);
  return bits;
}

}  // namespace

// The type an operand pattern stands for.
Type OperandReader::Resolve(std::string_view name) const {
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

Status OperandReader::AddPredicate(const Atom& atom, bool is_destination) {
  Operand operand;
  operand.kind = Operand::Kind::kPredicate;
  operand.type = Type::kPred;
  operand.is_destination = is_destination;
  operand.is_negated = atom.is_negated;
  if (is_destination && atom.is_negated) return Wrong(atom.at, "a destination cannot be negated");
  if (atom.kind == Atom::Kind::kInteger && !is_destination) {  // mov.pred p, 1
    operand.kind = Operand::Kind::kImmediate;
    operand.value = atom.bits != 0;
    operands_.push_back(operand);
    return {};
  }
  if (atom.word == "_" && is_destination) {
    if (!may_discard_) return Wrong(atom.at, "this result cannot be left out: `_` is not allowed");
    operand.kind = Operand::Kind::kSink;
    operands_.push_back(operand);
    return {};
  }
  bool is_plain = !is_destination && !atom.is_negated && atom.addend == 0;
  Special special;
  if (instruction_.op == Op::kMov && is_plain && FindSpecial(atom.word, &special) &&
      special == Special::kIsExplicitCluster) {
    operand.kind = Operand::Kind::kSpecial;
    operand.index = static_cast<uint32_t>(special);
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

Status OperandReader::AddWord(std::string_view type_name, bool is_destination, const Atom& atom) {
  Type type = Resolve(type_name);
  // Loads, stores and conversions take registers wider than the type; everything else the exact
  // width.
  bool is_relaxed = (type_name == "R" || type_name == "S") && !TakesExactWidths(instruction_);
  Operand operand;
  operand.is_destination = is_destination;
  operand.type = type;
  if (atom.word == "_" && is_destination) {
    if (!may_discard_) return Wrong(atom.at, "this result cannot be left out: `_` is not allowed");
    operands_.push_back(operand);
    return {};
  }
  const Symbol* symbol = symbols_->Find(atom.word);
  if (symbol != nullptr && symbol->kind == Symbol::Kind::kVariable && !is_destination) {
    operand.kind = Operand::Kind::kVariable;
    operand.variable = symbol->index;
    operand.value = atom.addend;
    if (!TakesSymbols(instruction_.op) || type_name != "T" || IsFloat(type) || Bits(type) < 32)
      return Wrong(atom.at, Quoted(atom.word) +
                                " is a variable; its address comes into a register by mov.u64 (or "
                                "mov.u32), and what it holds by ld");
    operands_.push_back(operand);
    return {};
  }
  if (symbol != nullptr && symbol->kind == Symbol::Kind::kParameter && !is_destination) {
    const Parameter& parameter = function_.parameters[symbol->index];
    bool is_move = instruction_.op == Op::kMov && Bits(type) == 64 && type_name == "T";
    if (IsFloat(type) ||
        (!is_move && !instruction_.Has(Mod::kParam) && !instruction_.Has(Mod::kParamEntry)))
      return Wrong(atom.at, Quoted(atom.word) +
                                " is a parameter; its address comes into a register by mov.u64 or "
                                "cvta.param, and what it holds by ld.param");
    operand.kind = Operand::Kind::kParameter;
    operand.index = symbol->index;
    operand.value = static_cast<int64_t>(parameter.offset) + atom.addend;
    operands_.push_back(operand);
    return {};
  }
  if (atom.addend != 0) return Wrong(atom.at, "a register takes no offset outside [ ]");
  if (Special special; FindSpecial(atom.word, &special)) {
    if (special == Special::kIsExplicitCluster)
      return Wrong(atom.at, Quoted(atom.word) + " is a predicate: mov.pred reads it");
    if (is_destination) return Wrong(atom.at, "a special register is read-only");
    operand.kind = Operand::Kind::kSpecial;
    operand.index = static_cast<uint32_t>(special);
    bool is_move = instruction_.op == Op::kMov || instruction_.op == Op::kCvt;
    bool is_float = IsFloat(instruction_.type[0]) || IsFloat(instruction_.type[1]);
    if (!is_move || is_float || Bits(special) < Bits(type))
      return Wrong(atom.at, Quoted(atom.word) + " is a special register of " +
                                std::to_string(Bits(special)) +
                                " bits: only mov and cvt between integers of its size read it");
    operands_.push_back(operand);
    return {};
  }
  if (symbol != nullptr && symbol->kind == Symbol::Kind::kPredicate) {
    return Wrong(atom.at, Quoted(atom.word) + " is a predicate; a register of ." +
                              std::string(Info(type).name) + " is expected");
  }
  if (symbol != nullptr && symbol->kind == Symbol::Kind::kFunction)
    return Unimplemented(At(atom.at) + ": " + Quoted(atom.word) +
                         " is a function; addresses of functions are not supported");
  if (symbol == nullptr && IsUnmodelled(atom.word))
    return Unimplemented(At(atom.at) + ": " + Quoted(statement_.text) + ": the special register " +
                         std::string(atom.word) + " is not supported");
  if (symbol == nullptr || symbol->kind != Symbol::Kind::kRegister)
    return Wrong(atom.at, Quoted(atom.word) + " is not declared");
  operand.kind = Operand::Kind::kRegister;
  operand.index = symbol->index;
  operand.type = symbol->type;
  unsigned bits = Bits(symbol->type);
  if (is_relaxed ? bits < Bits(type) : bits != Bits(type)) {
    return Wrong(atom.at, Quoted(atom.word) + " has " + std::to_string(bits) + " bits; " +
                              (is_relaxed ? "at least " : "") + std::to_string(Bits(type)) +
                              " are expected");
  }
  if (!Agrees(type, symbol->type)) {
    std::string untyped = ".b" + std::to_string(Bits(type));
    return Wrong(atom.at, Quoted(atom.word) + " is a register of ." +
                              std::string(Info(symbol->type).name) + "; ." +
                              std::string(Info(type).name) + " or " + untyped + " is expected");
  }
  operands_.push_back(operand);
  return {};
}

Status OperandReader::AddAtom(std::string_view type_name, bool is_destination, const Atom& atom) {
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
  } else if (!HasConstants(type)) {
    return Wrong(atom.at, "there are no constants of ." + std::string(Info(type).name) +
                              ": a register is expected");
  } else if (!is_float && IsFloat(type)) {
    return Wrong(atom.at, type == Type::kF32
                              ? "a float constant is expected, such as 0f3F800000"
                              : "a float constant is expected, such as 0d3FF0000000000000");
  } else if (is_float) {
    // Untyped bits take the float of their size, float types either.
    bool is_single = atom.kind == Atom::Kind::kSingle;
    bool fits = IsFloat(type) || (Info(type).kind == 'b' && Bits(type) == (is_single ? 32 : 64));
    if (!fits)
      return Wrong(atom.at, "a float constant does not fit ." + std::string(Info(type).name));
    if (is_single != (Bits(type) == 32)) operand.value = Converted(atom);
  } else if (Bits(type) < 64) {
    operand.value &= (int64_t{1} << Bits(type)) - 1;
  }
  operands_.push_back(operand);
  return {};
}

Status OperandReader::AddAddress(const Term& term) {
  const Atom& atom = term.atoms[0];
  if (term.kind != Term::Kind::kAddress) return Wrong(atom.at, "an address [ ] is expected");
  Operand operand;
  operand.kind = Operand::Kind::kAddress;
  operand.value = atom.addend;
  if (atom.kind == Atom::Kind::kInteger) {
    if (instruction_.space != Space::kLocal)
      return Wrong(atom.at, "an address that is a number is for .local only");
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
        if (IsOfOtherSpace(instruction_, symbol->space))
          return Wrong(atom.at, Quoted(atom.word) + " is not in the space of the instruction");
        break;
      case Symbol::Kind::kParameter: {
        const Parameter& parameter = function_.parameters[symbol->index];
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
  // In a kernel a register may hold a parameter's address.
  bool is_by_register = instruction_.op == Op::kLd && function_.is_entry;
  if (instruction_.space == Space::kParam && operand.kind != Operand::Kind::kParameter &&
      operand.variable == kNone && !is_by_register) {
    return Unimplemented(At(atom.at) + ": " + Quoted(statement_.text) +
                         ": the parameter space is addressed by name only");
  }
  operands_.push_back(operand);
  return {};
}

Status OperandReader::AddTerm(std::string_view pattern, const Term& term) {
  bool is_destination = pattern[0] == '>';
  if (is_destination) pattern.remove_prefix(1);
  bool may_pair = pattern.size() > 2 && pattern.substr(pattern.size() - 2) == "|p";
  if (may_pair) pattern.remove_suffix(2);
  bool must_pair = may_pair && pattern.back() == '|';
  if (must_pair) pattern.remove_suffix(1);
  const Atom& atom = term.atoms[0];
  may_discard_ = MayDiscard(instruction_.op);

  if (pattern == "m") return AddAddress(term);
  if (must_pair && term.kind != Term::Kind::kPair)
    return Wrong(atom.at, "two results are expected here, such as %r1|%p1");
  if (pattern == "_") {
    if (atom.word != "_") return Wrong(atom.at, "`_` is expected here: there is no result");
    pattern = "b64";
  }
  bool is_register = pattern.back() == '!' || pattern[0] == '{';
  if (pattern.back() == '!') pattern.remove_suffix(1);
  for (const Atom& element : term.atoms) {
    if (is_register && element.kind != Atom::Kind::kWord)
      return Wrong(element.at, "a register is expected here, not a constant");
  }
  if (term.kind == Term::Kind::kAddress) return Wrong(atom.at, "an address is not expected here");
  if (term.kind == Term::Kind::kVector) may_discard_ = true;
  if (pattern[0] == '{') {
    size_t count = static_cast<size_t>(pattern[1] - '0');
    std::string_view type = pattern.substr(3, pattern.size() - 4);
    if (term.kind != Term::Kind::kVector || term.atoms.size() != count) {
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
      if (!is_destination && operands_.size() > 1)
        return Wrong(atom.at, "mov packs a vector or unpacks one, not both");
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
    may_discard_ = instruction_.op != Op::kShfl;
    JAX_PTX_RETURN_IF_ERROR(AddAtom(pattern, is_destination, atom));
    may_discard_ = instruction_.op != Op::kElect;
    return AddAtom("p", true, term.atoms[1]);
  }
  if (term.kind != Term::Kind::kAtom) return Wrong(atom.at, "one register is expected here");
  return AddAtom(pattern, is_destination, atom);
}

}  // namespace jax_ptx::ptx
