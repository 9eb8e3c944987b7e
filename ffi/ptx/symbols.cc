#include "ptx/symbols.h"

#include <charconv>

namespace jax_ptx::ptx {
namespace {
constexpr size_t kMaxDepth = 64;
}

void Symbols::BeginFunction(Function* function) {
  function_ = function;
  unresolved_ = Use();
  scopes_.emplace_back();
}

void Symbols::EndFunction() {
  while (scopes_.size() > 1) Pop();
  function_ = nullptr;
}

bool Symbols::Push() {
  if (scopes_.size() >= kMaxDepth) return false;
  scopes_.emplace_back();
  return true;
}

void Symbols::Pop() {
  Scope& scope = scopes_.back();
  bool is_function = scopes_.size() == 2;
  for (const Use& use : scope.uses) {
    auto label = scope.labels.find(use.label);
    if (label != scope.labels.end()) {
      uint32_t& target = use.table == kNone ? function_->code[use.instruction].target
                                            : function_->tables[use.table][use.instruction];
      target = label->second;
    } else if (is_function) {
      if (unresolved_.line == 0) unresolved_ = use;
    } else {
      scopes_[scopes_.size() - 2].uses.push_back(use);
    }
  }
  scopes_.pop_back();
}

bool Symbols::Declare(std::string_view name, Symbol symbol) {
  return scopes_.back().names.emplace(name, symbol).second;
}

Symbol Symbols::MakeRegister(std::string_view name, Type type) {
  if (type == Type::kPred) {
    function_->predicate_names.push_back(name);
    return {Symbol::Kind::kPredicate, type, function_->predicate_count++};
  }
  function_->registers.push_back(type);
  function_->register_names.push_back(name);
  return {Symbol::Kind::kRegister, type, static_cast<uint32_t>(function_->registers.size() - 1)};
}

bool Symbols::DeclareRegister(std::string_view name, Type type) {
  if (scopes_.back().names.count(name)) return false;
  return Declare(name, MakeRegister(name, type));
}

bool Symbols::DeclareRange(std::string_view prefix, uint32_t count, Type type) {
  return scopes_.back().ranges.emplace(prefix, Range{count, type}).second;
}

const Symbol* Symbols::Find(std::string_view name) {
  size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  uint32_t number = 0;
  bool is_numbered =
      digits < name.size() && (name[digits] != '0' || digits + 1 == name.size()) &&
      std::from_chars(name.data() + digits, name.data() + name.size(), number).ec == std::errc();
  for (size_t i = scopes_.size(); i-- > 0;) {
    Scope& scope = scopes_[i];
    auto found = scope.names.find(name);
    if (found != scope.names.end()) return &found->second;
    if (!is_numbered) continue;
    // Registers of a range come to be when they are first named, so %r<1000000> costs nothing.
    auto range = scope.ranges.find(name.substr(0, digits));
    if (range != scope.ranges.end() && number < range->second.count) {
      return &scope.names.emplace(name, MakeRegister(name, range->second.type)).first->second;
    }
  }
  return nullptr;
}

bool Symbols::DeclareLabel(std::string_view name, uint32_t target) {
  return scopes_.back().labels.emplace(name, target).second;
}

void Symbols::UseLabel(std::string_view name, uint32_t instruction, uint32_t line) {
  scopes_.back().uses.push_back({name, instruction, kNone, line});
}

void Symbols::UseLabelInTable(std::string_view name, uint32_t table, uint32_t line) {
  std::vector<uint32_t>& entries = function_->tables[table];
  scopes_.back().uses.push_back({name, static_cast<uint32_t>(entries.size()), table, line});
  entries.push_back(kNone);
}

}  // namespace jax_ptx::ptx
