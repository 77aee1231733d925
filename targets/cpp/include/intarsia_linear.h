// Products of many rows with a weight, and what follows them: out[row][column] = tail(sum over i of x[row][i] * w[column][i]).
//
// The weight lies in panels of `panel_columns` columns: for each i, or each pair of them in bfloat16, what belongs to the columns of the panel. The sums
// of a few rows and one panel are in registers over all i, so that a cycle is a multiplication and little else. x stays in the second cache
// while panels pass by. Either factor may be elements that are computed: rows of x once, a panel of the weight when its turn comes.
#pragma once
#include "intarsia_tail.h"

namespace intarsia {

struct Linear {
  int64_t rows, inner, outer;
  int64_t tiles, tall, height;  // groups of rows: the first `tall` are of `height` + 1 rows, the others of `height`
};

constexpr int64_t panel_columns = 2 * lanes;
constexpr int64_t most_rows = 14;                   // of a tile: 28 sums, 2 vectors of the weight and a value of x in 32 registers
constexpr int64_t rows_in_cache = 720 * 1024;       // bytes of x that stay in the second cache
constexpr int64_t same_places = 4096;               // rows so far apart share the few places of the first cache
constexpr int64_t computed_at_once = 256;           // numbers of each column, in the first cache

// `Rows` rows, `pitch` elements apart, by an address for every third: as many as there are registers for.
template <class T, int Rows>
struct RowPlaces {
  const T* place[(Rows + 2) / 3];
  int64_t pitch;
  IM_FN_MEMBER RowPlaces(const T* x, int64_t pitch) : pitch(pitch) {
    #pragma GCC unroll 5
    for (int p = 0; p < (Rows + 2) / 3; ++p) place[p] = x + 3 * p * pitch;
    keep();
  }
  IM_FN_MEMBER const T* row(int r) const { return place[r / 3] + r % 3 * pitch; }
  IM_FN_MEMBER void advance(int64_t count) {
    #pragma GCC unroll 5
    for (int p = 0; p < (Rows + 2) / 3; ++p) place[p] += count;
    keep();
  }
  // The compiler must not see how they are related: it would use one register for each row, and have none left.
  IM_FN_MEMBER void keep() {
    #pragma GCC unroll 5
    for (int p = 0; p < (Rows + 2) / 3; ++p) asm("" : "+r"(place[p]));
  }
};

// sums[row][column] for `Rows` rows of x and the first vectors of a panel.
template <class T, int Rows, int Vectors> struct TileSums;

// Runs of products are summed in registers and then added to sums, so that the rounding error does not grow with `inner`: MKL sums in runs, too.
constexpr int64_t summed_products = 256;

template <int Rows, int Vectors>
struct TileSums<float, Rows, Vectors> {
  [[gnu::noinline]] static void of(const float* x, int64_t pitch, const float* w, int64_t inner, float* sums) {
    RowPlaces<float, Rows> at(x, pitch);
    #pragma GCC unroll 1
    for (int64_t from = 0; from < inner; from += summed_products) {
      Floats local[Rows][Vectors] = {};
      const int64_t count = index_min(summed_products, inner - from);
      #pragma GCC unroll 1
      for (int64_t k = 0; k < count; ++k, w += panel_columns) {
        Floats given[Vectors];
        #pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
          given[v] = load(w + v * lanes);
          if (v * lanes % 16 == 0) __builtin_prefetch(w + v * lanes + 8 * panel_columns);  // once a line of the cache
        }
        #pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const Floats factor = *at.row(r) - Floats{};  // the value in all lanes
          #pragma GCC unroll 2
          for (int v = 0; v < Vectors; ++v) local[r][v] = multiply_add(factor, given[v], local[r][v]);
        }
        at.advance(1);
      }
      set_aside<Rows, Vectors>(sums, panel_columns, local, from > 0);
    }
  }
};

// Pairs of bfloat16 in 32 bits: `inner` is even, and so is each row's distance to the next.
typedef uint32_t Pairs __attribute__((vector_size(lanes * 4)));
typedef uint32_t LoosePairs __attribute__((vector_size(lanes * 4), aligned(4), may_alias));
typedef uint32_t LoosePair __attribute__((aligned(2), may_alias));

IM_FN Floats dot_pairs(Pairs a, Pairs b, Floats sums) {
#if defined(__AVX512BF16__)
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
  return sums;
#else
  sums = multiply_add((Floats)(a << 16), (Floats)(b << 16), sums);
  return multiply_add((Floats)(a & 0xffff0000u), (Floats)(b & 0xffff0000u), sums);
#endif
}

template <int Rows, int Vectors>
struct TileSums<bf16, Rows, Vectors> {
  [[gnu::noinline]] static void of(const bf16* x, int64_t pitch, const bf16* w, int64_t inner, float* sums) {
    Floats local[Rows][Vectors] = {};
    RowPlaces<bf16, Rows> at(x, pitch);
    #pragma GCC unroll 1
    for (int64_t k = 0; k < inner; k += 2, w += 2 * panel_columns) {
      Pairs given[Vectors];
      #pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) {
        given[v] = *reinterpret_cast<const LoosePairs*>(w + 2 * v * lanes);
        __builtin_prefetch(w + 2 * v * lanes + 16 * panel_columns);
      }
      #pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const Pairs factor = *reinterpret_cast<const LoosePair*>(at.row(r)) - Pairs{};
        #pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) local[r][v] = dot_pairs(factor, given[v], local[r][v]);
      }
      at.advance(2);
    }
    set_aside<Rows, Vectors>(sums, panel_columns, local, false);
  }
};

