// softmax(q k^T * scale + mask) v for one kernel call, over blocks that stay in the cache: the scores of a whole row are never in memory.
//
// A task is one batch entry, one head of k and v, and a chunk of the rows of q that read it (with grouped heads, the rows of several heads
// of q, one after another). It walks over blocks of keys. For each it packs k (transposed) and v as float, and then for a few rows at a
// time: scores, running maximum and sum of each row, and the product with v.
#pragma once
#include "intarsia_matmul.h"
#ifdef _OPENMP
extern "C" int omp_get_max_threads() noexcept;
#endif

namespace intarsia {

struct Attention {
  int64_t batch, heads, groups;  // groups: heads of q for each of the `heads` of k and v
  int64_t queries, keys, depth, width;
  int64_t q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row;  // strides in elements
  int64_t mask_batch, mask_head, mask_row, mask_column;
  float scale;
  bool causal;
};

constexpr int64_t key_block = 256;                    // keys of one block
constexpr int64_t row_block = 4 * block_rows;         // rows whose scores are in the first cache at a time
constexpr int64_t row_chunk = 16 * block_rows;        // rows of a task at least, so that packing k and v is a small part

template <class T>
IM_FN void copy_row(const T* from, float* to, int64_t count, int64_t padded, float factor) {
  #pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = float(from[i]) * factor;
  for (int64_t i = count; i < padded; ++i) to[i] = 0;
}

template <class Mask> struct MaskValue;
template <> struct MaskValue<bool> {
  IM_FN_MEMBER static float of(float score, bool allowed) { return allowed ? score : -__builtin_inff(); }
};
template <> struct MaskValue<float> {
  IM_FN_MEMBER static float of(float score, float bias) { return score + bias; }
};
template <> struct MaskValue<bf16> {
  IM_FN_MEMBER static float of(float score, bf16 bias) { return score + float(bias); }
};
template <> struct MaskValue<f16> {
  IM_FN_MEMBER static float of(float score, f16 bias) { return score + float(bias); }
};

template <class Mask>
IM_FN void apply_mask(float* scores, const Mask* mask, int64_t step, int64_t count) {
  if (step == 1) {
    #pragma omp simd
    for (int64_t j = 0; j < count; ++j) scores[j] = MaskValue<Mask>::of(scores[j], mask[j]);
  } else {
    for (int64_t j = 0; j < count; ++j) scores[j] = MaskValue<Mask>::of(scores[j], mask[j * step]);
  }
}

// Scores become exp(score - maximum), also of what came before: the factor for earlier sums is returned. `maximum` and `total` are the row's.
// A row in which all is masked keeps the maximum -inf. NaN is no maximum and goes into the total.
IM_FN float softmax_step(float* scores, int64_t count, int64_t padded, float& maximum, float& total) {
  float highest = maximum;
  #pragma omp simd reduction(max : highest)
  for (int64_t j = 0; j < count; ++j) highest = scores[j] > highest ? scores[j] : highest;
  const float base = highest == -__builtin_inff() ? 0.0f : highest;
  const float factor = exp(maximum - base);
  float added = 0;
  #pragma omp simd reduction(+ : added)
  for (int64_t j = 0; j < count; ++j) {
    const float e = exp(scores[j] - base);
    scores[j] = e;
    added += e;
  }
  for (int64_t j = count; j < padded; ++j) scores[j] = 0;
  maximum = highest;
  total = total * factor + added;
  return factor;
}

template <class T, class Mask>
static void attention_task(const Attention& s, const T* q, const T* k, const T* v, const Mask* mask, T* out, int64_t first,
                           int64_t rows) {
  const int64_t depth = s.depth, width = round_up(s.width, lanes), all_rows = round_up(rows, block_rows);
  const int64_t block = index_min(key_block, round_up(s.keys, lanes));
  Scratch<float> memory(all_rows * (depth + width + 2) + block * width + round_up(block, panel) * depth + row_block * block +
                        lanes * (depth + 1));
  float* const queries = memory.data;
  float* const sums = queries + round_up(all_rows * depth, lanes);
  float* const packed_v = sums + all_rows * width;
  float* const scores = packed_v + block * width;
  float* const packed_k = scores + row_block * block;
  float* const maxima = packed_k + round_up(block, panel) * depth;
  float* const totals = maxima + all_rows;
  float* const rows_of_k = totals + all_rows;

  for (int64_t r = 0; r < all_rows; ++r) {
    const int64_t at = first + r, head = at / s.queries, row = at % s.queries;
    if (r < rows) copy_row(q + head * s.q_head + row * s.q_row, queries + r * depth, depth, depth, s.scale);
    else for (int64_t i = 0; i < depth; ++i) queries[r * depth + i] = 0;
    for (int64_t i = 0; i < width; ++i) sums[r * width + i] = 0;
    maxima[r] = -__builtin_inff();
    totals[r] = 0;
  }
  const bool one_head = first / s.queries == (first + rows - 1) / s.queries;
  const int64_t all_keys = s.causal && one_head ? index_min(s.keys, (first + rows - 1) % s.queries + 1) : s.keys;

  for (int64_t key = 0; key < all_keys; key += block) {
    const int64_t count = index_min(block, all_keys - key), padded = round_up(count, lanes);
    for (int64_t j = 0; j < padded; ++j)
      if (j < count) copy_row(v + (key + j) * s.v_row, packed_v + j * width, s.width, width, 1.0f);
      else for (int64_t i = 0; i < width; ++i) packed_v[j * width + i] = 0;
    for (int64_t j = 0; j < padded; j += panel) {  // k transposed, panel by panel: depth rows of `panel` keys
      float* const to = packed_k + j * depth;
      for (int64_t part = 0; part < panel && j + part < padded; part += lanes) {
        for (int64_t i = 0; i < lanes; ++i)
          if (j + part + i < count) copy_row(k + (key + j + part + i) * s.k_row, rows_of_k + i * depth, depth, depth, 1.0f);
          else for (int64_t d = 0; d < depth; ++d) rows_of_k[i * depth + d] = 0;
        transpose(rows_of_k, depth, lanes, to + part, panel, depth);
      }
    }
    for (int64_t r0 = 0; r0 < all_rows; r0 += row_block) {
      const int64_t here = index_min(row_block, all_rows - r0);
      int64_t seen = count;  // keys that some row of these may see
      if (s.causal) {
        const int64_t from = first + r0, to = index_min(first + rows, from + here) - 1;
        const bool same = from / s.queries == to / s.queries;
        seen = index_min(count, (same ? to % s.queries : s.queries - 1) + 1 - key);
        if (seen <= 0) continue;
      }
      const int64_t columns = round_up(seen, lanes);
      product(queries + r0 * depth, depth, packed_k, panel, panel * depth, scores, block, here, columns, depth, false);
      for (int64_t r = r0; r < index_min(r0 + here, rows); ++r) {
        const int64_t at = first + r, head = at / s.queries, row = at % s.queries;
        float* const line = scores + (r - r0) * block;
        if (mask) apply_mask(line, mask + head * s.mask_head + row * s.mask_row + key * s.mask_column, s.mask_column, seen);
        const int64_t visible = s.causal ? index_max(0, index_min(seen, row + 1 - key)) : seen;
        const float factor = softmax_step(line, visible, columns, maxima[r], totals[r]);
        float* const sum_line = sums + r * width;
        if (factor != 1.0f && key)
          for (int64_t i = 0; i < width; ++i) sum_line[i] *= factor;
      }
      product(scores, block, packed_v, width, panel, sums + r0 * width, width, here, width, columns, true);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = first + r, head = at / s.queries, row = at % s.queries;
    T* const to = out + head * s.o_head + row * s.o_row;
    const float* const from = sums + r * width;
    const float inverse = 1.0f / totals[r];
    const bool masked = maxima[r] == -__builtin_inff();  // torch gives zeros where no score is above -inf, also where all are NaN
    #pragma omp simd
    for (int64_t i = 0; i < s.width; ++i) to[i] = T(masked ? 0.0f : from[i] * inverse);
  }
}

IM_FN int64_t max_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

// Strides are in elements; those of the last dimension of q, k, v and out are 1. mask may be null.
template <class T, class Mask>
static void attention(const Attention& s, const T* q, const T* k, const T* v, const Mask* mask, T* out) {
  const int64_t rows = s.groups * s.queries, pairs = s.batch * s.heads;
  if (rows == 0 || pairs == 0) return;
  int64_t threads = 1;
  if (pairs * rows * s.keys * (s.depth + s.width) > 400000) threads = max_threads();
  // Chunks of rows only where there are not enough heads, or where one head's rows would need too much memory.
  int64_t chunks = index_max(1, rows / 1024);
  while (threads > 1 && pairs * chunks < 4 * threads && rows / (chunks + 1) >= row_chunk) ++chunks;
  const int64_t chunk = round_up((rows + chunks - 1) / chunks, block_rows);
  const int64_t tasks = pairs * ((rows + chunk - 1) / chunk);
  #pragma omp parallel for schedule(dynamic) if (threads > 1)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t pair = task % pairs, first = task / pairs * chunk, b = pair / s.heads, h = pair % s.heads;
    attention_task(s, q + b * s.q_batch + h * s.groups * s.q_head, k + b * s.k_batch + h * s.k_head,
                   v + b * s.v_batch + h * s.v_head,
                   mask ? mask + b * s.mask_batch + h * s.groups * s.mask_head : nullptr,
                   out + b * s.o_batch + h * s.groups * s.o_head, first, index_min(chunk, rows - first));
  }
}

}  // namespace intarsia
