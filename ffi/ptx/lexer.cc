#include "ptx/lexer.h"

namespace jax_ptx::ptx {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsWordStart(char c) { return IsLetter(c) || c == '_' || c == '$' || c == '%'; }
bool IsWordPart(char c) { return IsLetter(c) || IsDigit(c) || c == '_' || c == '$'; }
bool IsHex(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

void Lexer::Advance() {
  if (text_[position_++] == '\n') {
    ++line_;
    column_ = 1;
  } else {
    ++column_;
  }
}

bool Lexer::SkipBlank() {
  while (position_ < text_.size()) {
    char c = text_[position_];
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      Advance();
    } else if (c == '/' && At(position_ + 1) == '/') {
      while (position_ < text_.size() && text_[position_] != '\n') Advance();
    } else if (c == '/' && At(position_ + 1) == '*') {
      size_t end = text_.find("*/", position_ + 2);
      if (end == std::string_view::npos) return false;
      while (position_ < end + 2) Advance();
    } else {
      break;
    }
  }
  return true;
}

size_t Lexer::NumberEnd(Token::Kind* kind) const {
  size_t i = position_;
  *kind = Token::Kind::kInteger;
  char second = At(i + 1);
  if (text_[i] == '0' && (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
    *kind = Token::Kind::kFloat;
    for (i += 2; IsHex(At(i));) ++i;
    return i;
  }
  if (text_[i] == '0' && (second == 'x' || second == 'X')) {
    for (i += 2; IsHex(At(i));) ++i;
  } else {
    while (IsDigit(At(i))) ++i;
    if (i == position_ + 1 && text_[position_] == '0' && (At(i) == 'b' || At(i) == 'B')) {
      for (++i; IsDigit(At(i));) ++i;
    }
    if (At(i) == '.' && IsDigit(At(i + 1))) {
      *kind = Token::Kind::kFloat;
      for (++i; IsDigit(At(i));) ++i;
    }
    size_t sign = At(i + 1) == '+' || At(i + 1) == '-' ? 1 : 0;
    if ((At(i) == 'e' || At(i) == 'E') && IsDigit(At(i + 1 + sign))) {
      *kind = Token::Kind::kFloat;
      for (i += 1 + sign; IsDigit(At(i));) ++i;
    }
  }
  if (*kind == Token::Kind::kInteger && At(i) == 'U') ++i;
  return i;
}

Token Lexer::Next() {
  Token token;
  bool closed = SkipBlank();
  token.line = line_;
  token.column = column_;
  token.begin = token.end = position_;
  if (!closed) {
    position_ = text_.size();
    token.kind = Token::Kind::kBad;
    token.text = "a comment that does not end";
    return token;
  }
  if (position_ >= text_.size()) return token;

  size_t end = position_ + 1;
  char c = text_[position_];
  if (IsWordStart(c)) {
    token.kind = Token::Kind::kWord;
    while (IsWordPart(At(end))) ++end;
  } else if (c == '.' && IsWordPart(At(end))) {
    token.kind = Token::Kind::kDotted;
    while (IsWordPart(At(end)) ||
           (At(end) == ':' && At(end + 1) == ':' && IsWordPart(At(end + 2)))) {
      end += At(end) == ':' ? 2 : 1;
    }
  } else if (IsDigit(c)) {
    end = NumberEnd(&token.kind);
  } else if (c == '"') {
    token.kind = Token::Kind::kString;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\n') ++end;
    if (At(end) != '"') {
      token.kind = Token::Kind::kBad;
      token.text = "a string that does not end on its line";
      position_ = text_.size();
      return token;
    }
    ++end;
  } else if (std::string_view("{}[]()<>,;:+-*/|&!~@=^?.").find(c) != std::string_view::npos) {
    token.kind = Token::Kind::kSymbol;
  } else {
    token.kind = Token::Kind::kBad;
    token.text = "a character that PTX does not know";
    position_ = text_.size();
    return token;
  }
  token.text = text_.substr(position_, end - position_);
  token.end = end;
  column_ += static_cast<uint32_t>(end - position_);
  position_ = end;
  return token;
}

}  // namespace jax_ptx::ptx
