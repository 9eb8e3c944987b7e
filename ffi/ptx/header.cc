// The head of a module: .version, .target and .address_size.
#include <algorithm>
#include <iterator>

#include "ptx/parser.h"

namespace jax_ptx::ptx {
namespace {

// The last minor version of each major one.
constexpr int kLastMinor[] = {0, 5, 3, 2, 3, 0, 5, 8, 8, 5};
constexpr int kNewestVersion = 95;

bool IsTarget(std::string_view name) {
  static constexpr std::string_view kKnown[] = {
      "30", "32", "35", "37", "50", "52", "53",  "60",  "61",  "62",  "70",  "72", "75",
      "80", "86", "87", "88", "89", "90", "100", "101", "103", "110", "120", "121"};
  size_t prefix = name.substr(0, 3) == "sm_" ? 3 : name.substr(0, 8) == "compute_" ? 8 : 0;
  if (prefix == 0) return false;
  name.remove_prefix(prefix);
  if (!name.empty() && (name.back() == 'a' || name.back() == 'f')) name.remove_suffix(1);
  return std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown);
}

bool IsTargetOption(std::string_view name) {
  return name == "debug" || name == "texmode_unified" || name == "texmode_independent" ||
         name == "map_f64_to_f32";
}

}  // namespace

// Everything behind `.version`, `.target`, `.address_size`.
Status Parser::Header(std::string_view directive) {
  if (directive == ".version") {
    size_t dot = token_.text.find('.');
    if (token_.kind != Token::Kind::kFloat || dot == std::string_view::npos || dot > 2 ||
        token_.text.size() != dot + 2) {
      return Fail("expected a version such as 8.0");
    }
    if (module_->version != 0) return Fail("the text has a second .version");
    int version = 0;
    for (char digit : token_.text) {
      if (digit != '.') version = version * 10 + (digit - '0');
    }
    if (version > kNewestVersion)
      return Fail("this is newer than PTX 9.5, the newest version that is known here");
    if (version % 10 > kLastMinor[version / 10]) return Fail("there is no such version of PTX");
    module_->version = version;
    Take();
    return {};
  }
  if (directive == ".target") {
    if (!IsTarget(token_.text)) return Fail("expected a target such as sm_90");
    JAX_PTX_RETURN_IF_ERROR(Word(&module_->target));
    while (Accept(',')) {
      if (!IsTargetOption(token_.text)) return Fail("expected an option of .target, such as debug");
      Take();
    }
    return {};
  }
  uint64_t bits = 0;
  JAX_PTX_RETURN_IF_ERROR(Integer(64, &bits));
  return bits == 64 ? Status() : Unimplemented(At(token_) + ": only .address_size 64 is supported");
}

}  // namespace jax_ptx::ptx
