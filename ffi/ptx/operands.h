// Operands of an instruction, checked against the operand patterns of a form (see Form in
// program.h).
#pragma once

#include <string>
#include <vector>

#include "ptx/decode.h"

namespace jax_ptx::ptx {

std::string Quoted(std::string_view text);

class OperandReader {
 public:
  // `instruction` holds the types, the vector width and the space by now.
  OperandReader(const Statement& statement, const Instruction& instruction,
                const Function& function, Symbols* symbols)
      : statement_(statement), instruction_(instruction), function_(function), symbols_(symbols) {}

  // One element of a form's operand pattern against one operand.
  Status AddTerm(std::string_view pattern, const Term& term);
  Status AddPredicate(const Atom& atom, bool is_destination);
  std::vector<Operand>& operands() { return operands_; }

 private:
  Status AddAtom(std::string_view type, bool is_destination, const Atom& atom);
  Status AddAddress(const Term& term);
  Status AddWord(std::string_view type_name, bool is_destination, const Atom& atom);
  Type Resolve(std::string_view name) const;
  Status Wrong(const Token& at, const std::string& what) const {
    return InvalidArgument(At(at) + ": " + Quoted(statement_.text) + ": " + what);
  }

  const Statement& statement_;
  const Instruction& instruction_;
  const Function& function_;
  Symbols* symbols_;
  bool may_discard_ = false;  // `_` is allowed at this place
  std::vector<Operand> operands_;
};

}  // namespace jax_ptx::ptx
