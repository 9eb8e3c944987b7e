// Errors without exceptions: every fallible function of the extension returns a Status or a Result.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace jax_ptx {

enum class Code {
  kOk,
  kInvalidArgument,     // the caller's text, sizes or geometry are wrong
  kUnimplemented,       // valid PTX that this library does not run
  kFailedPrecondition,  // the machine lacks something: no driver, a driver that is too old
  kResourceExhausted,   // a limit of the target or of the emulator
  kInternal,            // the driver failed, or a bug of ours
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}
inline Status Unimplemented(std::string message) {
  return {Code::kUnimplemented, std::move(message)};
}
inline Status FailedPrecondition(std::string message) {
  return {Code::kFailedPrecondition, std::move(message)};
}
inline Status ResourceExhausted(std::string message) {
  return {Code::kResourceExhausted, std::move(message)};
}
inline Status Internal(std::string message) { return {Code::kInternal, std::move(message)}; }

// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by intent
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by intent

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace jax_ptx

// Leaves the enclosing function with the Status of `expression` unless it is ok.
#define JAX_PTX_RETURN_IF_ERROR(expression)                                    \
  do {                                                                         \
    if (::jax_ptx::Status jax_ptx_status = (expression); !jax_ptx_status.ok()) \
      return jax_ptx_status;                                                   \
  } while (false)