template <class T> using Tile = void (*)(const T* x, int64_t pitch, const T* w, int64_t inner, float* sums);

// A factor is memory, packed where it is the weight, or elements that are computed: `at(row, i)` gives one.
template <class Factor> constexpr bool is_computed(const Factor&) { return true; }
template <class T> constexpr bool is_computed(const T* const&) { return false; }
template <class T, class Factor> IM_FN const T* memory_of(const Factor&) { return nullptr; }
template <class T> IM_FN const T* memory_of(const T* const& x) { return x; }

// The weight as it lies: columns and their elements so many numbers apart.
template <class T>
struct Lying {
  const T* w;
  int64_t column_step, step;
  IM_FN_MEMBER T at(int64_t column, int64_t i) const { return w[column * column_step + i * step]; }
};

template <class T>
IM_FN void copy_row(const T* x, int64_t row, int64_t inner, T* to) { __builtin_memcpy(to, x + row * inner, inner * sizeof(T)); }
template <class T, class Elements>
IM_FN void copy_row(const Elements x, int64_t row, int64_t inner, T* to) {
  #pragma omp simd
  for (int64_t i = 0; i < inner; ++i) to[i] = T(x.at(row, i));
}

template <class T>
IM_FN const T* panel_of(const T* panels, int64_t inner, int64_t column, int64_t, T*) { return panels + column * inner; }
// The panel of `count` columns from `column` on, in `to`; the weight behind them is not read.
template <class T, class Elements>
IM_FN const T* panel_of(const Elements& w, int64_t inner, int64_t column, int64_t count, T* to) {
  alignas(64) T rows[panel_columns * computed_at_once];
  for (int64_t from = 0; from < inner; from += computed_at_once) {
    const int64_t size = index_min(computed_at_once, inner - from);
    for (int64_t c = 0; c < panel_columns; ++c) {
      T* const row = rows + c * computed_at_once;
      const int64_t there = column + index_min(c, count - 1);
      #pragma omp simd
      for (int64_t i = 0; i < size; ++i) row[i] = T(w.at(there, from + i));
    }
    T* const there = to + from * panel_columns;
    if constexpr (sizeof(T) == 4) transpose(rows, computed_at_once, panel_columns, there, panel_columns, size);
    else  // pairs
      for (int64_t c = 0; c < panel_columns; ++c)
        for (int64_t i = 0; i < size; ++i) there[i / 2 * 2 * panel_columns + 2 * c + i % 2] = rows[c * computed_at_once + i];
  }
  return to;
}

// `low` and `tall` sum a whole panel for tiles of `height` and `height` + 1 rows, the others one vector of it, for a last panel of so few columns.
template <class T, class X, class Weight, class O>
static void linear(const Linear& s, const X& x, const Weight& w, const Tail<O>& tail, Tile<T> low, Tile<T> tall, Tile<T> low_rest, Tile<T> tall_rest) {
  const int64_t panels = (s.outer + panel_columns - 1) / panel_columns;
  const int64_t threads = threads_for(s.rows * s.inner * s.outer);
  const bool crowded = s.rows > 4 && s.inner * sizeof(T) % same_places == 0, apart = crowded || is_computed(x);
  const int64_t pitch = crowded ? s.inner + 64 / sizeof(T) : s.inner;
  Scratch<T> copied(apart ? s.rows * pitch : 0);
  if (!copied.data) return;
  // Threads share the panels, or the rows where they divide these more evenly; a panel that is computed serves all rows.
  const int64_t most_tiles = (s.tiles + threads - 1) / threads, most_panels = (panels + threads - 1) / threads;
  const bool by_rows = !is_computed(w) && most_tiles * panels < most_panels * s.tiles;
  const int64_t in_cache = index_max(1, rows_in_cache / (int64_t(sizeof(T)) * s.inner * s.height));
  const int64_t parts = by_rows ? 1 : is_computed(w) ? panels : threads;
  const int64_t blocks = is_computed(w) ? 1 : (s.tiles + in_cache - 1) / in_cache, chunks = by_rows ? round_up(blocks, threads) : blocks;
  #pragma omp parallel if (threads > 1)
  {
    const T* rows = memory_of<T>(x);
    if (apart) {
      #pragma omp for schedule(static)
      for (int64_t r = 0; r < s.rows; ++r) copy_row(x, r, s.inner, copied.data + r * pitch);
      rows = copied.data;
    }
    Scratch<T> made(is_computed(w) ? s.inner * panel_columns : 0);
    alignas(64) float sums[most_rows * panel_columns];
    #pragma omp for schedule(static)
    for (int64_t task = 0; task < parts * chunks; ++task) {
      if (!made.data) continue;
      const int64_t part = task / chunks, chunk = task % chunks;
      for (int64_t p = panels * part / parts; p < panels * (part + 1) / parts; ++p) {
        const int64_t column = p * panel_columns, count = index_min(panel_columns, s.outer - column);
        const T* const panel = panel_of(w, s.inner, column, count, made.data);
        for (int64_t t = s.tiles * chunk / chunks; t < s.tiles * (chunk + 1) / chunks; ++t) {
          const bool is_tall = t < s.tall;
          const int64_t row = t * s.height + index_min(t, s.tall);
          (count > lanes ? is_tall ? tall : low : is_tall ? tall_rest : low_rest)(rows + row * pitch, pitch, panel, s.inner, sums);
          tail.apply(tail, sums, panel_columns, row * s.outer + column, column, s.height + is_tall, count);
        }
      }
    }
  }
}

}  // namespace intarsia
