// The parser's directives: registers, variables with initialisers, parameters, functions.
#include <algorithm>
#include <cstring>

#include "ptx/parser.h"

namespace jax_ptx::ptx {
namespace {

constexpr uint64_t kMaxVariableBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxRegisters = uint64_t{1} << 24;
constexpr uint32_t kMaxParameterBytes = 32764;  // of a kernel, from PTX 8.1 on

void AppendBytes(uint64_t value, size_t bytes, std::vector<uint8_t>* contents) {
  for (size_t i = 0; i < bytes; ++i) contents->push_back(static_cast<uint8_t>(value >> (8 * i)));
}

}  // namespace

Status Parser::TopLevel() {
  if (Accept(';')) return {};
  if (token_.kind != Token::Kind::kDotted) return Fail("expected a directive");
  bool is_extern = false;
  for (;;) {
    std::string_view directive = token_.text;
    uint32_t line = token_.line;
    if (token_.kind != Token::Kind::kDotted) return Fail("expected a directive");
    Take();
    if (directive == ".version" || directive == ".target" || directive == ".address_size") {
      return Header(directive);
    }
    if (directive == ".extern") {
      is_extern = true;
    } else if (directive == ".visible" || directive == ".weak" || directive == ".common") {
      continue;
    } else if (directive == ".entry" || directive == ".func") {
      return FunctionDeclaration(directive == ".entry");
    } else if (directive == ".global") {
      return VariableDeclaration(Space::kGlobal, is_extern);
    } else if (directive == ".const") {
      return VariableDeclaration(Space::kConst, is_extern);
    } else if (directive == ".shared") {
      return VariableDeclaration(Space::kShared, is_extern);
    } else if (directive == ".file" || directive == ".loc") {
      SkipLine(line);
      return {};
    } else if (directive == ".section") {
      Take();
      return SkipBraces();
    } else if (directive == ".pragma") {
      Take();
      return Expect(';');
    } else {
      return Unimplemented(At(token_) + ": directive " + std::string(directive) +
                           " is not supported");
    }
  }
}

Status Parser::RegisterDeclaration() {
  Type type = token_.kind == Token::Kind::kDotted ? FindType(token_.text.substr(1)) : Type::kNone;
  if (!IsDeclarable(type))
    return Fail("expected a type of registers (vectors of them are not supported)");
  Take();
  do {
    Token at = token_;
    std::string_view name;
    JAX_PTX_RETURN_IF_ERROR(Word(&name));
    bool is_new;
    if (Accept('<')) {
      uint64_t count = 0;
      JAX_PTX_RETURN_IF_ERROR(Integer(kMaxRegisters, &count));
      JAX_PTX_RETURN_IF_ERROR(Expect('>'));
      is_new = symbols_.DeclareRange(name, static_cast<uint32_t>(count), type);
    } else {
      is_new = symbols_.DeclareRegister(name, type);
    }
    if (!is_new) return InvalidArgument(At(at) + ": " + std::string(name) + " is declared twice");
  } while (Accept(','));
  return Expect(';');
}

// [4][8], [] or nothing.
Status Parser::ArraySize(Type type, bool* is_open, uint64_t* bytes, bool* is_array) {
  *bytes = Bytes(type);
  *is_open = false;
  *is_array = false;
  while (Accept('[')) {
    *is_array = true;
    if (Accept(']')) {
      *is_open = true;
      continue;
    }
    uint64_t count = 0;
    JAX_PTX_RETURN_IF_ERROR(Integer(kMaxVariableBytes, &count));
    JAX_PTX_RETURN_IF_ERROR(Expect(']'));
    *bytes *= count;  // at most 2³⁰ · 2³⁰
    if (*bytes > kMaxVariableBytes) {
      return ResourceExhausted(At(token_) + ": a variable of more than " +
                               std::to_string(kMaxVariableBytes) + " bytes");
    }
  }
  return {};
}

// { 1, 0f3F800000, symbol+4, generic(symbol)+4, … }, nested braces flattened.
Status Parser::Initialiser(Type element, Variable* variable) {
  size_t depth = 0;
  do {
    while (Accept('{')) ++depth;
    if (token_.Is('}')) {
      // An empty list.
    } else if (token_.kind == Token::Kind::kWord && token_.text != "WARP_SZ") {
      bool is_generic = Accept("generic");
      if (is_generic) JAX_PTX_RETURN_IF_ERROR(Expect('('));
      Atom atom;
      JAX_PTX_RETURN_IF_ERROR(ParseAtom(&atom));
      if (is_generic) {
        JAX_PTX_RETURN_IF_ERROR(Expect(')'));
        int64_t offset = 0;
        JAX_PTX_RETURN_IF_ERROR(Offset(&offset));
        atom.addend += offset;
      }
      const Symbol* symbol = symbols_.Find(atom.word);
      if (symbol != nullptr && symbol->kind == Symbol::Kind::kFunction) {
        // A table that other kernels of the text call by: who does not use it is not concerned.
        variable->error = Unimplemented(At(atom.at) + ": `" + std::string(atom.word) +
                                        "` is a function; addresses of functions, virtual ones "
                                        "too, are not supported");
        AppendBytes(0, Bytes(element), &variable->contents);
      } else if (symbol == nullptr || symbol->kind != Symbol::Kind::kVariable ||
                 Bits(element) != 64) {
        return Unimplemented(At(atom.at) +
                             ": an initialiser holds numbers, or 64-bit addresses of variables");
      } else {
        variable->relocations.push_back({variable->contents.size(), symbol->index});
        AppendBytes(static_cast<uint64_t>(atom.addend), 8, &variable->contents);
      }
    } else {
      Atom atom;
      JAX_PTX_RETURN_IF_ERROR(ParseAtom(&atom));
      uint64_t bits = atom.bits;
      if (element == Type::kF32 && atom.kind == Atom::Kind::kDouble) {
        double wide;
        std::memcpy(&wide, &bits, sizeof wide);
        float narrow = static_cast<float>(wide);
        uint32_t narrow_bits;
        std::memcpy(&narrow_bits, &narrow, sizeof narrow);
        bits = narrow_bits;
      }
      AppendBytes(bits, Bytes(element), &variable->contents);
    }
    while (depth > 0 && Accept('}')) --depth;
  } while (Accept(','));
  return depth == 0 ? Status() : Fail("expected `}`");
}

Status Parser::Alignment(uint64_t* align) {
  JAX_PTX_RETURN_IF_ERROR(Integer(1024, align));
  bool is_power = *align != 0 && (*align & (*align - 1)) == 0;
  return is_power ? Status() : Fail("an alignment is a power of two");
}

Status Parser::VariableDeclaration(Space space, bool is_extern) {
  uint64_t align = 0;
  uint64_t vector = 1;
  Type type = Type::kNone;
  while (token_.kind == Token::Kind::kDotted && type == Type::kNone) {
    if (Accept(".align")) {
      JAX_PTX_RETURN_IF_ERROR(Alignment(&align));
    } else if (Accept(".v2")) {
      vector = 2;
    } else if (Accept(".v4")) {
      vector = 4;
    } else if (Accept(".attribute")) {
      return Unimplemented(At(token_) + ": .attribute is not supported");
    } else {
      type = FindType(token_.text.substr(1));
      if (!IsDeclarable(type) || Bytes(type) == 0) return Fail("expected a type");
      Take();
    }
  }
  if (type == Type::kNone) return Fail("expected a type");
  if (align == 0) align = Bytes(type) * vector;
  do {
    Token at = token_;
    Variable variable;
    variable.space = space;
    variable.align = static_cast<uint32_t>(align);
    JAX_PTX_RETURN_IF_ERROR(Word(&variable.name));
    uint64_t count = 0;
    bool is_range = space != Space::kGlobal && Accept('<');
    if (is_range) {  // .param .b32 p<4>
      JAX_PTX_RETURN_IF_ERROR(Integer(0, &count));
    }
    bool is_open = false, is_array = false;
    JAX_PTX_RETURN_IF_ERROR(ArraySize(type, &is_open, &variable.bytes, &is_array));
    variable.bytes *= vector;
    if (Accept('=')) {
      if (space != Space::kGlobal && space != Space::kConst)
        return Fail("only .global and .const variables have initialisers");
      JAX_PTX_RETURN_IF_ERROR(Initialiser(type, &variable));
      if (is_open) variable.bytes = variable.contents.size();
      if (variable.contents.size() > variable.bytes)
        return Fail("the initialiser is longer than the variable");
    } else if (is_open) {
      // .param .b8 p[] is the end of a variadic prototype.
      variable.is_dynamic = space == Space::kShared && is_extern;
      if (!variable.is_dynamic && space != Space::kParam)
        return Fail("an array without a size must be .extern .shared");
      variable.bytes = 0;
    } else if (is_extern) {
      return Unimplemented(At(at) + ": " + std::string(variable.name) +
                           " is defined in another module");
    }
    auto index = static_cast<uint32_t>(module_->variables.size());
    if (!symbols_.Declare(variable.name, {Symbol::Kind::kVariable, type, index, variable.space})) {
      return InvalidArgument(At(at) + ": " + std::string(variable.name) + " is declared twice");
    }
    module_->variables.push_back(std::move(variable));
  } while (Accept(','));
  return Expect(';');
}

Status Parser::KernelParameters(Function* function) {
  if (!Accept('(')) return {};
  if (Accept(')')) return {};
  uint32_t offset = 0;
  do {
    if (!Accept(".param")) return Fail("expected .param");
    Parameter parameter;
    uint64_t align = 0;
    while (token_.kind == Token::Kind::kDotted) {
      if (Accept(".ptr") || Accept(".global") || Accept(".shared") || Accept(".const") ||
          Accept(".local")) {
        continue;
      }
      bool is_pointer = parameter.type != Type::kNone;  // .u64 .ptr .align 16: of what it points to
      if (Accept(".align")) {
        uint64_t value = 0;
        JAX_PTX_RETURN_IF_ERROR(Alignment(&value));
        if (!is_pointer) align = value;
        continue;
      }
      parameter.type = FindType(token_.text.substr(1));
      if (!IsDeclarable(parameter.type) || Bytes(parameter.type) == 0)
        return Fail("expected a parameter type");
      Take();
    }
    if (parameter.type == Type::kNone) return Fail("expected a parameter type");
    JAX_PTX_RETURN_IF_ERROR(Word(&parameter.name));
    bool is_open = false, is_array = false;
    uint64_t bytes = 0;
    JAX_PTX_RETURN_IF_ERROR(ArraySize(parameter.type, &is_open, &bytes, &is_array));
    if (align == 0) align = Bytes(parameter.type);
    offset = (offset + static_cast<uint32_t>(align) - 1) & ~(static_cast<uint32_t>(align) - 1);
    if (is_open || bytes > kMaxParameterBytes || offset + bytes > kMaxParameterBytes) {
      return Fail("the parameters take more than 32,764 bytes");
    }
    parameter.offset = offset;
    parameter.bytes = static_cast<uint32_t>(bytes);
    parameter.align = static_cast<uint32_t>(align);
    offset += parameter.bytes;
    Symbol symbol{Symbol::Kind::kParameter, parameter.type,
                  static_cast<uint32_t>(function->parameters.size())};
    if (!symbols_.Declare(parameter.name, symbol)) return Fail("a parameter is declared twice");
    function->parameters.push_back(parameter);
  } while (Accept(','));
  return Expect(')');
}

// (.param .b32 a, .param .align 8 .b8 b[16]) of a .func.
Status Parser::FunctionParameters(std::vector<uint32_t>* variables) {
  if (!Accept('(')) return {};
  if (Accept(')')) return {};
  do {
    if (!Accept(".param")) {
      return Unimplemented(At(token_) + ": parameters of a .func must be .param, found " +
                           std::string(token_.text.substr(0, 40)));
    }
    Variable variable;
    variable.space = Space::kParam;
    uint64_t align = 0;
    Type type = Type::kNone;
    while (token_.kind == Token::Kind::kDotted) {
      if (Accept(".align")) {
        JAX_PTX_RETURN_IF_ERROR(Alignment(&align));
        continue;
      }
      type = FindType(token_.text.substr(1));
      if (!IsDeclarable(type) || Bytes(type) == 0) return Fail("expected a parameter type");
      Take();
    }
    if (type == Type::kNone) return Fail("expected a parameter type");
    if (align == 0) align = Bytes(type);
    variable.align = static_cast<uint32_t>(align);
    JAX_PTX_RETURN_IF_ERROR(Word(&variable.name));
    bool is_open = false, is_array = false;
    JAX_PTX_RETURN_IF_ERROR(ArraySize(type, &is_open, &variable.bytes, &is_array));
    auto index = static_cast<uint32_t>(module_->variables.size());
    if (!symbols_.Declare(variable.name, {Symbol::Kind::kVariable, type, index, variable.space})) {
      return Fail("a parameter is declared twice");
    }
    module_->variables.push_back(std::move(variable));
    variables->push_back(index);
  } while (Accept(','));
  return Expect(')');
}

// .maxntid 256, 1, 1 and its relatives; most only advise the assembler.
Status Parser::FunctionDirectives(Function* function) {
  while (token_.kind == Token::Kind::kDotted) {
    std::string_view directive = token_.text;
    Take();
    uint32_t product = 1;
    bool has_value = false;
    while (token_.kind == Token::Kind::kInteger || token_.kind == Token::Kind::kString) {
      if (token_.kind == Token::Kind::kInteger) {
        uint64_t value = 0;
        JAX_PTX_RETURN_IF_ERROR(Integer(UINT32_MAX, &value));
        product = static_cast<uint32_t>(std::min<uint64_t>(uint64_t{product} * value, 1u << 20));
        has_value = true;
      } else {
        Take();
        (void)Accept(';');
      }
      if (!Accept(',')) break;
    }
    if (has_value && directive == ".maxntid") function->max_threads = product;
    if (has_value && directive == ".reqntid") function->required_threads = product;
    if (has_value && directive == ".reqnctapercluster") function->required_ctas = product;
  }
  return {};
}

Status Parser::FunctionDeclaration(bool is_entry) {
  Function function;
  function.is_entry = is_entry;
  symbols_.BeginFunction(&function);
  if (!is_entry) JAX_PTX_RETURN_IF_ERROR(FunctionParameters(&function.results));
  Token at = token_;
  JAX_PTX_RETURN_IF_ERROR(Word(&function.name));
  JAX_PTX_RETURN_IF_ERROR(is_entry ? KernelParameters(&function)
                                   : FunctionParameters(&function.arguments));
  JAX_PTX_RETURN_IF_ERROR(FunctionDirectives(&function));

  // A prototype may come first; calls refer to its index, so the definition takes its place.
  const Symbol* known = symbols_.Find(function.name);
  if (known != nullptr &&
      (known->kind != Symbol::Kind::kFunction || module_->functions[known->index].is_defined)) {
    return InvalidArgument(At(at) + ": " + std::string(function.name) + " is defined twice");
  }
  uint32_t index =
      known != nullptr ? known->index : static_cast<uint32_t>(module_->functions.size());
  if (known == nullptr) {
    Function prototype = function;
    prototype.is_defined = token_.Is('{');
    module_->functions.push_back(std::move(prototype));
  } else {
    module_->functions[index].is_defined = token_.Is('{');
  }
  bool has_body = token_.Is('{');
  if (has_body) {
    // Its own name too, so that a recursive call is recognised (and refused) rather than unknown.
    (void)symbols_.Declare(function.name, {Symbol::Kind::kFunction, Type::kNone, index});
    Lexer body = lexer_;
    Token brace = token_;
    function.error = Body(&function);
    function.is_defined = true;
    if (!function.error.ok()) {  // go on behind the body, if its end can be found
      Status error = function.error;
      lexer_ = body;
      token_ = brace;
      if (!SkipBraces().ok()) return error;
    }
  } else {
    (void)Accept(';');
  }
  symbols_.EndFunction();
  const Symbols::Use* use = symbols_.unresolved();
  if (use != nullptr && function.error.ok()) {
    function.error = InvalidArgument("PTX line " + std::to_string(use->line) + ": label `" +
                                     std::string(use->label.substr(0, 80)) + "` is not defined");
  }
  if (!function.error.ok()) {
    function.code.clear();
    function.operands.clear();
    function.tables.clear();
  }
  (void)symbols_.Declare(function.name, {Symbol::Kind::kFunction, Type::kNone, index});
  module_->functions[index] = std::move(function);
  return {};
}

}  // namespace jax_ptx::ptx
