// sin and cos of whole vectors, with a branch: included by intarsia_math.h, which says when and why.
#pragma once

extern "C" {
#pragma omp declare simd notinbranch
float intarsia_sin(float) noexcept __attribute__((const));
#pragma omp declare simd notinbranch
float intarsia_cos(float) noexcept __attribute__((const));
}

namespace intarsia {
namespace detail {

template <int lanes>
struct Vector;
template <>
struct Vector<4> {
  typedef float type __attribute__((vector_size(16)));
  typedef int32_t bits __attribute__((vector_size(16)));
  static IM_FN_MEMBER bool any(bits mask) { return __builtin_ia32_movmskps((type)mask) != 0; }
};
#ifdef __AVX__
template <>
struct Vector<8> {
  typedef float type __attribute__((vector_size(32)));
  typedef int32_t bits __attribute__((vector_size(32)));
  static IM_FN_MEMBER bool any(bits mask) { return __builtin_ia32_movmskps256((type)mask) != 0; }
};
#endif
#ifdef __AVX512F__
template <>
struct Vector<16> {
  typedef float type __attribute__((vector_size(64)));
  typedef int32_t bits __attribute__((vector_size(64)));
  static IM_FN_MEMBER bool any(bits mask) { return __builtin_ia32_cmpd512_mask(mask, bits{}, 4, 0xffff) != 0; }
};
#endif

#define IM_OF_VECTOR(name, letter, lanes)                                                                             \
  static Vector<lanes>::type name##_of_##letter(Vector<lanes>::type) __asm__("_ZGV" #letter "N" #lanes "v_intarsia_" #name); \
  __attribute__((used, noinline)) static Vector<lanes>::type name##_of_##letter(Vector<lanes>::type x) {              \
    Vector<lanes>::type out;                                                                                          \
    const auto magnitude = (Vector<lanes>::bits)x & 0x7fffffff; /* its order is that of the numbers; NaN comes last */ \
    if (__builtin_expect(Vector<lanes>::any(magnitude > 0x47800000), 0)) {                                            \
      for (int i = 0; i < lanes; i++) out[i] = name##_any(x[i]);                                                      \
    } else {                                                                                                          \
      for (int i = 0; i < lanes; i++) out[i] = name##_small(x[i]);                                                    \
    }                                                                                                                 \
    return out;                                                                                                       \
  }
#define IM_OF_SCALAR(name)                                            \
  static float name##_of_one(float) __asm__("intarsia_" #name);       \
  __attribute__((used, noinline)) static float name##_of_one(float x) { return name##_any(x); }
#define IM_TRIGONOMETRY(letter, lanes) IM_OF_VECTOR(sin, letter, lanes) IM_OF_VECTOR(cos, letter, lanes)
IM_OF_SCALAR(sin)
IM_OF_SCALAR(cos)
IM_TRIGONOMETRY(b, 4)
#ifdef __AVX__
IM_TRIGONOMETRY(c, 8)
#endif
#ifdef __AVX2__
IM_TRIGONOMETRY(d, 8)
#endif
#ifdef __AVX512F__
IM_TRIGONOMETRY(e, 16)
#endif
#undef IM_OF_VECTOR
#undef IM_OF_SCALAR
#undef IM_TRIGONOMETRY

}  // namespace detail

}  // namespace intarsia
