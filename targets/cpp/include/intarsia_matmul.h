// Small matrix products in registers: what attention, and products with few rows, are made of.
// Matrices are float in memory that the caller packed; sums are float, one accumulator an element, over k in order.
#pragma once
#include "intarsia_kernel.h"
#ifdef _OPENMP
extern "C" int omp_get_max_threads() noexcept;
#endif

namespace intarsia {

#if defined(__AVX512F__)
constexpr int lanes = 16, panel_vectors = 4;
#elif defined(__AVX2__)
constexpr int lanes = 8, panel_vectors = 2;
#elif defined(__ARM_NEON)
constexpr int lanes = 4, panel_vectors = 4;
#else
constexpr int lanes = 4, panel_vectors = 2;
#endif
constexpr int block_rows = 6;                 // rows of a block: 6 times panel_vectors accumulators fit in the registers
constexpr int panel = lanes * panel_vectors;  // columns of a panel

typedef float Floats __attribute__((vector_size(lanes * 4)));
typedef float LooseFloats __attribute__((vector_size(lanes * 4), aligned(4), may_alias));  // at any address

IM_FN Floats load(const float* from) { return *reinterpret_cast<const LooseFloats*>(from); }
IM_FN void store(float* to, Floats value) { *reinterpret_cast<LooseFloats*>(to) = value; }

#ifdef __has_builtin  // gcc has it from version 10 on, and before that cannot read a line that calls it
#if __has_builtin(__builtin_elementwise_fma)
#define IM_ELEMENTWISE_FMA 1
#endif
#endif

// a * b + c, rounded once where the processor has an instruction for it. -ffp-contract=off, so it has to be asked for.
IM_FN Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(IM_ELEMENTWISE_FMA)
  return __builtin_elementwise_fma(a, b, c);
#elif !defined(__clang__) && defined(__AVX512F__)
  return (Floats)__builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);  // 4: the rounding mode in force
#elif !defined(__clang__) && defined(__FMA__) && defined(__AVX2__)
  return (Floats)__builtin_ia32_vfmaddps256(a, b, c);
#elif !defined(__clang__) && defined(__aarch64__)
  return (Floats)__builtin_aarch64_fmav4sf(a, b, c);
#elif defined(IM_FMA)  // clang makes one instruction of all lanes
  for (int l = 0; l < lanes; ++l) c[l] = fma(a[l], b[l], c[l]);
  return c;
#else
  return a * b + c;
#endif
}

IM_FN Floats larger(Floats a, Floats b) { return a > b ? a : b; }

#if defined(__GNUC__) && !defined(__clang__)
// The lanes in pairs that are `Half` apart, turned: constants, which gcc does not make of a loop over lanes.
template <int... Lane> struct Lanes {
  template <int Half> IM_FN_MEMBER static Floats turned(Floats v) {
    typedef decltype(Floats{} == Floats{}) Places;
    return __builtin_shuffle(v, Places{(Lane ^ Half)...});
  }
};
template <int Count> struct FirstLanes : Lanes<__integer_pack(Count)...> {};

template <int Half = lanes / 2> IM_FN float sum(Floats v) {  // by halves: lane 0 + lane lanes/2 and so on
  v += FirstLanes<lanes>::template turned<Half>(v);
  if constexpr (Half > 1) return sum<Half / 2>(v);
  else return v[0];
}

template <int Half = lanes / 2> IM_FN float largest(Floats v) {  // by halves; NaN is not looked for
  v = larger(FirstLanes<lanes>::template turned<Half>(v), v);
  if constexpr (Half > 1) return largest<Half / 2>(v);
  else return v[0];
}
#else
IM_FN float sum(Floats v) {
  for (int half = lanes / 2; half; half /= 2)
    for (int l = 0; l < half; ++l) v[l] += v[l + half];
  return v[0];
}

IM_FN float largest(Floats v) {
  for (int half = lanes / 2; half; half /= 2)
    for (int l = 0; l < half; ++l) v[l] = v[l + half] > v[l] ? v[l + half] : v[l];
  return v[0];
}
#endif

// c[i][j] (+)= sum over k of a[i][k] * b[k][j], for `Rows` rows and `Vectors` vectors of columns; a[i][k] lies at a[i * a_pitch + k * a_step].
template <int Rows, int Vectors>
IM_FN void block_product(const float* a, int64_t a_pitch, const float* b, int64_t b_pitch, float* c, int64_t c_pitch,
                         int64_t depth, bool add, int64_t a_step = 1) {
  Floats sums[Rows][Vectors];
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < Vectors; ++j) sums[i][j] = add ? load(c + i * c_pitch + j * lanes) : Floats{};
  for (int64_t k = 0; k < depth; ++k) {
    Floats row[Vectors];
    for (int j = 0; j < Vectors; ++j) row[j] = load(b + k * b_pitch + j * lanes);
    for (int i = 0; i < Rows; ++i) {
      const Floats factor = a[i * a_pitch + k * a_step] - Floats{};  // the value in all lanes
      for (int j = 0; j < Vectors; ++j) sums[i][j] = multiply_add(factor, row[j], sums[i][j]);
    }
  }
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < Vectors; ++j) store(c + i * c_pitch + j * lanes, sums[i][j]);
}

// The same for `rows`, a multiple of block_rows, and `columns`, a multiple of `lanes`. Columns in [0, panel) lie at b, those of the next panel at
// b + panel_pitch, and so on.
static void product(const float* a, int64_t a_pitch, const float* b, int64_t b_pitch, int64_t panel_pitch, float* c,
                    int64_t c_pitch, int64_t rows, int64_t columns, int64_t depth, bool add, int64_t a_step = 1) {
  for (int64_t j = 0; j < columns; j += panel, b += panel_pitch) {
    const int64_t vectors = index_min(columns - j, panel) / lanes;
    for (int64_t i = 0; i < rows; i += block_rows) {
      const float* from = a + i * a_pitch;
      float* to = c + i * c_pitch + j;
      if (vectors == panel_vectors) block_product<block_rows, panel_vectors>(from, a_pitch, b, b_pitch, to, c_pitch, depth, add, a_step);
      else
        for (int64_t v = 0; v < vectors; ++v)
          block_product<block_rows, 1>(from, a_pitch, b + v * lanes, b_pitch, to + v * lanes, c_pitch, depth, add, a_step);
    }
  }
}

IM_FN int64_t max_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

IM_FN int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

}  // namespace intarsia
