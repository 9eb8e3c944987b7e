// Splits PTX text into tokens, one at a time: the text may be hostile, so nothing is stored.
#pragma once

#include <cstdint>
#include <string_view>

namespace jax_ptx::ptx {

struct Token {
  enum class Kind : uint8_t {
    kEnd,
    kWord,     // add, %r1, $L__BB0_1, _
    kDotted,   // .global, .shared::cta, .x
    kInteger,  // 12, 0x1F, 017, 0b1, with an optional U
    kFloat,    // 1.5, 0f3F800000, 0d3FF0000000000000
    kString,   // "…"
    kSymbol,   // one punctuation character
    kBad,      // text says what is wrong; only kEnd follows
  };
  Kind kind = Kind::kEnd;
  std::string_view text;
  uint32_t line = 1;
  uint32_t column = 1;
  size_t begin = 0;  // position in the text
  size_t end = 0;

  bool Is(char symbol) const { return kind == Kind::kSymbol && text[0] == symbol; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Token Next();

 private:
  bool SkipBlank();  // false when a comment does not end
  char At(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
  void Advance();
  size_t NumberEnd(Token::Kind* kind) const;

  std::string_view text_;
  size_t position_ = 0;
  uint32_t line_ = 1;
  uint32_t column_ = 1;
};

}  // namespace jax_ptx::ptx
