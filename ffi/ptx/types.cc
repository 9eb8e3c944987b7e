#include "ptx/types.h"

#include <unordered_map>

namespace jax_ptx::ptx {
namespace {

constexpr TypeInfo kTypes[] = {{"none", 0, '-'},
#define X(id, text, bits, kind) {text, bits, kind},
                               JAX_PTX_TYPES(X)
#undef X
};

constexpr std::string_view kModifiers[] = {
#define X(id, text) text,
    JAX_PTX_MODIFIERS(X)
#undef X
};

constexpr std::string_view kSpecials[] = {
#define X(id, text) text,
    JAX_PTX_SPECIALS(X)
#undef X
};

using Index = std::unordered_map<std::string_view, uint8_t>;

template <size_t N>
Index MakeIndex(const std::string_view (&names)[N]) {
  Index index;
  for (size_t i = 0; i < N; ++i) index.emplace(names[i], static_cast<uint8_t>(i));
  return index;
}

}  // namespace

const TypeInfo& Info(Type type) { return kTypes[static_cast<size_t>(type)]; }

Type FindType(std::string_view name) {
  static const Index index = [] {
    Index types;
    for (size_t i = 1; i < std::size(kTypes); ++i) {
      types.emplace(kTypes[i].name, static_cast<uint8_t>(i));
    }
    return types;
  }();
  auto found = index.find(name);
  return found == index.end() ? Type::kNone : static_cast<Type>(found->second);
}

bool IsDeclarable(Type type) {
  switch (type) {
    case Type::kF16:
    case Type::kF16x2:
    case Type::kF32:
    case Type::kF64:
      return true;
    default:  // not .u16x2, .b1 and their like
      return Bits(type) == 1 ? type == Type::kPred
                             : Bits(type) >= 8 && Info(type).kind != 'f' &&
                                   Info(type).name.find('x') == std::string_view::npos;
  }
}

bool Agrees(Type asked, Type declared) {
  char kind = Info(asked).kind, other = Info(declared).kind;
  if (kind == 'b' || other == 'b') return kind != 'p' && other != 'p';
  if (kind == 'f' || other == 'f' || !IsDeclarable(asked)) return asked == declared;
  return true;
}

std::string_view Name(Mod modifier) { return kModifiers[static_cast<size_t>(modifier)]; }

bool FindModifier(std::string_view name, Mod* modifier) {
  static const Index index = MakeIndex(kModifiers);
  auto found = index.find(name);
  if (found == index.end()) return false;
  *modifier = static_cast<Mod>(found->second);
  return true;
}

bool FindSpecial(std::string_view name, Special* special) {
  static const Index index = MakeIndex(kSpecials);
  auto found = index.find(name);
  if (found == index.end()) return false;
  *special = static_cast<Special>(found->second);
  return true;
}

unsigned Bits(Special special) {
  return special == Special::kClock64 || special == Special::kGlobaltimer ||
                 special == Special::kGridid
             ? 64
             : 32;
}

}  // namespace jax_ptx::ptx
