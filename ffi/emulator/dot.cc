#include "emulator/dot.h"

#include <algorithm>

#include "emulator/number.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Type;

constexpr int kZero = -10000;  // the exponent of zero
constexpr int kFraction = 25;  // bits below the largest exponent that a sum keeps

double ToNearestFloat(double x) { return static_cast<float>(x); }
double ToHalf(double x) { return ToDouble(ToF16(x)); }
// What is beyond float32 becomes infinite even so.
double TowardsZero(double x) {
  if (std::fabs(x) >= 0x1p128) return std::copysign(std::numeric_limits<double>::infinity(), x);
  return BitCast<float>(Encode<Rounding::kZero>(x, kF32));
}

// Subnormal numbers keep the exponent of the least normal one.
int Exponent(double x, int least) { return x == 0 ? kZero : std::max(std::ilogb(x), least); }

// One pass of a tensor core over the columns of A that `takes(j)` chooses: products and C are cut
// to a common last place, kFraction bits below the largest exponent, added exactly, and rounded:
// towards zero to float32, to nearest to float16.
template <class Takes>
void Pass(int m, int k, bool to_half, int least, Factors* x, Takes takes) {
  int exponent_a[kMaxM][kMaxK], exponent_b[kMaxK][kN];
  for (int j = 0; j < k; ++j) {
    for (int row = 0; row < m; ++row) exponent_a[row][j] = Exponent(x->a[row][j], least);
    for (int n = 0; n < kN; ++n) exponent_b[j][n] = Exponent(x->b[j][n], least);
  }
  for (int row = 0; row < m; ++row) {
    for (int n = 0; n < kN; ++n) {
      double& c = x->c[row][n];
      double plain = c;
      int largest = Exponent(c, to_half ? -14 : -126);
      for (int j = 0; j < k; ++j) {
        if (!takes(j)) continue;
        plain += x->a[row][j] * x->b[j][n];
        largest = std::max(largest, exponent_a[row][j] + exponent_b[j][n]);
      }
      if (!std::isfinite(plain) || largest <= kZero / 2) {  // infinite, NaN, or a sum of zeros
        c = plain;
        continue;
      }
      double scale = std::ldexp(1.0, kFraction - largest);
      auto sum = static_cast<int64_t>(c * scale);
      for (int j = 0; j < k; ++j) {
        if (takes(j)) sum += static_cast<int64_t>(x->a[row][j] * x->b[j][n] * scale);
      }
      double value = std::ldexp(static_cast<double>(sum), largest - kFraction);
      c = to_half ? ToHalf(value) : TowardsZero(value);
    }
  }
}

}  // namespace

void MultiplyFloats(Type type_d, Type type_a, int m, int k, Factors* x) {
  bool to_half = type_d == Type::kF16;
  auto all = [](int) { return true; };
  switch (type_a) {
    case Type::kF64:
      for (int row = 0; row < m; ++row) {
        for (int j = 0; j < k; ++j) {
          for (int n = 0; n < kN; ++n) {
            x->c[row][n] = std::fma(x->a[row][j], x->b[j][n], x->c[row][n]);
          }
        }
      }
      return;
    case Type::kE4M3:
    case Type::kE5M2: {
      // Made of two passes over float16, which begin with zero; C is added last.
      double c[kMaxM][kN];
      std::copy(&x->c[0][0], &x->c[0][0] + kMaxM * kN, &c[0][0]);
      std::fill(&x->c[0][0], &x->c[0][0] + kMaxM * kN, 0.0);
      Pass(m, k, to_half, -14, x, [](int j) { return j % 4 < 2; });
      Pass(m, k, to_half, -14, x, [](int j) { return j % 4 >= 2; });
      for (int row = 0; row < m; ++row) {
        for (int n = 0; n < kN; ++n) {
          double sum = x->c[row][n] + c[row][n];
          x->c[row][n] = to_half ? ToHalf(sum) : ToNearestFloat(sum);
        }
      }
      return;
    }
    case Type::kF16:
      return Pass(m, k, to_half, -14, x, all);
    default:
      return Pass(m, k, to_half, -126, x, all);
  }
}

// m8n8k4 of float16 is not for the tensor cores of this chip: products are added one by one.
void MultiplyOneByOne(Type type_d, Factors* x) {
  auto add = [](double a, double b) { return ToNearestFloat(AddToOdd(a, b)); };
  for (int row = 0; row < 8; ++row) {
    for (int n = 0; n < kN; ++n) {
      double product[4];
      for (int j = 0; j < 4; ++j) product[j] = x->a[row][j] * x->b[j][n];
      double& c = x->c[row][n];
      double first = add(product[0], product[1]);
      c = type_d == Type::kF16 ? ToHalf(add(add(product[2], product[3]), add(first, c)))
                               : add(add(add(first, product[2]), product[3]), c);
    }
  }
}

}  // namespace jax_ptx::emulator
