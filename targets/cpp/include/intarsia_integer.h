// Integers and conversions of generated kernels: Python's division, torch's shifts and powers, casts between all storage types.
//
// Division by zero gives 0 here instead of a signal: eager raises, so whoever emits an integer division checks the divisor first.
// The smallest integer divided by -1 wraps.
#pragma once
#include "intarsia_types.h"

namespace intarsia {

template <class I>
struct Unsigned;
template <> struct Unsigned<int8_t> { using type = uint8_t; };
template <> struct Unsigned<int16_t> { using type = uint16_t; };
template <> struct Unsigned<int32_t> { using type = uint32_t; };
template <> struct Unsigned<int64_t> { using type = uint64_t; };
template <> struct Unsigned<uint8_t> { using type = uint8_t; };
template <> struct Unsigned<uint16_t> { using type = uint16_t; };
template <> struct Unsigned<uint32_t> { using type = uint32_t; };
template <> struct Unsigned<uint64_t> { using type = uint64_t; };

namespace detail {

template <bool fits_int32>
struct Widest32 { using type = int32_t; };
template <>
struct Widest32<false> { using type = int64_t; };

// a / b towards zero. Quotients of integers of up to 32 bits are exact in double after truncation, and vectorise there.
template <class I>
IM_FN I int_truncdiv(I a, I b) {
  if constexpr (sizeof(I) <= 4) {
    double quotient = static_cast<double>(a) / static_cast<double>(b == I(0) ? I(1) : b);
    using Wide = typename detail::Widest32<static_cast<I>(-1) < I(0) || sizeof(I) < 4>::type;
    quotient = sizeof(Wide) == 4 && quotient > 2147483647.0 ? -2147483648.0 : quotient;
    const I whole = static_cast<I>(static_cast<Wide>(quotient));
    return b == I(0) ? I(0) : whole;
  } else {
    const bool negate = b == static_cast<I>(-1) && static_cast<I>(-1) < I(0);
    const I safe = (b == I(0)) | negate ? I(1) : b;
    const I whole = a / safe;
    const I negated = static_cast<I>(0 - static_cast<uint64_t>(a));
    return b == I(0) ? I(0) : (negate ? negated : whole);
  }
}

template <class I>
IM_FN I wrap_submul(I a, I b, I c) {  // a - b * c, wrapping
  using U = uint64_t;
  return static_cast<I>(static_cast<U>(a) - static_cast<U>(b) * static_cast<U>(c));
}

}  // namespace detail

template <class I, class = typename Unsigned<I>::type>
IM_FN I truncdiv(I a, I b) { return detail::int_truncdiv(a, b); }
template <class I, class = typename Unsigned<I>::type>
IM_FN I fmod(I a, I b) { return detail::wrap_submul(a, detail::int_truncdiv(a, b), b); }
template <class I, class = typename Unsigned<I>::type>
IM_FN I floordiv(I a, I b) {
  const I quotient = detail::int_truncdiv(a, b), r = detail::wrap_submul(a, quotient, b);
  return static_cast<I>(quotient - static_cast<I>((b != I(0)) & (r != I(0)) & ((r < I(0)) != (b < I(0)))));
}
template <class I, class = typename Unsigned<I>::type>
IM_FN I mod(I a, I b) {
  const I r = detail::wrap_submul(a, detail::int_truncdiv(a, b), b);
  return static_cast<I>((b != I(0)) & (r != I(0)) & ((r < I(0)) != (b < I(0))) ? r + b : r);
}

// Shifts by a negative count or by the width and more: 0, or for right shifts of signed values the sign, as in torch.
template <class I, class U = typename Unsigned<I>::type>
IM_FN I shl(I a, I count) {
  constexpr U width = sizeof(I) * 8;
  const U n = static_cast<U>(count);
  return n < width ? static_cast<I>(static_cast<U>(a) << (n & (width - 1))) : I(0);
}
template <class I, class U = typename Unsigned<I>::type>
IM_FN I shr(I a, I count) {
  constexpr bool is_signed = static_cast<I>(-1) < I(0);
  constexpr U last = sizeof(I) * 8 - 1;
  const U n = static_cast<U>(count);
  const I shifted = static_cast<I>(a >> (n < last ? n : last));
  return is_signed || n <= last ? shifted : I(0);
}

// a^n by squaring, wrapping; a negative n gives 0 except for a = 1 and a = -1, as in torch.
template <class I, class U = typename Unsigned<I>::type>
IM_FN I pow(I a, I n) {
  const bool odd = (n & I(1)) != I(0);
  if (n < I(0)) return a == I(1) ? I(1) : (a == static_cast<I>(-1) ? (odd ? a : I(1)) : I(0));
  uint64_t base = static_cast<uint64_t>(a), result = 1;
  for (U left = static_cast<U>(n); left != 0; left = static_cast<U>(left >> 1)) {
    result = left & 1u ? result * base : result;
    base *= base;
  }
  return static_cast<I>(result);
}

template <class I, class U = typename Unsigned<I>::type>
IM_FN I abs(I x) { return x < I(0) ? static_cast<I>(0 - static_cast<U>(x)) : x; }
template <class I, class = typename Unsigned<I>::type>
IM_FN I bit_not(I x) { return static_cast<I>(~x); }
IM_FN bool bit_not(bool x) { return !x; }

// ---- conversions -------------------------------------------------------------------------------------------------------------

namespace detail {

template <class To, class From>
struct Cast {
  IM_FN To run(From x) { return static_cast<To>(x); }
};
template <class To>
struct Cast<To, bf16> {
  IM_FN To run(bf16 x) { return Cast<To, float>::run(static_cast<float>(x)); }
};
template <class To>
struct Cast<To, f16> {
  IM_FN To run(f16 x) { return Cast<To, float>::run(static_cast<float>(x)); }
};
template <class From>
struct Cast<bool, From> {
  IM_FN bool run(From x) { return x != From(0); }
};
template <>
struct Cast<bool, bf16> {
  IM_FN bool run(bf16 x) { return (x.bits & 0x7fffu) != 0; }
};
template <>
struct Cast<bool, f16> {
  IM_FN bool run(f16 x) { return (x.bits & 0x7fffu) != 0; }
};
template <class From>
struct Cast<bf16, From> {
  IM_FN bf16 run(From x) { return bf16(static_cast<float>(x)); }
};
template <class From>
struct Cast<f16, From> {
  IM_FN f16 run(From x) { return f16(static_cast<float>(x)); }
};
template <>
struct Cast<bf16, f16> {
  IM_FN bf16 run(f16 x) { return bf16(static_cast<float>(x)); }
};
template <>
struct Cast<f16, bf16> {
  IM_FN f16 run(bf16 x) { return f16(static_cast<float>(x)); }
};
template <>
struct Cast<bf16, bf16> {
  IM_FN bf16 run(bf16 x) { return x; }
};
template <>
struct Cast<f16, f16> {
  IM_FN f16 run(f16 x) { return x; }
};
template <class To, class From, class Wide>
struct FloatToInt {  // NaN and what does not fit gives the smallest Wide, as the processor's own conversion; then the low bits
  IM_FN To run(From x) {
    constexpr From limit = sizeof(Wide) == 4 ? From(2147483648.0) : From(9223372036854775808.0);
    const bool fits = (x >= -limit) & (x < limit);
    const Wide whole = static_cast<Wide>(fits ? x : -limit);
    return static_cast<To>(whole);
  }
};
#define IM_FLOAT_TO_INT(To, Wide)                                           \
  template <> struct Cast<To, float> : FloatToInt<To, float, Wide> {};      \
  template <> struct Cast<To, double> : FloatToInt<To, double, Wide> {};
IM_FLOAT_TO_INT(int8_t, int32_t)
IM_FLOAT_TO_INT(uint8_t, int32_t)
IM_FLOAT_TO_INT(int16_t, int32_t)
IM_FLOAT_TO_INT(uint16_t, int32_t)
IM_FLOAT_TO_INT(int32_t, int32_t)
IM_FLOAT_TO_INT(uint32_t, int64_t)
IM_FLOAT_TO_INT(int64_t, int64_t)
IM_FLOAT_TO_INT(uint64_t, int64_t)
#undef IM_FLOAT_TO_INT

}  // namespace detail

// im::cast<To>(x) between any two of the types here, as Tensor.to: no undefined behaviour for NaN and out of range.
template <class To, class From>
IM_FN To cast(From x) { return detail::Cast<To, From>::run(x); }

// An integer as a floating point number, never -0: of float(int(x)) gcc makes trunc(x), which keeps the sign of -0.5.
template <class To, class From>
IM_FN To whole(From x) {
  const To number = static_cast<To>(x);
  return number + To(0);
}

}  // namespace intarsia
