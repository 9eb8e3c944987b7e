// The PTX grammar: module and function directives, declarations, and instructions as written.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ptx/decode.h"

namespace jax_ptx::ptx {

class Parser {
 public:
  explicit Parser(Module* module) : module_(module), lexer_(module->text) {}
  Status Run();

  struct Constant {
    uint64_t bits = 0;
    bool is_unsigned = false;
  };

 private:
  // parser.cc: tokens and statements.
  void Take() { previous_end_ = token_.end, token_ = lexer_.Next(); }
  Status Fail(const std::string& what) const;
  Status Expect(char symbol);
  bool Accept(char symbol);
  bool Accept(std::string_view word);
  void SkipLine(uint32_t line);
  Status SkipBraces();
  Status Offset(int64_t* offset);
  Status Integer(uint64_t limit, uint64_t* value);
  Status Alignment(uint64_t* align);
  Status Word(std::string_view* word);
  Status Body(Function* function);
  Status BodyStatement(Function* function, bool* done);
  Status ParseInstruction(Function* function, const Atom* guard);
  Status BranchTargets(std::string_view name, Function* function);
  Status ParseCall(Statement* statement, Function* function);
  Status ParseAtom(Atom* atom);
  Status ParseTerm(Term* term);
  Status Names(std::vector<uint32_t>* variables);

  // constant.cc.
  Status ConstantExpression(Constant* value, int depth = 0, int precedence = 0);
  Status ConstantOperand(Constant* value, int depth);

  // header.cc.
  Status Header(std::string_view directive);

  // declarations.cc: everything that begins with a directive.
  Status TopLevel();
  Status RegisterDeclaration();
  Status VariableDeclaration(Space space, bool is_extern);
  Status Initialiser(Type element, Variable* variable);
  Status FunctionDeclaration(bool is_entry);
  Status KernelParameters(Function* function);
  Status FunctionParameters(std::vector<uint32_t>* variables);
  Status FunctionDirectives(Function* function);
  Status ArraySize(Type type, bool* is_open, uint64_t* bytes, bool* is_array);

  Module* module_;
  Lexer lexer_;
  Token token_;
  size_t previous_end_ = 0;
  Symbols symbols_;
};

}  // namespace jax_ptx::ptx
