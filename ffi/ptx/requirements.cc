#include "ptx/requirements.h"

#include <algorithm>

#include "ptx/program.h"

namespace jax_ptx::ptx {
namespace {

// What the forms with certain modifiers need. The first word is the opcode (`*`: any), every other
// one a modifier that must be there; `|` stands between alternatives.
struct Rule {
  std::string_view words;
  Requirement needs;
};

constexpr Rule kRules[] = {
    {"* L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate",
     {74, 0, false}},
    {"* L2::256B", {74, 80, false}},
    {"* L2::64B|L2::128B", {74, 0, false}},
    {"* L2::cache_hint", {74, 80, false}},
    {"* cluster", {78, 90, false}},
    {"* f32x2", {86, 100, false}},
    {"* s16x2", {80, 90, false}},
    {"* shared::cluster", {78, 90, false}},
    {"* u16x2", {80, 90, false}},
    {"* xorsign", {72, 86, false}},
    {"abs f16|f16x2", {65, 0, false}},
    {"abs|neg bf16|bf16x2", {70, 80, false}},
    {"add|sub|fma f32 f16|bf16", {86, 100, false}},
    {"add|sub|mul bf16|bf16x2", {78, 90, false}},
    {"applypriority", {74, 80, false}},
    {"atom|red bf16|bf16x2", {78, 90, false}},
    {"atom|red v2|v4|v8", {81, 90, false}},
    {"barrier cluster release|relaxed|acquire", {80, 0, false}},
    {"bar|barrier cta", {78, 0, false}},
    {"bmsk|szext", {76, 0, false}},
    {"cp async bulk cp_mask", {86, 100, false}},
    {"cp async bulk", {80, 90, false}},
    {"cp async", {70, 80, false}},
    {"cp bulk shared::cta mbarrier::complete_tx::bytes global", {86, 90, false}},
    {"cp reduce", {80, 90, false}},
    {"createpolicy", {74, 80, false}},
    {"cvt bf16 u8|u16|u32|u64|s8|s16|s32|s64|f16|f64|rni|rzi|rmi|rpi", {78, 90, false}},
    {"cvt bf16x2 e4m3x2|e5m2x2", {91, 100, true}},
    {"cvt e2m3x2|e3m2x2|e2m1x2|ue8m0x2", {86, 100, true}},
    {"cvt e4m3x2|e5m2x2", {81, 89, false}},
    {"cvt f16x2|bf16|bf16x2|tf32|relu", {70, 80, false}},
    {"cvt f32 bf16", {70, 80, false}},
    {"cvt pack", {65, 0, false}},
    {"cvt rn|rz satfinite tf32", {86, 100, false}},
    {"cvt rn|rz tf32", {78, 90, false}},
    {"cvt satfinite", {81, 0, false}},
    {"discard", {74, 80, false}},
    {"elect", {80, 90, false}},
    {"ex2 f16|f16x2", {70, 0, false}},
    {"ex2|tanh bf16|bf16x2", {78, 90, false}},
    {"fence mbarrier_init", {80, 90, false}},
    {"fence proxy async", {80, 90, false}},
    {"fence sync_restrict::shared::cta|sync_restrict::shared::cluster", {86, 90, false}},
    {"fence|membar proxy", {75, 0, false}},
    {"fma bf16|bf16x2", {70, 80, false}},
    {"fma relu", {70, 80, false}},
    {"cvta param", {77, 70, false}},
    {"cvta param::entry", {83, 70, false}},
    {"getctarank", {78, 90, false}},
    {"griddepcontrol", {78, 90, false}},
    {"ld v8", {88, 100, false}},
    {"ldmatrix", {65, 0, false}},
    {"ld|st mmio", {82, 0, false}},
    {"ld|st v4 b64|u64|s64|f64", {88, 100, false}},
    {"ld|st volatile local", {91, 0, false}},
    {"ld|st|atom|red|mbarrier|ldmatrix|cvta|isspacep|mapa shared::cta", {78, 0, false}},
    {"lop3 or|and", {82, 0, false}},
    {"mapa", {78, 90, false}},
    {"mbarrier arrive shared::cluster", {80, 90, false}},
    {"mbarrier arrive_drop shared::cluster", {80, 90, false}},
    {"mbarrier cluster|expect_tx|complete_tx", {80, 90, false}},
    {"mbarrier parity", {71, 80, false}},
    {"mbarrier arrive|arrive_drop|test_wait|try_wait relaxed", {86, 90, false}},
    {"mbarrier release|acquire", {80, 0, false}},
    {"mbarrier relaxed", {80, 90, false}},
    {"mbarrier try_wait", {78, 90, false}},
    {"mbarrier", {70, 80, false}},
    {"min|max NaN|f16|f16x2|bf16|bf16x2", {70, 80, false}},
    {"min|max relu", {80, 90, false}},
    {"mma and", {71, 80, false}},
    {"mma e4m3|e5m2", {84, 89, false}},
    {"mma f16 e4m3|e5m2", {87, 89, false}},
    {"mma kind::f8f6f4", {86, 100, true}},
    {"mma m16n8k16 e4m3|e5m2", {87, 89, false}},
    {"mma m16n8k16|m16n8k32|m16n8k64|m16n8k128|m16n8k256|bf16|tf32|f64", {70, 80, false}},
    {"mma m16n8k4|m16n8k8|m16n8k16 f64", {78, 90, false}},
    {"mma m8n8k128", {70, 0, false}},
    {"mma m8n8k16|m8n8k32|m16n8k8", {65, 0, false}},
    {"mma", {64, 0, false}},
    {"movmatrix", {78, 0, false}},
    {"prefetch L2::evict_last", {74, 80, false}},
    {"prefetch L2::evict_normal", {74, 80, false}},
    {"red async", {81, 90, false}},
    {"redux f32", {86, 100, true}},
    {"redux", {70, 80, false}},
    {"setmaxnreg", {80, 90, true}},
    {"setp|set bf16|bf16x2", {78, 90, false}},
    {"st async", {81, 90, false}},
    {"st bulk", {86, 100, false}},
    {"st v8", {88, 100, false}},
    {"stmatrix", {78, 90, false}},
    {"st|red async release|mmio", {87, 100, false}},
    {"tanh", {70, 0, false}},
    {"wmma bf16|tf32|f64", {70, 80, false}},
};

bool Includes(std::string_view alternatives, std::string_view word) {
  while (!alternatives.empty()) {
    if (TakeWord(&alternatives, '|') == word) return true;
  }
  return false;
}

bool Applies(const Rule& rule, std::string_view opcode,
             const std::vector<std::string_view>& modifiers) {
  std::string_view words = rule.words;
  std::string_view opcodes = TakeWord(&words, ' ');
  if (opcodes != "*" && !Includes(opcodes, opcode)) return false;
  while (!words.empty()) {
    std::string_view alternatives = TakeWord(&words, ' ');
    bool is_there = std::any_of(modifiers.begin(), modifiers.end(), [&](std::string_view modifier) {
      return Includes(alternatives, modifier);
    });
    if (!is_there) return false;
  }
  return true;
}

// The targets, and the first PTX version that has them.
struct Known {
  int target, version;
};
constexpr Known kTargets[] = {
    {30, 30}, {32, 40},  {35, 31},  {37, 41},  {50, 40},  {52, 41},  {53, 42},  {60, 50}, {61, 50},
    {62, 50}, {70, 60},  {72, 61},  {75, 63},  {80, 70},  {86, 71},  {87, 74},  {88, 90}, {89, 78},
    {90, 78}, {100, 86}, {101, 86}, {103, 88}, {110, 90}, {120, 87}, {121, 88},
};

}  // namespace

bool ParseTarget(std::string_view name, Requirement* target) {
  size_t prefix = name.substr(0, 3) == "sm_" ? 3 : name.substr(0, 8) == "compute_" ? 8 : 0;
  if (prefix == 0) return false;
  name.remove_prefix(prefix);
  if (!name.empty() && (name.back() == 'a' || name.back() == 'f')) {
    target->is_specific = true;
    name.remove_suffix(1);
  }
  for (const Known& known : kTargets) {
    if (std::to_string(known.target) != name) continue;
    target->target = known.target;
    target->version = known.version;
    return true;
  }
  return false;
}

Requirement FindRequirement(std::string_view opcode,
                            const std::vector<std::string_view>& modifiers) {
  Requirement all;
  for (const Rule& rule : kRules) {
    if (!Applies(rule, opcode, modifiers)) continue;
    all.version = std::max(all.version, rule.needs.version);
    all.target = std::max(all.target, rule.needs.target);
    all.is_specific |= rule.needs.is_specific;
  }
  return all;
}

std::string ToString(const Requirement& r) {
  std::string version = std::to_string(r.version / 10) + "." + std::to_string(r.version % 10);
  std::string text = r.version != 0 ? ".version " + version : "";
  if (r.target == 0) return text;
  return text + (text.empty() ? "" : " and ") + ".target sm_" + std::to_string(r.target) +
         (r.is_specific ? "a" : "");
}

}  // namespace jax_ptx::ptx
