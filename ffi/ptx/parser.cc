#include "ptx/parser.h"

#include <charconv>
#include <cstring>

namespace jax_ptx::ptx {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;
constexpr size_t kMaxInstructions = size_t{1} << 20;
constexpr size_t kMaxAtoms = 16;
constexpr size_t kMaxTerms = 8;
constexpr int64_t kMaxOffset = int64_t{1} << 40;

bool ParseInteger(std::string_view text, uint64_t* value) {
  int base = 10;
  if (!text.empty() && text.back() == 'U') text.remove_suffix(1);
  if (text.size() > 1 && text[0] == '0') {
    char second = text[1];
    base = second == 'x' || second == 'X' ? 16 : second == 'b' || second == 'B' ? 2 : 8;
    text.remove_prefix(base == 8 ? 1 : 2);
  }
  auto result = std::from_chars(text.data(), text.data() + text.size(), *value, base);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

bool ParseFloat(std::string_view text, Atom* atom) {
  char second = text.size() > 1 ? text[1] : '\0';
  bool is_single = second == 'f' || second == 'F';
  if (is_single || second == 'd' || second == 'D') {
    if (text.size() != (is_single ? 10u : 18u)) return false;
    atom->kind = is_single ? Atom::Kind::kSingle : Atom::Kind::kDouble;
    std::from_chars(text.data() + 2, text.data() + text.size(), atom->bits, 16);
    return true;
  }
  double value = 0;
  auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return false;
  atom->kind = Atom::Kind::kDouble;
  std::memcpy(&atom->bits, &value, sizeof value);
  return true;
}

}  // namespace

Status Parser::Fail(const std::string& what) const {
  if (token_.kind == Token::Kind::kBad)
    return InvalidArgument(At(token_) + ": " + std::string(token_.text));
  std::string found = token_.kind == Token::Kind::kEnd
                          ? "the end of the text"
                          : "`" + std::string(token_.text.substr(0, 40)) + "`";
  return InvalidArgument(At(token_) + ": " + what + ", found " + found);
}

Status Parser::Expect(char symbol) {
  if (!token_.Is(symbol)) return Fail(std::string("expected `") + symbol + "`");
  Take();
  return {};
}

bool Parser::Accept(char symbol) {
  if (!token_.Is(symbol)) return false;
  Take();
  return true;
}

bool Parser::Accept(std::string_view word) {
  if (token_.text != word) return false;
  Take();
  return true;
}

void Parser::SkipLine(uint32_t line) {
  while (token_.kind != Token::Kind::kEnd && token_.kind != Token::Kind::kBad &&
         token_.line == line) {
    Take();
  }
}

Status Parser::SkipBraces() {
  JAX_PTX_RETURN_IF_ERROR(Expect('{'));
  for (size_t depth = 1; depth > 0;) {
    if (token_.kind == Token::Kind::kEnd || token_.kind == Token::Kind::kBad) {
      return Fail("expected `}`");
    }
    depth += token_.Is('{') ? 1 : 0;
    depth -= token_.Is('}') ? 1 : 0;
    Take();
  }
  return {};
}

Status Parser::Integer(uint64_t limit, uint64_t* value) {
  if (token_.kind != Token::Kind::kInteger || !ParseInteger(token_.text, value)) {
    return Fail("expected an integer");
  }
  if (*value > limit) return Fail("expected an integer of at most " + std::to_string(limit));
  Take();
  return {};
}

Status Parser::Word(std::string_view* word) {
  if (token_.kind != Token::Kind::kWord) return Fail("expected a name");
  *word = token_.text;
  Take();
  return {};
}

// What may follow an address: + and a constant expression.
Status Parser::Offset(int64_t* offset) {
  if (token_.Is('-')) return Fail("an offset is added: write +-8");
  if (!Accept('+')) return {};
  Constant value;
  JAX_PTX_RETURN_IF_ERROR(ConstantExpression(&value));
  *offset = static_cast<int64_t>(value.bits);
  if (*offset > kMaxOffset || *offset < -kMaxOffset) return Fail("an offset is at most 2^40");
  return {};
}

// A register, a symbol (with an offset), a float (with a sign), or a constant expression.
Status Parser::ParseAtom(Atom* atom) {
  atom->at = token_;
  Token::Kind behind =
      token_.kind == Token::Kind::kSymbol ? Lexer(lexer_).Next().kind : token_.kind;
  if (behind == Token::Kind::kWord && Accept('!')) atom->is_negated = true;
  bool is_minus = behind == Token::Kind::kFloat && Accept('-');
  if (token_.kind == Token::Kind::kWord && token_.text != "WARP_SZ") {
    atom->word = token_.text;
    Take();
    // %tid.x: the suffix is one letter, right behind the name.
    if (token_.kind == Token::Kind::kDotted && token_.begin == previous_end_ &&
        atom->word[0] == '%' && token_.text.size() == 2) {
      atom->word = std::string_view(atom->word.data(), atom->word.size() + 2);
      Take();
    }
    return Offset(&atom->addend);
  }
  if (token_.kind == Token::Kind::kFloat) {
    if (!ParseFloat(token_.text, atom)) return Fail("expected a float");
    Take();
    if (is_minus) atom->bits ^= uint64_t{1} << (atom->kind == Atom::Kind::kSingle ? 31 : 63);
    return {};
  }
  Constant value;
  JAX_PTX_RETURN_IF_ERROR(ConstantExpression(&value));
  atom->kind = Atom::Kind::kInteger;
  atom->bits = value.bits;
  return {};
}

Status Parser::ParseTerm(Term* term) {
  if (Accept('{')) {
    term->kind = Term::Kind::kVector;
    do {
      if (term->atoms.size() == kMaxAtoms) return Fail("a vector has too many elements");
      JAX_PTX_RETURN_IF_ERROR(ParseAtom(&term->atoms.emplace_back()));
    } while (Accept(','));
    return Expect('}');
  }
  if (Accept('[')) {
    term->kind = Term::Kind::kAddress;
    JAX_PTX_RETURN_IF_ERROR(ParseAtom(&term->atoms.emplace_back()));
    if (term->atoms[0].is_negated) return Fail("an address cannot be negated");
    return Expect(']');
  }
  JAX_PTX_RETURN_IF_ERROR(ParseAtom(&term->atoms.emplace_back()));
  if (Accept('|')) {
    term->kind = Term::Kind::kPair;
    JAX_PTX_RETURN_IF_ERROR(ParseAtom(&term->atoms.emplace_back()));
  }
  return {};
}

// ( a, b ) of a call: names of .param variables.
Status Parser::Names(std::vector<uint32_t>* variables) {
  JAX_PTX_RETURN_IF_ERROR(Expect('('));
  if (Accept(')')) return {};
  do {
    const Symbol* symbol = token_.kind == Token::Kind::kWord ? symbols_.Find(token_.text) : nullptr;
    if (symbol == nullptr || symbol->kind != Symbol::Kind::kVariable ||
        module_->variables[symbol->index].space != Space::kParam) {
      return Fail("a call passes .param variables");
    }
    if (variables->size() == 64) return Fail("a call passes at most 64 values");
    variables->push_back(symbol->index);
    Take();
  } while (Accept(','));
  return Expect(')');
}

// call (result), function, (argument, …);
Status Parser::ParseCall(Statement* statement, Function* function) {
  std::vector<uint32_t> results, arguments;
  if (token_.Is('(')) {
    JAX_PTX_RETURN_IF_ERROR(Names(&results));
    JAX_PTX_RETURN_IF_ERROR(Expect(','));
  }
  const Symbol* symbol = token_.kind == Token::Kind::kWord ? symbols_.Find(token_.text) : nullptr;
  if (symbol == nullptr || symbol->kind != Symbol::Kind::kFunction) {
    return Unimplemented(At(token_) + ": call: `" + std::string(token_.text.substr(0, 80)) +
                         "` is not a declared .func; indirect calls are not supported");
  }
  uint32_t callee_index = symbol->index;
  const Function& callee = module_->functions[callee_index];
  Take();
  if (Accept(',')) JAX_PTX_RETURN_IF_ERROR(Names(&arguments));
  if (!token_.Is(';')) return Fail("expected `;`");
  auto same_sizes = [&](const std::vector<uint32_t>& passed,
                        const std::vector<uint32_t>& declared) {
    if (passed.size() != declared.size()) return false;
    for (size_t i = 0; i < passed.size(); ++i) {
      if (module_->variables[passed[i]].bytes != module_->variables[declared[i]].bytes)
        return false;
    }
    return true;
  };
  // The prototype of a variadic function (printf) is only a trap at run time; its values do not
  // matter.
  if (callee.is_entry || (callee.is_defined && (!same_sizes(results, callee.results) ||
                                                !same_sizes(arguments, callee.arguments)))) {
    return Fail("the call does not fit the declaration of `" + std::string(callee.name) + "`");
  }
  statement->text = std::string_view(module_->text)
                        .substr(statement->opcode.begin, previous_end_ - statement->opcode.begin);
  JAX_PTX_RETURN_IF_ERROR(Decode(*statement, module_->provides, &symbols_, function));
  Instruction& call = function->code.back();
  call.target = callee_index;
  call.operand_count = static_cast<uint8_t>(results.size() + arguments.size());
  for (const auto* list : {&results, &arguments}) {
    for (uint32_t variable : *list) {
      Operand operand;
      operand.kind = Operand::Kind::kVariable;
      operand.is_destination = list == &results;
      operand.variable = variable;
      function->operands.push_back(operand);
    }
  }
  return Expect(';');
}

Status Parser::ParseInstruction(Function* function, const Atom* guard) {
  Statement statement;
  statement.opcode = token_;
  if (guard != nullptr) {
    statement.guard = *guard;
    statement.has_guard = true;
  }
  if (token_.kind != Token::Kind::kWord) return Fail("expected an instruction");
  Take();
  while (token_.kind == Token::Kind::kDotted && statement.modifiers.size() < 24) {
    statement.modifiers.push_back(token_);
    Take();
  }
  if (function->code.size() >= kMaxInstructions)
    return ResourceExhausted(At(token_) + ": more than " + std::to_string(kMaxInstructions) +
                             " instructions");
  JAX_PTX_RETURN_IF_ERROR(CheckOpcode(statement));
  if (statement.opcode.text == "call") return ParseCall(&statement, function);
  std::string_view label;
  uint32_t table = kNone;
  if (statement.opcode.text == "bra") {
    JAX_PTX_RETURN_IF_ERROR(Word(&label));
  } else if (statement.opcode.text == "brx") {
    JAX_PTX_RETURN_IF_ERROR(ParseTerm(&statement.terms.emplace_back()));
    JAX_PTX_RETURN_IF_ERROR(Expect(','));
    const Symbol* symbol = symbols_.Find(token_.text);
    if (symbol == nullptr || symbol->kind != Symbol::Kind::kTable) {
      return Fail("expected the name of a .branchtargets list");
    }
    table = symbol->index;
    Take();
  } else if (!token_.Is(';')) {
    do {
      if (statement.terms.size() == kMaxTerms) return Fail("an instruction has too many operands");
      JAX_PTX_RETURN_IF_ERROR(ParseTerm(&statement.terms.emplace_back()));
    } while (Accept(','));
  }
  if (!token_.Is(';')) return Fail("expected `;`");
  statement.text = std::string_view(module_->text)
                       .substr(statement.opcode.begin, previous_end_ - statement.opcode.begin);
  JAX_PTX_RETURN_IF_ERROR(Decode(statement, module_->provides, &symbols_, function));
  auto index = static_cast<uint32_t>(function->code.size() - 1);
  if (!label.empty()) symbols_.UseLabel(label, index, statement.opcode.line);
  if (table != kNone) function->code.back().target = table;
  return Expect(';');
}

// name: .branchtargets A, B, …; of brx.idx.
Status Parser::BranchTargets(std::string_view name, Function* function) {
  auto table = static_cast<uint32_t>(function->tables.size());
  if (!symbols_.Declare(name, {Symbol::Kind::kTable, Type::kNone, table})) {
    return Fail("the name is declared twice");
  }
  function->tables.emplace_back();
  do {
    uint32_t line = token_.line;
    std::string_view label;
    JAX_PTX_RETURN_IF_ERROR(Word(&label));
    symbols_.UseLabelInTable(label, table, line);
  } while (Accept(','));
  return Expect(';');
}

Status Parser::BodyStatement(Function* function, bool* done) {
  if (Accept('{')) {
    if (!symbols_.Push()) return Fail("blocks nest too deeply");
    return {};
  }
  if (Accept('}')) {
    // The module, the function and its body: the third scope's end is the body's.
    *done = symbols_.depth() == 2;
    if (!*done) symbols_.Pop();
    return {};
  }
  if (token_.kind == Token::Kind::kDotted) {
    std::string_view directive = token_.text;
    uint32_t line = token_.line;
    Take();
    if (directive == ".reg") return RegisterDeclaration();
    if (directive == ".shared") return VariableDeclaration(Space::kShared, false);
    if (directive == ".local") return VariableDeclaration(Space::kLocal, false);
    if (directive == ".param") return VariableDeclaration(Space::kParam, false);
    if (directive == ".global") return VariableDeclaration(Space::kGlobal, false);
    if (directive == ".const") return VariableDeclaration(Space::kConst, false);
    if (directive == ".loc" || directive == ".file") {
      SkipLine(line);
      return {};
    }
    if (directive == ".pragma") {
      if (token_.kind != Token::Kind::kString) return Fail("expected a string");
      Take();
      return Expect(';');
    }
    return Unimplemented(At(token_) + ": directive " + std::string(directive) +
                         " is not supported");
  }
  if (Accept('@')) {
    Atom guard;
    guard.at = token_;
    guard.is_negated = Accept('!');
    guard.at = token_;
    JAX_PTX_RETURN_IF_ERROR(Word(&guard.word));
    return ParseInstruction(function, &guard);
  }
  if (token_.kind == Token::Kind::kWord) {
    Token name = token_;
    Lexer ahead = lexer_;
    if (ahead.Next().Is(':')) {
      Take();
      Take();
      if (Accept(".branchtargets")) return BranchTargets(name.text, function);
      if (!symbols_.DeclareLabel(name.text, static_cast<uint32_t>(function->code.size()))) {
        return InvalidArgument(At(name) + ": label " + std::string(name.text) +
                               " is defined twice");
      }
      return {};
    }
    return ParseInstruction(function, nullptr);
  }
  return Fail("expected an instruction, a label or a directive");
}

Status Parser::Body(Function* function) {
  JAX_PTX_RETURN_IF_ERROR(Expect('{'));
  for (bool done = false; !done;) {
    if (token_.kind == Token::Kind::kEnd) return Fail("expected `}`");
    JAX_PTX_RETURN_IF_ERROR(BodyStatement(function, &done));
  }
  return {};
}

Status Parser::Run() {
  Take();
  while (token_.kind != Token::Kind::kEnd) JAX_PTX_RETURN_IF_ERROR(TopLevel());
  return {};
}

const Function* Module::FindEntry(std::string_view name) const {
  for (const Function& function : functions) {
    if (function.is_entry && function.is_defined && function.name == name) return &function;
  }
  return nullptr;
}

Result<std::shared_ptr<const Module>> Parse(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return ResourceExhausted("PTX text of " + std::to_string(text.size()) + " bytes; at most " +
                             std::to_string(kMaxTextBytes) + " are accepted");
  }
  while (!text.empty() && text.back() == '\0') text.remove_suffix(1);
  auto module = std::make_shared<Module>();
  module->text = std::string(text);
  JAX_PTX_RETURN_IF_ERROR(Parser(module.get()).Run());
  if (module->version == 0) return InvalidArgument("PTX line 1, column 1: no .version directive");
  if (module->provides.target == 0)
    return InvalidArgument("PTX line 1, column 1: no .target directive");
  return std::shared_ptr<const Module>(std::move(module));
}

}  // namespace jax_ptx::ptx
