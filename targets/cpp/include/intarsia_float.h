// What the functions of intarsia_math.h are built from: rounding, comparisons that know NaN, polynomials, powers of two, argument reduction.
#pragma once
#include "intarsia_integer.h"

namespace intarsia {

#if defined(__FMA__) || defined(__AVX512F__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define IM_FMA 1
IM_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
IM_FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
IM_FN float fma(float a, float b, float c) { return a * b + c; }
IM_FN double fma(double a, double b, double c) { return a * b + c; }
#endif

IM_FN float floor(float x) { return __builtin_floorf(x); }
IM_FN double floor(double x) { return __builtin_floor(x); }
IM_FN float ceil(float x) { return __builtin_ceilf(x); }
IM_FN double ceil(double x) { return __builtin_ceil(x); }
IM_FN float trunc(float x) { return __builtin_truncf(x); }
IM_FN double trunc(double x) { return __builtin_trunc(x); }
IM_FN float round(float x) { return __builtin_rintf(x); }  // half to even
IM_FN double round(double x) { return __builtin_rint(x); }
IM_FN float sqrt(float x) { return __builtin_sqrtf(x); }
IM_FN double sqrt(double x) { return __builtin_sqrt(x); }
IM_FN float abs(float x) { return __builtin_fabsf(x); }
IM_FN double abs(double x) { return __builtin_fabs(x); }
IM_FN float copysign(float x, float sign) { return __builtin_copysignf(x, sign); }
IM_FN double copysign(double x, double sign) { return __builtin_copysign(x, sign); }

template <class T>
IM_FN bool isnan(T x) { return x != x; }
IM_FN bool isinf(float x) { return abs(x) == __builtin_inff(); }
IM_FN bool isinf(double x) { return abs(x) == __builtin_inf(); }
IM_FN bool isfinite(float x) { return abs(x) < __builtin_inff(); }
IM_FN bool isfinite(double x) { return abs(x) < __builtin_inf(); }
IM_FN bool signbit(float x) { return bit_cast<int32_t>(x) < 0; }
IM_FN bool signbit(double x) { return bit_cast<int64_t>(x) < 0; }

// NaN wins, as in torch.maximum and torch.minimum. `a` is the accumulator of a reduction: the shorter chain leads through it.
template <class T>
IM_FN T max(T a, T b) {
  const T larger = b > a ? b : a;
  return b != b ? b : larger;
}
template <class T>
IM_FN T min(T a, T b) {
  const T smaller = b < a ? b : a;
  return b != b ? b : smaller;
}
// A number wins over NaN, as in torch.fmax and torch.fmin.
template <class T>
IM_FN T fmax(T a, T b) {
  const T larger = b > a ? b : a;
  return a != a ? b : larger;
}
template <class T>
IM_FN T fmin(T a, T b) {
  const T smaller = b < a ? b : a;
  return a != a ? b : smaller;
}
template <class T>
IM_FN T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); }
template <class T>
IM_FN T sign(T x) { return static_cast<T>((x > T(0)) - (x < T(0))); }
template <class T>
IM_FN T relu(T x) { return x < T(0) ? T(0) : x; }

