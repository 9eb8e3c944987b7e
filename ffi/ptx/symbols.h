// Names of a function while it is parsed: nested blocks, register ranges such as %r<10>, and
// labels.
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "ptx/program.h"

namespace jax_ptx::ptx {

struct Symbol {
  enum class Kind : uint8_t {
    kRegister,
    kPredicate,
    kVariable,
    kParameter,
    kFunction,
    kTable,  // .branchtargets
  };
  Kind kind;
  Type type = Type::kNone;
  uint32_t index = 0;
  Space space = Space::kNone;  // of a variable
};

class Symbols {
 public:
  Symbols() : scopes_(1) {}

  void BeginFunction(Function* function);
  void EndFunction();
  bool Push();  // false when blocks nest too deeply
  void Pop();
  size_t depth() const { return scopes_.size(); }

  // False when the name is taken in this block.
  bool Declare(std::string_view name, Symbol symbol);
  bool DeclareRegister(std::string_view name, Type type);
  bool DeclareRange(std::string_view prefix, uint32_t count, Type type);
  const Symbol* Find(std::string_view name);

  bool DeclareLabel(std::string_view name, uint32_t target);
  // A branch's label, or, with a table, the label of the table's next entry.
  void UseLabel(std::string_view name, uint32_t instruction, uint32_t line);
  void UseLabelInTable(std::string_view name, uint32_t table, uint32_t line);

  struct Use {
    std::string_view label;
    uint32_t instruction;  // or the entry's place in the table
    uint32_t table;
    uint32_t line;
  };
  // A use whose label the function lacks, or nullptr.
  const Use* unresolved() const { return unresolved_.line != 0 ? &unresolved_ : nullptr; }

 private:
  struct Range {
    uint32_t count;
    Type type;
  };
  struct Scope {
    std::unordered_map<std::string_view, Symbol> names;
    std::unordered_map<std::string_view, Range> ranges;
    std::unordered_map<std::string_view, uint32_t> labels;
    std::vector<Use> uses;
  };
  Symbol MakeRegister(std::string_view name, Type type);

  std::vector<Scope> scopes_;
  Function* function_ = nullptr;
  Use unresolved_{};
};

}  // namespace jax_ptx::ptx
