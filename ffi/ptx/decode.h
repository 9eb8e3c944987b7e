// From an instruction as it is written to an Instruction: matches it with the table of forms.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ptx/lexer.h"
#include "ptx/program.h"
#include "ptx/symbols.h"

namespace jax_ptx::ptx {

// One register, symbol or number.
struct Atom {
  enum class Kind : uint8_t { kWord, kInteger, kSingle, kDouble };
  Kind kind = Kind::kWord;
  bool is_negated = false;  // !p
  std::string_view word;    // with the suffix of %tid.x
  uint64_t bits = 0;        // an integer's value or a float's bits
  int64_t addend = 0;       // symbol+4
  Token at;
};

// One operand: an atom, {a, b}, [a+4], or p|q (two atoms).
struct Term {
  enum class Kind : uint8_t { kAtom, kVector, kAddress, kPair };
  Kind kind = Kind::kAtom;
  std::vector<Atom> atoms;
};

struct Statement {
  Token opcode;
  std::vector<Token> modifiers;
  std::vector<Term> terms;
  Atom guard;
  bool has_guard = false;
  std::string_view text;  // without guard and semicolon
};

std::string At(const Token& token);  // "PTX line 3, column 5"

// Refuses an instruction of which no form is known, whatever its operands look like.
Status CheckOpcode(const Statement& statement);

// Appends the instruction to `function`. `provides`: the text's version and target.
Status Decode(const Statement& statement, const Requirement& provides, Symbols* symbols,
              Function* function);

}  // namespace jax_ptx::ptx
