// Convolutions with a window of 3x3 and steps of 1 in fewer products: Winograd's F(4x4, 3x3), 36 products for 16 outputs instead of 144.
//
// A tile is 4x4 pixels of output, which read 6x6 pixels d of input:  out = A' ((G g G') * (B' d B)) A, * by element and summed over channels.
// These are the transforms for the points 0, +-3/4, +-3/2 and infinity: exact in float, with a third to a half of the rounding error of the
// customary 0, +-1, +-2. The error is 2.4 to 3.3 times that of oneDNN's plain sum for normal numbers, 3 to 4 times for none below zero, with 16 to
// 512 channels. The weights G g G' are made by the caller:
// (blocks of 16 output channels, 36, channels, 16). An infinite or NaN input makes all outputs of its tiles NaN or infinite.
#pragma once
#include "intarsia_convolution.h"

namespace intarsia {

constexpr int64_t summed_run = 32;  // the transforms enlarge the error of the sums: shorter runs than in the plain sum
constexpr int64_t tile_out = 4, tile_in = 6, tile_products = tile_in * tile_in;

// B' for six values that are `pitch` apart, in place.
IM_FN void to_points(Floats* d, int pitch) {
  const Floats d0 = d[0], d1 = d[pitch], d2 = d[2 * pitch], d3 = d[3 * pitch], d4 = d[4 * pitch], d5 = d[5 * pitch];
  constexpr float a = 0.75f, b = 1.5f;
  const Floats zero{}, aa = zero + a * a, bb = zero + b * b, both = zero + (a * a + b * b), product = zero + a * a * b * b;
  const Floats even_a = multiply_add(-bb, d2, d4), odd_a = (multiply_add(-bb, d1, d3)) * a;
  const Floats even_b = multiply_add(-aa, d2, d4), odd_b = (multiply_add(-aa, d1, d3)) * b;
  d[0] = multiply_add(product, d0, multiply_add(-both, d2, d4));
  d[pitch] = even_a + odd_a;
  d[2 * pitch] = even_a - odd_a;
  d[3 * pitch] = even_b + odd_b;
  d[4 * pitch] = even_b - odd_b;
  d[5 * pitch] = multiply_add(product, d1, multiply_add(-both, d3, d5));
}

// A' for six values that are `pitch` apart: four, in `to`.
IM_FN void from_points(const Floats* m, int pitch, Floats* to, int to_pitch) {
  constexpr float a = 0.75f, b = 1.5f;
  const Floats zero{};
  const Floats sum_a = m[pitch] + m[2 * pitch], odd_a = m[pitch] - m[2 * pitch];
  const Floats sum_b = m[3 * pitch] + m[4 * pitch], odd_b = m[3 * pitch] - m[4 * pitch];
  to[0] = m[0] + (sum_a + sum_b);
  to[to_pitch] = multiply_add(zero + a, odd_a, odd_b * b);
  to[2 * to_pitch] = multiply_add(zero + a * a, sum_a, sum_b * (b * b));
  to[3 * to_pitch] = multiply_add(zero + a * a * a, odd_a, multiply_add(zero + b * b * b, odd_b, m[5 * pitch]));
}

// B' d B of one tile, whose input begins at row `top` and column `left`: product p of channel c goes to to[p * pitch + c].
[[gnu::noinline]] static void tile_to_points(const Convolution& s, const float* x, const float* zeros, int64_t top, int64_t left,
                                             float* to, int64_t pitch) {
  const float* at[tile_products];
  for (int64_t i = 0; i < tile_in; ++i)
    for (int64_t j = 0; j < tile_in; ++j) {
      const int64_t y = top + i, z = left + j;
      at[i * tile_in + j] = y >= 0 && y < s.height && z >= 0 && z < s.width ? x + y * s.x_row + z * s.x_column : zeros;
    }
  for (int64_t from = 0; from < s.channels; from += lanes) {
    const int64_t c = index_min(from, s.channels - lanes);  // the last channels once more where they fill no vector
    Floats d[tile_products];
    #pragma GCC unroll 36
    for (int p = 0; p < tile_products; ++p) d[p] = load(at[p] + c);
    #pragma GCC unroll 6
    for (int j = 0; j < tile_in; ++j) to_points(d + j, tile_in);
    #pragma GCC unroll 6
    for (int i = 0; i < tile_in; ++i) {
      to_points(d + i * tile_in, 1);
      #pragma GCC unroll 6
      for (int j = 0; j < tile_in; ++j) store(to + (i * tile_in + j) * pitch + c, d[i * tile_in + j]);
    }
  }
}

// A' m A of one tile and one vector of output channels: product p at m[p * pitch]; output (i, j) goes to to[(4 * i + j) * to_pitch].
[[gnu::noinline]] static void tile_from_points(const float* m, int64_t pitch, float* to, int64_t to_pitch) {
  Floats half[tile_out * tile_in], whole[tile_out];
  #pragma GCC unroll 6
  for (int j = 0; j < tile_in; ++j) {
    Floats column[tile_in];
    #pragma GCC unroll 6
    for (int i = 0; i < tile_in; ++i) column[i] = load(m + (i * tile_in + j) * pitch);
    from_points(column, 1, half + j, tile_in);
  }
  #pragma GCC unroll 4
  for (int i = 0; i < tile_out; ++i) {
    from_points(half + i * tile_in, 1, whole, 1);
    #pragma GCC unroll 4
    for (int j = 0; j < tile_out; ++j) store(to + (i * tile_out + j) * to_pitch, whole[j]);
  }
}

// `pixels` tiles of `together` blocks of output channels are summed in registers at a time by `full`, the last blocks by `rest`.
template <class O>
static void winograd(const Convolution& s, const float* x, const float* weight, const Tail<O>& tail, int64_t pixels, int64_t together,
                     Products full, Products rest) {
  const int64_t tile_rows = (s.out_height + tile_out - 1) / tile_out, tile_columns = (s.out_width + tile_out - 1) / tile_out;
  const int64_t per_image = tile_rows * tile_columns, tiles = s.images * per_image;
  const int64_t blocks = (s.out_channels + block_columns - 1) / block_columns, panels = (blocks + together - 1) / together;
  const int64_t threads = threads_for(tiles * tile_products * s.channels * blocks * block_columns);
  const int64_t groups = (tiles + pixels - 1) / pixels;
  const bool by_weights = threads > 1 && panels >= threads && blocks * block_columns * tile_out > tiles;
  const int64_t in_cache = index_max(1, 56 / pixels);
  const int64_t per_thread = by_weights ? groups : (groups + threads - 1) / threads;
  const int64_t fewest = index_max(1, (per_thread + in_cache - 1) / in_cache), chunk = index_max(1, (per_thread + fewest - 1) / fewest);  // equal chunks
  const int64_t chunks = (groups + chunk - 1) / chunk, parts = by_weights ? threads : 1;
  const int64_t per_part = (panels + parts - 1) / parts;
  const int64_t row_pitch = round_up(s.channels, lanes) + lanes, pitch = chunk * pixels * row_pitch;  // of transformed inputs
  const int64_t sums_pitch = together * block_columns, sums_size = pixels * sums_pitch;
  #pragma omp parallel if (threads > 1)
  {
    Scratch<float> memory(tile_products * (pitch + chunk * sums_size) + tile_out * tile_out * sums_pitch + s.channels);
    float *const points = memory.data, *const sums = points + tile_products * pitch;
    float *const done = sums + tile_products * chunk * sums_size, *const zeros = done + tile_out * tile_out * sums_pitch;
    for (int64_t c = 0; c < s.channels && memory.data; ++c) zeros[c] = 0;
    #pragma omp for schedule(static)
    for (int64_t task = 0; task < parts * chunks; ++task) {
      if (!memory.data) continue;
      const int64_t part = task / chunks, start = task % chunks * chunk, stop = index_min(start + chunk, groups);
      const int64_t first = start * pixels, count = index_min(stop * pixels, tiles) - first;
      for (int64_t t = 0; t < count; ++t) {
        const int64_t image = (first + t) / per_image, place = (first + t) % per_image;
        const int64_t top = place / tile_columns * tile_out - s.row_pad, left = place % tile_columns * tile_out - s.column_pad;
        tile_to_points(s, x + image * s.x_image, zeros, top, left, points + t * row_pitch, pitch);
      }
      for (int64_t t = count; t < (stop - start) * pixels; ++t)
        for (int64_t p = 0; p < tile_products; ++p)
          for (int64_t c = 0; c < s.channels; ++c) points[p * pitch + t * row_pitch + c] = 0;
      for (int64_t panel = part * per_part; panel < index_min((part + 1) * per_part, panels); ++panel) {
        const int64_t column = panel * sums_pitch, filled = index_min(sums_pitch, s.out_channels - column);
        const bool last = panel == panels - 1;
        const int64_t width = index_min(together, blocks - panel * together) * block_columns;
        const int64_t depth = s.channels * block_columns;
        const float* const w = weight + panel * together * tile_products * depth;
        for (int64_t p = 0; p < tile_products; ++p)
          for (int64_t group = 0; group < stop - start; ++group) {
            const float* at[16];
            for (int64_t r = 0; r < pixels; ++r) at[r] = points + p * pitch + (group * pixels + r) * row_pitch;
            (last ? rest : full)(sums + (group * tile_products + p) * sums_size, at, Taps{1, 0, 1, 0, s.channels, 1, summed_run},
                                 w + p * depth, tile_products * depth, false);
          }
        for (int64_t t = 0; t < count; ++t) {
          const float* const from = sums + t / pixels * tile_products * sums_size + t % pixels * width;
          for (int64_t c = 0; c < width; c += lanes) tile_from_points(from + c, sums_size, done + c, sums_pitch);
          const int64_t image = (first + t) / per_image, place = (first + t) % per_image;
          const int64_t row = place / tile_columns * tile_out, left = place % tile_columns * tile_out;
          for (int64_t i = 0; i < index_min(tile_out, s.out_height - row); ++i) {
            const int64_t at = ((image * s.out_height + row + i) * s.out_width + left) * s.out_channels + column;
            tail.apply(tail, done + i * tile_out * sums_pitch, sums_pitch, at, column, index_min(tile_out, s.out_width - left), filled);
          }
        }
      }
    }
  }
}

}  // namespace intarsia
