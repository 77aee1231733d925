// Products of many rows with a weight that was packed, and what follows them: out[row][column] = step(sum over i of x[row][i] * w[column][i]).
//
// The weight lies in panels of `panel_columns` columns: for each i, or each pair of them in bfloat16, what belongs to the columns of the panel. The sums
// of up to 14 rows and one panel are in registers over all i, so that a cycle is a multiplication and little else. x stays in the second cache
// while panels pass by.
#pragma once
#include "intarsia_matmul.h"

namespace intarsia {

struct Linear {
  int64_t rows, inner, outer;
  int64_t tiles, tall, height;  // groups of rows: the first `tall` are of `height` + 1 rows, the others of `height`
};

constexpr int64_t panel_columns = 32;
constexpr int64_t most_rows = 14;                   // of a tile: 28 sums, 2 vectors of the weight and a value of x in 32 registers
constexpr int64_t rows_in_cache = 720 * 1024;       // bytes of x that stay in the second cache
constexpr int64_t same_places = 4096;               // rows so far apart share the few places of the first cache
constexpr int64_t worth_threads = 1000000;          // products

// What the steps behind the sums read and write; `in` are the bias and tensors of the result's shape.
template <class T>
struct Behind {
  T* out;
  const T* in[8];
};

// Up to 14 rows, `pitch` elements apart, by five addresses: as many as there are registers for.
template <class T>
struct RowPlaces {
  const T *first, *third, *sixth, *ninth, *twelfth;
  int64_t pitch;
  IM_FN_MEMBER RowPlaces(const T* x, int64_t pitch)
      : first(x), third(x + 3 * pitch), sixth(x + 6 * pitch), ninth(x + 9 * pitch), twelfth(x + 12 * pitch), pitch(pitch) {
    keep();
  }
  IM_FN_MEMBER const T* row(int r) const {
    return (r < 3 ? first : r < 6 ? third : r < 9 ? sixth : r < 12 ? ninth : twelfth) + r % 3 * pitch;
  }
  IM_FN_MEMBER void advance(int64_t count) {
    first += count, third += count, sixth += count, ninth += count, twelfth += count;
    keep();
  }
  // The compiler must not see how they are related: it would use one register for each row, and have none left.
  IM_FN_MEMBER void keep() { asm("" : "+r"(first), "+r"(third), "+r"(sixth), "+r"(ninth), "+r"(twelfth)); }
};

// sums[row][column] for `Rows` rows of x and the first vectors of a panel.
template <class T, int Rows, int Vectors> struct TileSums;

// Runs of products are summed in registers and then added to sums, so that the rounding error does not grow with `inner`: MKL sums in runs, too.
constexpr int64_t summed_products = 256;

template <int Rows, int Vectors>
struct TileSums<float, Rows, Vectors> {
  [[gnu::noinline]] static void of(const float* x, int64_t pitch, const float* w, int64_t inner, float* sums) {
    RowPlaces<float> at(x, pitch);
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
          __builtin_prefetch(w + v * lanes + 8 * panel_columns);
        }
        #pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const Floats factor = *at.row(r) - Floats{};  // the value in all lanes
          #pragma GCC unroll 2
          for (int v = 0; v < Vectors; ++v) local[r][v] = multiply_add(factor, given[v], local[r][v]);
        }
        at.advance(1);
      }
      #pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r)
        #pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
          float* const to = sums + r * panel_columns + v * lanes;
          store(to, from ? load(to) + local[r][v] : local[r][v]);
        }
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
    RowPlaces<bf16> at(x, pitch);
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
    #pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
      #pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) store(sums + r * panel_columns + v * lanes, local[r][v]);
  }
};

template <class T> using Tile = void (*)(const T* x, int64_t pitch, const T* w, int64_t inner, float* sums);
template <class T> using Finish = void (*)(const Behind<T>& behind, const float* sums, int64_t at, int64_t column, int64_t rows, int64_t count,
                                           int64_t outer);

// Step::of(v, behind, at, column) is the value that is stored for the sum v; element `at` of the result is the first.
template <class Step, class T>
static void finish_tile(const Behind<T>& given, const float* sums, int64_t at, int64_t column, int64_t rows, int64_t count, int64_t outer) {
  const Behind<T> behind = given;  // a copy that no store can change
  for (int64_t r = 0; r < rows; ++r, at += outer, sums += panel_columns) {
    int64_t c = 0;
    for (; c + lanes <= count; c += lanes) {
      #pragma omp simd
      for (int l = 0; l < lanes; ++l) behind.out[at + c + l] = T(Step::of(sums[c + l], behind, at + c + l, column + c + l));
    }
    for (; c < count; ++c) behind.out[at + c] = T(Step::of(sums[c], behind, at + c, column + c));
  }
}

// `low` and `tall` sum a whole panel for tiles of `height` and `height` + 1 rows, the others one vector of it, for a last panel of so few columns.
template <class T>
static void linear(const Linear& s, const T* x, const T* w, const Behind<T>& behind, Finish<T> finish, Tile<T> low, Tile<T> tall,
                   Tile<T> low_rest, Tile<T> tall_rest) {
  const int64_t panels = (s.outer + panel_columns - 1) / panel_columns;
  const int64_t threads = s.rows * s.inner * s.outer > worth_threads ? max_threads() : 1;
  const bool apart = s.rows > 4 && s.inner * sizeof(T) % same_places == 0;
  const int64_t pitch = apart ? s.inner + 64 / sizeof(T) : s.inner;
  Scratch<T> copied(apart ? s.rows * pitch : 0);
  if (!copied.data) return;
  // Threads share the panels, or the rows where they divide these more evenly.
  const int64_t most_tiles = (s.tiles + threads - 1) / threads, most_panels = (panels + threads - 1) / threads;
  const bool by_rows = most_tiles * panels < most_panels * s.tiles;
  const int64_t in_cache = index_max(1, rows_in_cache / (int64_t(sizeof(T)) * s.inner * s.height));
  const int64_t parts = by_rows ? 1 : threads, blocks = (s.tiles + in_cache - 1) / in_cache;
  const int64_t chunks = by_rows ? round_up(blocks, threads) : blocks;
  #pragma omp parallel if (threads > 1)
  {
    const T* rows = x;
    if (apart) {
      #pragma omp for schedule(static)
      for (int64_t r = 0; r < s.rows; ++r) __builtin_memcpy(copied.data + r * pitch, x + r * s.inner, s.inner * sizeof(T));
      rows = copied.data;
    }
    alignas(64) float sums[most_rows * panel_columns];
    #pragma omp for schedule(static)
    for (int64_t task = 0; task < parts * chunks; ++task) {
      const int64_t part = task / chunks, chunk = task % chunks;
      for (int64_t p = panels * part / parts; p < panels * (part + 1) / parts; ++p) {
        const int64_t column = p * panel_columns, count = index_min(panel_columns, s.outer - column);
        for (int64_t t = s.tiles * chunk / chunks; t < s.tiles * (chunk + 1) / chunks; ++t) {
          const bool is_tall = t < s.tall;
          const int64_t row = t * s.height + index_min(t, s.tall);
          (count > lanes ? is_tall ? tall : low : is_tall ? tall_rest : low_rest)(rows + row * pitch, pitch, w + column * s.inner, s.inner, sums);
          finish(behind, sums, row * s.outer + column, column, s.height + is_tall, count, s.outer);
        }
      }
    }
  }
}

}  // namespace intarsia
