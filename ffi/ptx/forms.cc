// Which forms a written instruction matches. The forms are data: forms_compute.cc and its like.
#include "ptx/forms.h"

#include <algorithm>
#include <unordered_map>

namespace jax_ptx::ptx {
namespace {

struct Set {
  std::string_view name, types;
};

constexpr Set kSets[] = {
    {"$int", "u16|u32|u64|s16|s32|s64"},
    {"$int32", "u32|u64|s32|s64"},
    {"$bits", "b16|b32|b64"},
    {"$half", "f16|f16x2|bf16|bf16x2"},
    {"$value", "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"},
    {"$memory", "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64|b128"},
    {"$number", "u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f32|f64"},
    {"$compared", "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64|f16|f16x2|bf16|bf16x2"},
    {"$round", "rn|rz|rm|rp"},
    {"$compare", "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan"},
    {"$space", "global|shared::cta|shared::cluster|shared|local|const"},
    {"$order", "weak|volatile|relaxed|acquire|release|acq_rel|mmio|sc"},
    {"$scope", "cta|cluster|gpu|sys"},
    {"$cache", "ca|cg|cs|lu|cv|wb|wt"},
    {"$evict1",
     "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"},
    {"$evict2", "L2::evict_normal|L2::evict_first|L2::evict_last"},
    {"$policy", "L2::evict_normal|L2::evict_first|L2::evict_last|L2::evict_unchanged"},
    {"$prefetch", "L2::64B|L2::128B|L2::256B"},
    {"$f8", "e4m3|e5m2"},
    {"$small", "e4m3x2|e5m2x2|e2m3x2|e3m2x2|e2m1x2"},
    {"$wspace", "global|shared|shared::cta"},
    {"$word", "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"},
    {"$anyshared", "shared::cta|shared::cluster|shared"},
};

bool SlotAccepts(std::string_view slot, std::string_view modifier) {
  while (!slot.empty()) {
    std::string_view choice = TakeWord(&slot, '|');
    if (choice == modifier) return true;
    if (choice.empty() || choice[0] != '$') continue;
    for (const Set& set : kSets) {
      if (set.name == choice && SlotAccepts(set.types, modifier)) return true;
    }
  }
  return false;
}

}  // namespace

std::string_view TakeWord(std::string_view* list, char separator) {
  size_t end = list->find(separator);
  std::string_view word = list->substr(0, end);
  *list = end == std::string_view::npos ? std::string_view() : list->substr(end + 1);
  return word;
}

// Slots are taken greedily: no form has an optional slot whose words also start the next one.
bool Matches(const Form& form, std::vector<std::string_view> modifiers) {
  // The assembler takes those of memory accesses in any order: nvcc writes atom.add.relaxed.gpu.
  bool is_free =
      form.op == Op::kAtom || form.op == Op::kRed || form.op == Op::kLd || form.op == Op::kSt;
  std::string_view slots = form.modifiers;
  auto begin = modifiers.begin();
  while (!slots.empty()) {
    std::string_view slot = TakeWord(&slots, ' ');
    bool optional = slot.back() == '?';
    if (optional) slot.remove_suffix(1);
    auto end = is_free || begin == modifiers.end() ? modifiers.end() : begin + 1;
    auto found = std::find_if(begin, end, [=](auto word) { return SlotAccepts(slot, word); });
    if (found != end) {
      std::rotate(begin, found, found + 1);
      ++begin;
    } else if (!optional) {
      return false;
    }
  }
  return begin == modifiers.end();
}

FormRange FindForms(std::string_view opcode) {
  // Rows of one opcode stand together, in one table, so a range is enough.
  static const std::unordered_map<std::string_view, FormRange> index = [] {
    std::unordered_map<std::string_view, FormRange> ranges;
    for (const FormRange& table : {kComputeForms, kMemoryForms, kWarpForms}) {
      for (const Form* form = table.first; form != table.last; ++form) {
        ranges.emplace(form->opcode, FormRange{form, form}).first->second.last = form + 1;
      }
    }
    return ranges;
  }();
  auto found = index.find(opcode);
  return found == index.end() ? FormRange{nullptr, nullptr} : found->second;
}

}  // namespace jax_ptx::ptx
