#include "ptx/signature.h"

#include <string>

#include "ptx/lexer.h"

namespace jax_ptx::ptx {

Result<size_t> CountParameters(std::string_view text, std::string_view entry) {
  using Kind = Token::Kind;
  Lexer lexer(text);
  for (Token token = lexer.Next();; token = lexer.Next()) {
    if (token.kind == Kind::kEnd || token.kind == Kind::kBad) {
      return InvalidArgument("the text has no .entry " + std::string(entry));
    }
    if (token.kind != Kind::kDotted || token.text != ".entry") continue;
    token = lexer.Next();
    if (token.kind != Kind::kWord || token.text != entry) continue;
    size_t count = 0;
    if (!lexer.Next().Is('(')) return count;
    for (token = lexer.Next(); !token.Is(')'); token = lexer.Next()) {
      if (token.kind == Kind::kEnd || token.kind == Kind::kBad) {
        return InvalidArgument("the parameters of .entry " + std::string(entry) + " have no end");
      }
      count += token.kind == Kind::kDotted && token.text == ".param";
    }
    return count;
  }
}

}  // namespace jax_ptx::ptx
