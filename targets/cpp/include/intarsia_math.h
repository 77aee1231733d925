// Scalar math of generated kernels, written so that loops over it vectorise: no branches, no tables, no calls.
//
// im::f(x) has overloads for float and double. NaN in gives NaN out (unless the function says otherwise), infinities, signed
// zeros, subnormals and overflow behave as in torch. Requires round-to-nearest and no -ffast-math; wants -fno-math-errno and
// -fno-trapping-math. The numbers after "max" are the largest errors in ulp (float / double) that
// benchmarks/math_ulp.py saw, over one float32 in 61 (two arguments: 4 million random pairs; double: 6,000 arguments).
// "libm" marks functions that are right but not vectorised.
// Polynomials are fitted by benchmarks/math_fit.py. Without fused multiply-add the errors grow by up to one ulp (erfc: to 64); docs/math.md has them all.
#pragma once
#include "intarsia_float.h"

namespace intarsia {

// ---- exponentials and logarithms ---------------------------------------------------------------------------------------------

#define IM_BOTH(name)                                       \
  IM_FN float name(float x) { return detail::name(x); }     \
  IM_FN double name(double x) { return detail::name(x); }

namespace detail {

// y * 2^n for y near 1 and n + shifter: the exponent is added to the bits of y, and raised by 64 meanwhile where n is negative, so
// that a subnormal result is rounded once.
template <class T>
IM_FN T join_power(T y, T shifted, bool negative) {
  using F = Format<T>;
  using Bits = typename F::Bits;
  const Bits raise = negative ? Bits(64) << F::mantissa : Bits(0);
  const Bits bits = bit_cast<Bits>(y) + (bit_cast<Bits>(shifted) << F::mantissa) + raise;
  return bit_cast<T>(bits) * (negative ? T(0x1p-64) : T(1));
}

template <class T>
IM_FN T exp(T x) {
  using F = Format<T>;
  const T y = F::exp_min > x ? F::exp_min : x;
  const T shifted = fma(y, F::log2e, F::shifter), n = shifted - F::shifter;
  const T p = expm1_reduced(fma(n, -F::ln2_lo, fma(n, -F::ln2_hi, y)));
  const T result = join_power(T(1) + p, shifted, y < T(0));
  return x <= F::exp_finite ? result : x + F::inf;  // NaN stays NaN
}

template <class T>
IM_FN T exp2(T x) {
  using F = Format<T>;
  const T y = F::exp2_min > x ? F::exp2_min : x;
  const T shifted = y + F::shifter, n = shifted - F::shifter;
  const T result = join_power(T(1) + expm1_reduced((y - n) * F::ln2), shifted, y < T(0));
  return x < F::exp2_end ? result : x + F::inf;
}

template <class T>
IM_FN T expm1(T x) {
  using F = Format<T>;
  T y = x > F::expm1_max ? F::expm1_max : x;
  y = y < F::expm1_min ? F::expm1_min : y;
  T n;
  const T r = reduce_ln2(y, n);
  const T half = pow2_shifted((n - T(1)) + F::shifter);  // half the power: twice it may overflow before the sum does
  const T result = fma(half, expm1_reduced(r), half - T(0.5)) * T(2);
  return abs(x) < F::tiny ? x : result;
}

template <class T>
IM_FN T log(T x) {
  using F = Format<T>;
  T e;
  const T f = split_log_any(x, e);
  return log_ends(x, fma(e, F::ln2_hi, f + fma(e, F::ln2_lo, log_tail(f))));
}

template <class T>
IM_FN T log2(T x) {
  using F = Format<T>;
  T e;
  const T f = split_log_any(x, e);
  const T tail = log_tail(f);
  return log_ends(x, e + fma(f, F::log2e, fma(tail, F::log2e, f * F::log2e_lo)));
}

template <class T>
IM_FN T log10(T x) {
  using F = Format<T>;
  T e;
  const T f = split_log_any(x, e);
  const T tail = log_tail(f);
  const T low = fma(e, F::log10_2_lo, fma(tail, F::log10e, f * F::log10e_lo));
  return log_ends(x, fma(e, F::log10_2_hi, fma(f, F::log10e, low)));
}

// log(1 + x) = e ln 2 + log(1 + f) with 1 + f = 2^-e (1 + x): f is rounded once, however small x is.
template <class T>
IM_FN T log1p(T x) {
  using F = Format<T>;
  const T sum = T(1) + x;
  T e;
  const T direct = split_log(sum, e);
  const T power = pow2_shifted(F::shifter - e);
  const T f = x > F::big ? direct : fma(x, power, power - T(1));
  T result = copysign(fma(e, F::ln2_hi, f + fma(e, F::ln2_lo, log_tail(f))), x);
  result = x < F::inf ? result : x;
  return x > T(-1) ? result : (x == T(-1) ? -F::inf : F::nan);
}

template <class T>
IM_FN T sigmoid(T x) {
  const T e = exp(-abs(x));  // never overflows
  return (x < T(0) ? e : T(1)) / (T(1) + e);
}

}  // namespace detail

IM_BOTH(exp)      // max 1.03 / 0.96
IM_BOTH(exp2)     // max 1.03 / 0.95
IM_BOTH(expm1)    // max 1.49 / 1.75
IM_BOTH(log)      // max 0.86 / 0.76
IM_BOTH(log2)     // max 1.45 / 0.86
IM_BOTH(log10)    // max 1.31 / 0.83
IM_BOTH(log1p)    // max 1.62 / 1.26
IM_BOTH(sigmoid)  // max 2.41 / 1.86
IM_FN float rsqrt(float x) { return 1.0f / sqrt(x); }    // max 1.49 / 1.40
IM_FN double rsqrt(double x) { return 1.0 / sqrt(x); }

// ---- hyperbolic functions ----------------------------------------------------------------------------------------------------

namespace detail {

template <class T>
IM_FN T tanh(T x) {
  using F = Format<T>;
  const T a = abs(x);
  const T e = expm1_middle(T(2) * (a > F::tanh_max ? F::tanh_max : a));
  const T result = a < F::tiny ? a : e / (e + T(2));
  return copysign(result, x);
}

template <class T>
IM_FN T cosh(T x) {
  const T half_exp = exp_times(abs(x), T(-1));
  return half_exp + T(0.25) / half_exp;
}

IM_FN float sinh_small(float x) {
  const float z = x * x;
  return fma(x * z, poly(z, 0.166666672f, 0.00833331048f, 0.000198428912f, 2.78226162e-6f), x);
}
IM_FN double sinh_small(double x) {
  const double e = expm1_middle(x);
  return 0.5 * (e + e / (e + 1.0));
}

template <class T>
IM_FN T sinh(T x) {
  using F = Format<T>;
  const T a = abs(x);
  const T half_exp = exp_times(a, T(-1));
  const T small = sinh_small(a < T(1) ? a : T(1));
  T result = a < T(1) ? small : half_exp - T(0.25) / half_exp;
  result = a < F::tiny ? a : result;
  return copysign(a != a ? x : result, x);
}

template <class T>
IM_FN T asinh(T x) {
  using F = Format<T>;
  const T a = abs(x);
  const T square = a * a;
  const bool large = a > F::big;
  const T near = a + square / (T(1) + sqrt(square + T(1)));
  const T result = log1p(large ? a : near) + (large ? F::ln2 : T(0));
  return copysign(result, x);
}

template <class T>
IM_FN T acosh(T x) {
  using F = Format<T>;
  const T t = x - T(1);
  const bool large = x > F::big;
  const T result = log1p(large ? x : t + sqrt(t * (x + T(1)))) + (large ? F::ln2 : T(0));
  return x < T(1) ? F::nan : result;
}

template <class T>
IM_FN T atanh(T x) {
  const T a = abs(x);
  return copysign(T(0.5) * log1p(T(2) * a / (T(1) - a)), x);
}

}  // namespace detail

IM_BOTH(tanh)   // max 2.48 / 2.37
IM_BOTH(sinh)   // max 1.62 / 1.93
IM_BOTH(cosh)   // max 1.46 / 1.31
IM_BOTH(asinh)  // max 1.90 / 1.41
IM_BOTH(acosh)  // max 2.17 / 1.23
IM_BOTH(atanh)  // max 2.10 / 1.66

// ---- trigonometric functions -------------------------------------------------------------------------------------------------

namespace detail {

// sin and cos of r, |r| <= pi/4
IM_FN float sin_reduced(float r) {
  const float z = r * r;
  return fma(r * z, poly(z, -0.166666552f, 0.00833218917f, -0.000195182904f), r);
}
IM_FN float cos_reduced(float r) {
  const float z = r * r;
  return fma(z * z, poly(z, 0.0416666456f, -0.00138873071f, 2.44319654e-5f), fma(z, -0.5f, 1.0f));
}
IM_FN double sin_reduced(double r) {
  const double z = r * r;
  return fma(r * z, poly(z, -0.1666666666666663, 0.0083333333333219153, -0.00019841269829459261, 2.7557313583836345e-6,
                         -2.5050742743234907e-8, 1.5895976903937264e-10), r);
}
IM_FN double cos_reduced(double r) {
  const double z = r * r, half = 0.5 * z, one = 1.0 - half;
  const double tail = poly(z, 0.041666666666666602, -0.0013888888888874478, 2.4801587289675938e-5, -2.7557314402547356e-7,
                           2.087572949721182e-9, -1.1359945132678254e-11);
  return one + (((1.0 - one) - half) + z * z * tail);
}
IM_FN float tan_reduced(float r) {
  const float z = r * r;
  return fma(r * z, poly(z, 0.333331555f, 0.133388266f, 0.0534094162f, 0.0244358517f, 0.00311182905f, 0.00938970875f), r);
}

// x = quarter pi/2 + r for every finite x: quarter is whole modulo 4, in [-4, 4]. 2/pi is held in pieces of 29, 29 and 53 bits, so
// that the first two products with the 24 bits of x are exact; for large x the pieces start further to the right, because what
// is left out on the left contributes multiples of 4.
IM_FN float reduce_quarter(float x, int32_t& quarter) {
  const double y = x, a = abs(y);
  const bool w1 = a >= 0x1p50, w2 = a >= 0x1p76, w3 = a >= 0x1p102;
  double high = w1 ? 0x1.b939105p-26 : 0x1.45f306dp-1;
  double middle = w1 ? 0x1.29fc274p-56 : 0x1.9391054p-30;
  double low = w1 ? 0x1.7d1f534ddc0dbp-84 : 0x1.4fe13abe8fa9ap-59;
  high = w2 ? 0x1.529fc27p-52 : high;
  middle = w2 ? 0x1.5f47d4cp-82 : middle;
  low = w2 ? 0x1.377036d8a5664p-110 : low;
  high = w3 ? 0x1.d5f47d4p-78 : high;
  middle = w3 ? 0x1.a6ee06dp-107 : middle;
  low = w3 ? 0x1.6295993c43904p-136 : low;
  double first = y * high, second = y * middle;
  first = fma(round(first * 0.25), -4.0, first);
  second = fma(round(second * 0.25), -4.0, second);
  const double third = y * low;
  const double n = round(first + second);
  quarter = static_cast<int32_t>(n);
  return static_cast<float>((((first - n) + second) + third) * 0x1.921fb54442d18p+0);
}

// For |x| <= small_angle, at a fraction of the cost: sin(x) = (-1)^n sin(x - n pi) and cos(x) = -(-1)^n sin(x - (n + 1/2) pi), so that
// one odd polynomial on [-pi/2, pi/2] serves both. `turns` is n or n + 1/2.
IM_FN float reduce_half_turns(float x, float turns) {
#ifdef IM_FMA
  return fma(turns, 0x1.ee59dap-49f, fma(turns, 0x1.777a5cp-24f, fma(turns, -0x1.921fb6p+1f, x)));
#else
  const double n = turns;
  return static_cast<float>((x - n * 0x1.921fb544p+1) - n * 0x1.0b4611a626331p-33);
#endif
}
IM_FN float sin_half_turn(float r) {
  const float z = r * r;
  return fma(r * z, poly(z, -0.166666597f, 0.00833307859f, -0.000198106907f, 2.60831598e-06f), r);
}

IM_FN double reduce_quarter_small(double x, int64_t& quarter) {
  const double shifted = fma(x, 0x1.45f306dc9c883p-1, Format<double>::shifter), n = shifted - Format<double>::shifter;
  quarter = bit_cast<int64_t>(shifted);
  return fma(n, 0x1.f1976b7ed8fbcp-110, fma(n, -0x1.1a62633145c07p-54, fma(n, -0x1.921fb54442d18p+0, x)));
}

// sin for shift 0, cos for shift 1
template <class T, class I>
IM_FN T sin_of_quarter(T r, I quarter, I shift) {
  const I q = quarter + shift;
  const T value = (q & 1) != 0 ? cos_reduced(r) : sin_reduced(r);
  using Bits = typename Format<T>::Bits;
  return bit_cast<T>(static_cast<Bits>(bit_cast<Bits>(value) ^ (static_cast<Bits>(q & 2) << (8 * sizeof(T) - 2))));
}

IM_FN float tan_of_quarter(float r, int32_t quarter) {
  const float t = tan_reduced(r);
  return (quarter & 1) != 0 ? -1.0f / t : t;
}

}  // namespace detail

// The *_small versions hold for |x| <= small_angle and cost a third or less: a loop first looks whether any of its angles is far,
// and is there once with each.
constexpr float small_angle = 65536.0f;
// The bits of |x| are in the order of the numbers, NaN last: a maximum of them takes two instructions.
IM_FN int32_t magnitude(float x) { return bit_cast<int32_t>(x) & 0x7fffffff; }
IM_FN int64_t magnitude(double x) { return bit_cast<int64_t>(x) & 0x7fffffffffffffff; }
IM_FN bool is_far(int32_t magnitude) { return magnitude > 0x47800000; }
IM_FN bool is_far(int64_t magnitude) { return magnitude > 0x40f0000000000000; }

IM_FN float sin_any(float x) {  // max 1.57
  int32_t quarter;
  const float r = detail::reduce_quarter(x, quarter);
  const float result = detail::sin_of_quarter(r, quarter, 0);
  return x == 0.0f ? x : result;
}
IM_FN float cos_any(float x) {  // max 1.57
  int32_t quarter;
  const float r = detail::reduce_quarter(x, quarter);
  return detail::sin_of_quarter(r, quarter, 1);
}
IM_FN float tan(float x) {  // max 3.03
  int32_t quarter;
  const float r = detail::reduce_quarter(x, quarter);
  const float result = detail::tan_of_quarter(r, quarter);
  return x == 0.0f ? x : result;
}
IM_FN float sin_small(float x) {  // max 1.72
  using F = detail::Format<float>;
  const float shifted = fma(x, 0x1.45f306p-2f, F::shifter), turns = shifted - F::shifter;
  const uint32_t odd = bit_cast<uint32_t>(shifted) << 31;
  const float value = detail::sin_half_turn(detail::reduce_half_turns(x, turns));
  return x == 0.0f ? x : bit_cast<float>(bit_cast<uint32_t>(value) ^ odd);
}
IM_FN float cos_small(float x) {  // max 1.76
  using F = detail::Format<float>;
  const float shifted = fma(x, 0x1.45f306p-2f, -0.5f) + F::shifter, turns = (shifted - F::shifter) + 0.5f;
  const uint32_t even = ~bit_cast<uint32_t>(shifted) << 31;
  const float value = detail::sin_half_turn(detail::reduce_half_turns(x, turns));
  return bit_cast<float>(bit_cast<uint32_t>(value) ^ even);
}
#ifdef IM_FMA
IM_FN double sin_small(double x) {  // max 1.10
  int64_t quarter;
  const double r = detail::reduce_quarter_small(x, quarter);
  const double result = detail::sin_of_quarter(r, quarter, int64_t(0));
  return x == 0.0 ? x : result;
}
IM_FN double cos_small(double x) {  // max 1.34
  int64_t quarter;
  const double r = detail::reduce_quarter_small(x, quarter);
  return detail::sin_of_quarter(r, quarter, int64_t(1));
}
#else  // the reduction needs products that are exact
IM_FN double sin_small(double x) { return __builtin_sin(x); }
IM_FN double cos_small(double x) { return __builtin_cos(x); }
#endif

IM_FN float sin(float x) { return sin_any(x); }
IM_FN float cos(float x) { return cos_any(x); }
IM_FN double sin(double x) { return __builtin_sin(x); }  // libm
IM_FN double cos(double x) { return __builtin_cos(x); }  // libm
IM_FN double tan(double x) { return __builtin_tan(x); }  // libm

namespace detail {

// atan of 0 <= t <= 1
IM_FN float atan_unit(float t) {
  const float z = t * t;
  return fma(t * z, poly(z, -0.333331525f, 0.199937657f, -0.142109826f, 0.106656961f, -0.075515762f, 0.0432051234f, -0.0163644627f,
                         0.0029200092f), t);
}
// asin of |x| <= 1/2, given z = x^2
IM_FN float asin_half(float x, float z) {
  return fma(x * z, poly(z, 0.166667521f, 0.0749530867f, 0.0454694331f, 0.0241830759f, 0.0421606265f), x);
}
constexpr float pi = 0x1.921fb6p+1f, pi_low = -0x1.777a5cp-24f, half_pi = 0x1.921fb6p+0f, half_pi_low = -0x1.777a5cp-25f;

}  // namespace detail

IM_FN float atan(float x) {  // max 1.46
  const float a = abs(x);
  const bool inverted = a > 1.0f;
  const float p = detail::atan_unit(inverted ? 1.0f / a : a);
  return copysign(inverted ? detail::half_pi - (p - detail::half_pi_low) : p, x);
}
IM_FN float atan2(float y, float x) {  // max 1.62
  const float ay = abs(y), ax = abs(x);
  const bool steep = ay > ax;
  const float big = steep ? ay : ax, small = steep ? ax : ay;
  float t = small / big;
  t = big == 0.0f ? 0.0f : t;
  t = small == __builtin_inff() ? 1.0f : t;
  float p = detail::atan_unit(t);
  p = steep ? detail::half_pi - (p - detail::half_pi_low) : p;
  p = signbit(x) ? detail::pi - (p - detail::pi_low) : p;
  p = copysign(p, y);
  return (x != x) | (y != y) ? x + y : p;
}
IM_FN float asin(float x) {  // max 2.35
  const float a = abs(x);
  const bool outer = a > 0.5f;
  const float z = outer ? 0.5f * (1.0f - a) : a * a;
  const float p = detail::asin_half(outer ? sqrt(z) : a, z);
  return copysign(outer ? detail::half_pi - (2.0f * p - detail::half_pi_low) : p, x);
}
IM_FN float acos(float x) {  // max 1.11
  const float a = abs(x);
  const bool outer = a > 0.5f;
  const float z = outer ? 0.5f * (1.0f - a) : a * a;
  const float p = copysign(detail::asin_half(outer ? sqrt(z) : a, z), x);
  const float inner = detail::half_pi - (p - detail::half_pi_low);
  const float outside = x < 0.0f ? detail::pi + (2.0f * p + detail::pi_low) : 2.0f * p;
  return outer ? outside : inner;
}
IM_FN double atan(double x) { return __builtin_atan(x); }                        // libm
IM_FN double atan2(double y, double x) { return __builtin_atan2(y, x); }         // libm
IM_FN double asin(double x) { return __builtin_asin(x); }                        // libm
IM_FN double acos(double x) { return __builtin_acos(x); }                        // libm

// ---- error function, gamma ---------------------------------------------------------------------------------------------------

namespace detail {

// erf of |x| <= 0.6
IM_FN float erf_small(float x) {
  return fma(x, poly(x * x, 0.128379151f, -0.37612462f, 0.112803549f, -0.0266200975f, 0.00447596703f), x);
}

}  // namespace detail

// erf(t) = 1 - 2^P(t) for large t, with the power's exponent added to the bits of its mantissa.
IM_FN float erf(float x) {  // max 1.93
  using F = detail::Format<float>;
  const float a = abs(x), small = detail::erf_small(a);
  const float t = a > 3.95f ? 3.95f : a;
  const float exponent = detail::poly(t, 4.37566923e-5f, -1.62834978f, -0.916608214f, -0.152448833f, 0.0333648138f, -0.00473897299f,
                                      0.000320554682f);
  const float shifted = exponent + F::shifter, r = exponent - (shifted - F::shifter);
  const float mantissa = detail::poly(r, 1.0f, 0.693147004f, 0.240222439f, 0.0555070303f, 0.00967143755f, 0.00132731011f);
  const float power = bit_cast<float>(bit_cast<uint32_t>(mantissa) + (bit_cast<uint32_t>(shifted) << F::mantissa));
  return copysign(!(a >= 0.6f) ? small : 1.0f - power, x);  // NaN takes the first
}

IM_FN float erfc(float x) {  // max 3.77
  const float a = abs(x);
  const float t = a > 10.06f ? 10.06f : a;
  const float q = (t - 2.0f) / (t + 2.0f);
  const float p = detail::poly(q, 1.27697837f, -0.0927638263f, -0.166029885f, 0.164051279f, -0.0542252809f, -0.0080341585f, 0.00874077063f,
                               0.00127007009f, -0.0014769691f, -0.000437619805f, 0.000204619981f, 0.000105891806f);
  const float square = t * t, lost = fma(t, t, -square);
  const float e = detail::exp_times(-square, 0.0f);
  float result = (p / fma(t, 2.0f, 1.0f)) * (e - e * lost);
  result = a > 10.06f ? 0.0f : result;
  result = x < 0.0f ? 2.0f - result : result;
  return a < 0.6f ? 1.0f - detail::erf_small(x) : result;
}
IM_FN double erf(double x) {  // max 0.99
  const double a = abs(x), z = a * a;
  const double small = detail::poly(z, 0.12837916709551253, -0.37612638903182344, 0.11283791670885693, -0.026866170631903365,
                                    0.0052239774963300893, -0.00085483196624258325, 0.00012055070662032747, -1.4919621179604566e-5,
                                    1.6372447302362468e-6, -1.5526092230344551e-7, 1.0210191163800475e-8);
  const double t = a > 5.95 ? 5.95 : a;
  const double exponent = detail::poly(
      t, -6.8234351803722978e-8, -1.1283784420792902, -0.63662330865148697, -0.10276217831094368, 0.019107979397109683,
      0.00023661339694592602, -0.0017197575827339745, 0.00059806756047636549, -1.4993245356605615e-5, -8.6805474264046377e-5,
      5.2268567790180237e-5, -1.9046741598988992e-5, 5.0281641993225483e-6, -1.0018782947835317e-6, 1.5060012221397895e-7,
      -1.6640320542834873e-8, 1.2784508656688058e-9, -6.1067141778454453e-11, 1.3659208078568807e-12);
  const double large = 1.0 - detail::exp_middle(exponent);
  return copysign(!(a >= 0.9) ? fma(a, small, a) : large, x);
}
IM_FN double erfc(double x) { return __builtin_erfc(x); }  // libm
IM_FN float lgamma(float x) { return __builtin_lgammaf(x); }    // libm
IM_FN double lgamma(double x) { return __builtin_lgamma(x); }  // libm

// ---- powers, division --------------------------------------------------------------------------------------------------------

// |x|^y as 2^(y log2 |x|) in double: float's range and precision leave room there for every rounding error.
IM_FN float pow(float x, float y) {  // max 0.53
  const float ax = abs(x);
  double e;
  const double f = detail::split_log(static_cast<double>(ax), e);
  const double s = f / (2.0 + f), z = s * s;
  const double p = detail::poly(z, 2.8853900817778473, 0.96179669411855506, 0.57707794072490559, 0.41220943122031317, 0.31989786787023777,
                                0.28301842045255515);
  double logarithm = fma(s, p, e);
  logarithm = ax == 0.0f ? -__builtin_inf() : logarithm;
  logarithm = ax < __builtin_inff() ? logarithm : static_cast<double>(ax);
  double t = y * logarithm;
  t = (ax == 1.0f) & (y == y) ? 0.0 : t;
  t = t > 200.0 ? 200.0 : t;
  t = t < -200.0 ? -200.0 : t;
  const double shifted = t + detail::Format<double>::shifter;
  const double r = t - (shifted - detail::Format<double>::shifter);
  const double m = detail::poly(r, 1.0000000005538214, 0.69314720575517375, 0.24022646895318459, 0.055503287816691206,
                                0.009618487842904682, 0.0013399932001365844, 0.00015345787984623281);
  float result = static_cast<float>(m * detail::pow2_shifted(shifted));
  const bool whole = round(y) == y, odd = whole & (round(0.5f * y) != 0.5f * y);
  result = signbit(x) & odd ? -result : result;
  result = (x < 0.0f) & (ax < __builtin_inff()) & !whole ? __builtin_nanf("") : result;
  return (y == 0.0f) | (x == 1.0f) ? 1.0f : result;
}
IM_FN double pow(double x, double y) { return __builtin_pow(x, y); }  // libm

IM_FN float fmod(float a, float b) { return __builtin_fmodf(a, b); }    // libm, exact
IM_FN double fmod(double a, double b) { return __builtin_fmod(a, b); }  // libm, exact

// The remainder has the sign of the divisor, as Python's % and torch.remainder.
template <class T>
IM_FN T float_mod(T a, T b) {
  const T r = fmod(a, b);
  return (r != T(0)) & ((b < T(0)) != (r < T(0))) ? r + b : r;
}
IM_FN float mod(float a, float b) { return float_mod(a, b); }
IM_FN double mod(double a, double b) { return float_mod(a, b); }

// floor(a / b) as torch.floor_divide computes it: from the exact remainder, so that a rounded quotient cannot step over a whole number.
template <class T>
IM_FN T float_floordiv(T a, T b) {
  const T r = fmod(a, b);
  T quotient = (a - r) / b;
  quotient = (r != T(0)) & ((b < T(0)) != (r < T(0))) ? quotient - T(1) : quotient;
  T whole = floor(quotient);
  whole = quotient - whole > T(0.5) ? whole + T(1) : whole;
  whole = quotient == T(0) ? copysign(T(0), a / b) : whole;
  return b == T(0) ? a / b : whole;
}
IM_FN float floordiv(float a, float b) { return float_floordiv(a, b); }
IM_FN double floordiv(double a, double b) { return float_floordiv(a, b); }
IM_FN float truncdiv(float a, float b) { return trunc(a / b); }
IM_FN double truncdiv(double a, double b) { return trunc(a / b); }
IM_FN float hypot(float a, float b) {  // max 0.51
  const double x = a, y = b;
  const float result = static_cast<float>(sqrt(x * x + y * y));
  return isinf(a) | isinf(b) ? __builtin_inff() : result;
}
IM_FN double hypot(double a, double b) { return __builtin_hypot(a, b); }  // libm

#undef IM_BOTH
}  // namespace intarsia