namespace detail {

template <class T>
IM_FN T poly(T, T c) { return c; }
// c0 + c1 x + c2 x^2 + ...
template <class T, class... C>
IM_FN T poly(T x, T c, C... rest) { return fma(poly(x, rest...), x, c); }

template <class T>
struct Format;

template <>
struct Format<float> {
  using Bits = uint32_t;
  using Int = int32_t;
  static constexpr int mantissa = 23;
  static constexpr Bits bias = 127, one = 0x3f800000u, mask = 0x007fffffu, start = 0x3f2aaaabu;  // start: 2/3
  static constexpr float shifter = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  static constexpr float min_normal = 0x1p-126f, subnormal_scale = 0x1p24f, subnormal_log = 24.0f, tiny = 0x1p-25f;
  static constexpr float inf = __builtin_inff(), nan = __builtin_nanf("");
  static constexpr float ln2 = 0x1.62e43p-1f, ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f;  // n * ln2_hi is exact
  static constexpr float log2e = 0x1.715476p+0f, log2e_lo = 0x1.4ae0cp-26f;
  static constexpr float log10e = 0x1.bcb7b2p-2f, log10e_lo = -0x1.5b235ep-27f;
  static constexpr float log10_2_hi = 0x1.344p-2f, log10_2_lo = 0x1.3509f8p-18f;
  static constexpr float exp_min = -105.0f, exp_max = 90.0f, exp2_min = -151.0f, exp2_end = 128.0f, expm1_min = -18.0f;
  static constexpr float big = 0x1p30f, integer = 0x1p23f, expm1_max = 89.0f, exp_finite = 0x1.62e42ep+6f, tanh_max = 10.0f;
};

template <>
struct Format<double> {
  using Bits = uint64_t;
  using Int = int64_t;
  static constexpr int mantissa = 52;
  static constexpr Bits bias = 1023, one = 0x3ff0000000000000u, mask = 0x000fffffffffffffu, start = 0x3fe6a09e667f3bcdu;
  static constexpr double shifter = 0x1.8p52;
  static constexpr double min_normal = 0x1p-1022, subnormal_scale = 0x1p54, subnormal_log = 54.0, tiny = 0x1p-54;
  static constexpr double inf = __builtin_inf(), nan = __builtin_nan("");
  static constexpr double ln2 = 0x1.62e42fefa39efp-1, ln2_hi = 0x1.62e42ffp-1, ln2_lo = -0x1.718432a1b0e26p-35;
  static constexpr double log2e = 0x1.71547652b82fep+0, log2e_lo = 0x1.777d0ffda0d24p-56;
  static constexpr double log10e = 0x1.bcb7b1526e50ep-2, log10e_lo = 0x1.95355baaafad3p-57;
  static constexpr double log10_2_hi = 0x1.34413508p-2, log10_2_lo = 0x1.f79fef311f12bp-34;
  static constexpr double exp_min = -746.0, exp_max = 711.0, exp2_min = -1076.0, exp2_end = 1024.0, expm1_min = -38.0;
  static constexpr double big = 0x1p60, integer = 0x1p52, expm1_max = 709.9, exp_finite = 0x1.62e42fefa39efp+9, tanh_max = 20.0;
};

// 2^n for a whole number n of normal range, given n + shifter: its low bits are n.
template <class T>
IM_FN T pow2_shifted(T shifted) {
  using F = Format<T>;
  return bit_cast<T>(static_cast<typename F::Bits>((bit_cast<typename F::Bits>(shifted) + F::bias) << F::mantissa));
}

// y * 2^n in two steps, so that results that overflow or are subnormal are rounded once.
template <class T>
IM_FN T scale(T y, T n) {
  using F = Format<T>;
  const T half = fma(n, T(0.5), F::shifter);
  const T rest = n - (half - F::shifter);
  return y * pow2_shifted(half) * pow2_shifted(rest + F::shifter);
}

// exp(r) - 1 for |r| <= ln(2)/2
IM_FN float expm1_reduced(float r) {
  const float p = poly(r, 0.49999997f, 0.16666545f, 0.0416675508f, 0.00836637616f, 0.00138605281f);
  return fma(r * r, p, r);
}
IM_FN double expm1_reduced(double r) {
  const double p = poly(r, 0.50000000000000056, 0.1666666666666661, 0.041666666666573843, 0.00833333333337586, 0.0013888888932278756,
                        0.00019841269749061081, 2.4801504576702965e-5, 2.7557381061764163e-6, 2.762627444380809e-7,
                        2.5061862136220648e-8);
  return fma(r * r, p, r);
}

// x = n ln 2 + r
template <class T>
IM_FN T reduce_ln2(T x, T& n) {
  using F = Format<T>;
  n = fma(x, F::log2e, F::shifter) - F::shifter;
  return fma(n, -F::ln2_lo, fma(n, -F::ln2_hi, x));
}

// exp(x) * 2^k, without overflow in between
template <class T>
IM_FN T exp_times(T x, T k) {
  using F = Format<T>;
  x = x > F::exp_max ? F::exp_max : x;
  x = x < F::exp_min ? F::exp_min : x;
  T n;
  const T r = reduce_ln2(x, n);
  return scale(T(1) + expm1_reduced(r), n + k);
}

// log(1 + f) = f + log_tail(f) for 2/3 <= 1 + f <= 4/3
IM_FN float log_tail(float f) {
  const float p = poly(f, 0.333332121f, -0.249998242f, 0.20010592f, -0.16679363f, 0.140030861f, -0.121991158f, 0.13997595f,
                       -0.128290981f);
  const float square = f * f;
  return fma(square, -0.5f, square * f * p);
}
// The same for sqrt(1/2) <= 1 + f <= sqrt(2)
IM_FN double log_tail(double f) {
  const double s = f / (2.0 + f), z = s * s;
  const double p = z * poly(z, 0.66666666666667374, 0.39999999999393643, 0.28571428747402572, 0.22222198023172202,
                            0.18183594698603545, 0.15313229725641678, 0.14804581213134957);
  const double half_square = 0.5 * f * f;
  return s * (half_square + p) - half_square;
}

// Positive normal x = 2^e (1 + f); returns f
template <class T>
IM_FN T split_log(T x, T& e) {
  using F = Format<T>;
  using Bits = typename F::Bits;
  const Bits bits = bit_cast<Bits>(x) - F::start + F::one;  // its exponent field is e + bias, never negative
  e = bit_cast<T>(static_cast<Bits>((bits >> F::mantissa) | bit_cast<Bits>(F::integer))) - (F::integer + static_cast<T>(F::bias));
  return bit_cast<T>(static_cast<Bits>((bits & F::mask) + F::start)) - T(1);
}

// As split_log, for subnormal x too.
template <class T>
IM_FN T split_log_any(T x, T& e) {
  using F = Format<T>;
  const bool subnormal = x < F::min_normal;
  const T f = split_log(subnormal ? x * F::subnormal_scale : x, e);
  e -= subnormal ? F::subnormal_log : T(0);
  return f;
}

// The values of a logarithm outside (0, inf)
template <class T>
IM_FN T log_ends(T x, T result) {
  using F = Format<T>;
  result = x < F::inf ? result : x;
  return x > T(0) ? result : (x == T(0) ? -F::inf : F::nan);
}

// e^x - 1 for 0 <= x <= 40
template <class T>
IM_FN T expm1_middle(T x) {
  using F = Format<T>;
  const T shifted = fma(x, F::log2e, F::shifter), n = shifted - F::shifter;
  const T r = fma(n, -F::ln2_lo, fma(n, -F::ln2_hi, x));
  const T power = pow2_shifted(shifted);
  return fma(power, expm1_reduced(r), power - T(1));
}

// e^x for |x| <= 80
template <class T>
IM_FN T exp_middle(T x) {
  using F = Format<T>;
  const T shifted = fma(x, F::log2e, F::shifter), n = shifted - F::shifter;
  const T r = fma(n, -F::ln2_lo, fma(n, -F::ln2_hi, x));
  const T power = pow2_shifted(shifted);
  return fma(power, expm1_reduced(r), power);
}

}  // namespace detail

}  // namespace intarsia
