// The head of a module: .version, .target and .address_size.
#include <algorithm>
#include <iterator>

#include "ptx/parser.h"
#include "ptx/requirements.h"

namespace jax_ptx::ptx {
namespace {

// The last minor version of each major one.
constexpr int kLastMinor[] = {0, 5, 3, 2, 3, 0, 5, 8, 8, 5};
constexpr int kNewestVersion = 95;

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
    Requirement target;
    if (!ParseTarget(token_.text, &target)) return Fail("expected a target such as sm_90");
    if (target.version > module_->version) {
      return Fail("the target needs " + ToString({target.version, 0, false}) + ", the text has " +
                  ToString({module_->version, 0, false}));
    }
    module_->provides = {module_->version, target.target, target.is_specific};
    Take();
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
