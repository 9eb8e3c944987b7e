// Constant expressions (PTX ISA 4.5.4 to 4.5.6): integers of 64 bits, signed or unsigned.
#include "ptx/parser.h"

namespace jax_ptx::ptx {
namespace {

constexpr int kMaxDepth = 256;

struct Operator {
  std::string_view text;
  int precedence;
};
constexpr Operator kOperators[] = {
    // the longer ones first
    {"||", 1}, {"&&", 2}, {"==", 6}, {"!=", 6}, {"<=", 7}, {">=", 7},
    {"<<", 8}, {">>", 8}, {"|", 3},  {"^", 4},  {"&", 5},  {"<", 7},
    {">", 7},  {"+", 9},  {"-", 9},  {"*", 10}, {"/", 10}, {"%", 10},
};

const Operator* FindOperator(std::string_view text, const Token& token) {
  bool is_remainder = token.text == "%";  // to the lexer the beginning of a name
  if (token.kind != Token::Kind::kSymbol && !is_remainder) return nullptr;
  for (const Operator& one : kOperators) {
    if (text.substr(token.begin, one.text.size()) == one.text) return &one;
  }
  return nullptr;
}

using Constant = Parser::Constant;

int64_t Signed(Constant a) { return static_cast<int64_t>(a.bits); }
Constant Truth(bool value) { return {value, false}; }

// Both as unsigned numbers when one is; shifts, bits and the remainder have rules of their own (and
// where the ISA and the assembler differ, the assembler's: a remainder is unsigned, a choice has
// the type of what is chosen).
Constant Apply(std::string_view op, Constant a, Constant b) {
  bool is_unsigned = a.is_unsigned || b.is_unsigned;
  bool is_less = is_unsigned ? a.bits < b.bits : Signed(a) < Signed(b);
  switch (op[0]) {
    case '+':
      return {a.bits + b.bits, is_unsigned};
    case '-':
      return {a.bits - b.bits, is_unsigned};
    case '*':
      return {a.bits * b.bits, is_unsigned};
    case '/':
      if (is_unsigned) return {a.bits / b.bits, true};
      if (Signed(b) == -1) return {0 - a.bits, false};  // the least number has no opposite
      return {static_cast<uint64_t>(Signed(a) / Signed(b)), false};
    case '%':
      return {a.bits % b.bits, true};
    case '^':
      return {a.bits ^ b.bits, true};
    case '=':
      return Truth(a.bits == b.bits);
    case '!':
      return Truth(a.bits != b.bits);
    case '&':
      return op.size() == 2 ? Truth(a.bits != 0 && b.bits != 0) : Constant{a.bits & b.bits, true};
    case '|':
      return op.size() == 2 ? Truth(a.bits != 0 || b.bits != 0) : Constant{a.bits | b.bits, true};
    case '<':
      if (op == "<<") return {a.bits << b.bits, a.is_unsigned};
      return Truth(is_less || (op == "<=" && a.bits == b.bits));
    default:
      if (op == ">>") {
        return {a.is_unsigned ? a.bits >> b.bits : static_cast<uint64_t>(Signed(a) >> b.bits),
                a.is_unsigned};
      }
      return Truth(!is_less && (op == ">=" || a.bits != b.bits));
  }
}

}  // namespace

Status Parser::ConstantOperand(Constant* value, int depth) {
  if (depth > kMaxDepth) return Fail("a constant expression nests too deeply");
  if (Accept('(')) {
    bool is_unsigned = token_.text == ".u64";
    if (is_unsigned || token_.text == ".s64") {
      Take();
      JAX_PTX_RETURN_IF_ERROR(Expect(')'));
      JAX_PTX_RETURN_IF_ERROR(ConstantOperand(value, depth + 1));
      value->is_unsigned = is_unsigned;
      return {};
    }
    JAX_PTX_RETURN_IF_ERROR(ConstantExpression(value, depth + 1));
    return Expect(')');
  }
  if (token_.kind == Token::Kind::kInteger) {
    bool has_suffix = token_.text.back() == 'U';
    JAX_PTX_RETURN_IF_ERROR(Integer(UINT64_MAX, &value->bits));
    value->is_unsigned = has_suffix || value->bits >> 63 != 0;
    return {};
  }
  if (Accept("WARP_SZ")) {
    *value = {32, false};
    return {};
  }
  for (char symbol : {'-', '+', '~', '!'}) {
    if (!Accept(symbol)) continue;
    JAX_PTX_RETURN_IF_ERROR(ConstantOperand(value, depth + 1));
    if (symbol == '-') value->bits = 0 - value->bits;
    if (symbol == '~') *value = {~value->bits, true};
    if (symbol == '!') *value = Truth(value->bits == 0);
    return {};
  }
  return Fail("expected an operand");
}

// Operators of at least the precedence; those of a higher one are taken with the right side.
Status Parser::ConstantExpression(Constant* value, int depth, int precedence) {
  JAX_PTX_RETURN_IF_ERROR(ConstantOperand(value, depth));
  while (const Operator* op = FindOperator(module_->text, token_)) {
    if (op->precedence < precedence) break;
    for (size_t i = 0; i < op->text.size(); ++i) Take();
    Constant right;
    JAX_PTX_RETURN_IF_ERROR(ConstantExpression(&right, depth + 1, op->precedence + 1));
    if (op->precedence == 10 && op->text != "*" && right.bits == 0)
      return Fail("a constant expression divides by zero");
    if (op->precedence == 8 && right.bits > 63)
      return Fail("a constant expression shifts by more than 63");
    *value = Apply(op->text, *value, right);
  }
  if (precedence > 0 || !Accept('?')) return {};
  Constant first, second;
  JAX_PTX_RETURN_IF_ERROR(ConstantExpression(&first, depth + 1));
  JAX_PTX_RETURN_IF_ERROR(Expect(':'));
  JAX_PTX_RETURN_IF_ERROR(ConstantExpression(&second, depth + 1));
  *value = value->bits != 0 ? first : second;
  return {};
}

}  // namespace jax_ptx::ptx
