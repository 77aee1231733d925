// softmax(f(q k^T * scale)) v for one kernel call, over blocks that stay in the cache: the scores of a whole row are never in memory.
//
// A task is one batch entry, one head of k and v, and a chunk of the rows of q that read it (with grouped heads, the rows of several heads
// of q, one after another). It walks over blocks of keys. For each it packs k (transposed) and v as float, and then for a few rows at a
// time: scores, running maximum and sum of each row, and the product with v.
#pragma once
#include "intarsia_matmul.h"

namespace intarsia {

struct Attention {
  int64_t batch, heads, groups;  // groups: heads of q for each of the `heads` of k and v
  int64_t queries, keys, depth, width;
  int64_t q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row;  // strides in elements
  float scale;
  bool causal;
  float masked;  // what a row gives in which no score is above -inf
  bool forgets;  // NaN in the last keys, fewer than a vector, is no weight in such a row, as in torch's operator without a mask
  float* logs;   // of each row's sum of exp(score), where they are wanted
  int64_t l_batch, l_head, l_row;
};

constexpr int64_t key_block = 512;                    // keys of one block
constexpr int64_t row_block = 4 * block_rows;         // rows whose scores are in the first cache at a time
constexpr int64_t few_rows = 8;                       // fewer rows do not pay for packing k; with 6 to 8 it is the same (Zen 4)
constexpr int64_t row_chunk = 16 * block_rows;        // rows of a task at least, so that packing k and v is a small part

template <class T>
IM_FN void copy_row(const T* from, float* to, int64_t count, int64_t padded, float factor) {
  #pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = float(from[i]) * factor;
  for (int64_t i = count; i < padded; ++i) to[i] = 0;
}

template <class Mask> struct MaskValue;
template <> struct MaskValue<bool> {
  // 0 or -inf is added, as bits: of a choice gcc makes a branch. NaN stays.
  IM_FN_MEMBER static float of(float score, bool allowed) { return score + bit_cast<float>((uint32_t(allowed) - 1) & 0xff800000u); }
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

// What happens to scores of one row, from `key` on, before the softmax: nothing, or a mask is added. A kernel may have a struct of its own.
struct Unchanged {
  IM_FN_MEMBER void operator()(float*, int64_t, int64_t, int64_t, int64_t, int64_t) const {}
};

template <class Mask>
struct Added {
  const Mask* mask;
  int64_t batches, heads, rows, columns;  // strides in elements
  IM_FN_MEMBER void operator()(float* scores, int64_t batch, int64_t head, int64_t row, int64_t key, int64_t count) const {
    const Mask* const from = mask + batch * batches + head * heads + row * rows + key * columns;
    if (columns == 1) {
      #pragma omp simd
      for (int64_t j = 0; j < count; ++j) scores[j] = MaskValue<Mask>::of(scores[j], from[j]);
    } else {
      for (int64_t j = 0; j < count; ++j) scores[j] = MaskValue<Mask>::of(scores[j], from[j * columns]);
    }
  }
};
template <class Mask> Added(const Mask*, int64_t, int64_t, int64_t, int64_t) -> Added<Mask>;

// exp(x) for x <= 0, which is 0 below the least normal number; NaN stays NaN. The error is that of exp (docs/math.md).
IM_FN float exp_below(float x) {
  using F = detail::Format<float>;
  const float least = -87.3f, y = x < least ? least : x;
  const float shifted = fma(y, F::log2e, F::shifter), n = shifted - F::shifter;
  const float p = 1.0f + detail::expm1_reduced(fma(n, -F::ln2_lo, fma(n, -F::ln2_hi, y)));
  const float power = bit_cast<float>((bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u);
  return x < least ? 0.0f : p * power;
}

// Scores become exp(score - maximum), also of what came before: the factor for earlier sums is returned. `maximum` and `total` are the row's.
// A row in which all is masked keeps the maximum -inf. NaN is no maximum and goes into the total, except where no score is above -inf
// and none of the first `heard` is NaN.
IM_FN float softmax_step(float* scores, int64_t count, int64_t padded, int64_t heard, float& maximum, float& total) {
  for (int64_t j = count; j < padded; ++j) scores[j] = -__builtin_inff();
  Floats high = Floats{} + maximum;
  for (int64_t j = 0; j < padded; j += lanes) high = larger(load(scores + j), high);
  const float highest = largest(high);
  if (highest == -__builtin_inff() && heard < count) {
    bool stays = false;
    for (int64_t j = 0; j < heard; ++j) stays |= scores[j] != scores[j];
    if (!stays) {
      for (int64_t j = 0; j < padded; ++j) scores[j] = 0;
      return 1.0f;
    }
  }
  const float base = highest == -__builtin_inff() ? 0.0f : highest;
  const float factor = exp_below(maximum - base);
  Floats added{};
  for (int64_t j = 0; j < padded; j += lanes) {
    #pragma omp simd
    for (int l = 0; l < lanes; ++l) scores[j + l] = exp_below(scores[j + l] - base);
    added += load(scores + j);
  }
  maximum = highest;
  total = total * factor + sum(added);
  return factor;
}

// How many scores of a row count as NaN whatever the others are, from `key` on.
IM_FN int64_t keys_heard(const Attention& s, int64_t key) {
  return s.forgets ? index_max(0, s.keys / lanes * lanes - key) : s.keys;
}

template <class T>
IM_FN void write_row(const Attention& s, T* to, const float* from, float maximum, float total) {
  const bool none = maximum == -__builtin_inff();  // all masked, then the sum of the weights is 0, or NaN, then it is NaN
  if (none && total == 0) {
    #pragma omp simd
    for (int64_t i = 0; i < s.width; ++i) to[i] = T(s.masked + from[i]);  // 0 times an infinite value is NaN
    return;
  }
  const float inverse = 1.0f / total;
  #pragma omp simd
  for (int64_t i = 0; i < s.width; ++i) to[i] = T(from[i] * inverse);
}

IM_FN void write_log(const Attention& s, int64_t batch, int64_t head, int64_t row, float maximum, float total) {
  if (s.logs) s.logs[batch * s.l_batch + head * s.l_head + row * s.l_row] = maximum + log(total);
}

// Rows of k or v as float with a pitch that is a multiple of `lanes`: where they lie, or copied to `to`.
template <class T>
IM_FN const float* whole_rows(const T* from, int64_t pitch, float* to, int64_t rows, int64_t width, int64_t padded) {
  for (int64_t j = 0; j < rows; ++j) copy_row(from + j * pitch, to + j * padded, width, padded, 1.0f);
  return to;
}

// A task with few rows, as in decoding: k and v are read once where they lie, each row of k is multiplied with each row of q.
template <class T, class Scores>
static void attention_few(const Attention& s, const T* q, const T* k, const T* v, const Scores& change, int64_t batch, int64_t head, T* out) {
  const int64_t rows = s.groups * s.queries, depth = round_up(s.depth, lanes), width = round_up(s.width, lanes);
  const int64_t keys = round_up(s.keys, lanes);
  constexpr int64_t block = 64;
  constexpr bool is_float = sizeof(T) == 4;
  Scratch<float> memory(rows * (depth + keys + width) + block * index_max(depth, width));
  Scratch<float> state(2 * rows);
  if (!memory.data || !state.data) return;
  float* const queries = memory.data;
  float* const scores = queries + rows * depth;
  float* const sums = scores + rows * keys;
  float* const copies = sums + rows * width;
  for (int64_t g = 0, r = 0; g < s.groups; ++g)
    for (int64_t i = 0; i < s.queries; ++i, ++r)
      copy_row(q + g * s.q_head + i * s.q_row, queries + r * depth, s.depth, depth, s.scale);
  for (int64_t key = 0; key < s.keys; key += block) {
    const int64_t count = index_min(block, s.keys - key);
    const T* const from = k + key * s.k_row;
    const bool there = is_float && depth == s.depth;
    const float* const rows_of_k = there ? reinterpret_cast<const float*>(from) : whole_rows(from, s.k_row, copies, count, s.depth, depth);
    const int64_t pitch = there ? s.k_row : depth;
    for (int64_t r = 0; r < rows; ++r) {
      const float* const row = queries + r * depth;
      for (int64_t j = 0; j < count; ++j) {
        Floats a{}, b{};
        int64_t d = 0;
        for (; d + 2 * lanes <= depth; d += 2 * lanes) {
          a = multiply_add(load(row + d), load(rows_of_k + j * pitch + d), a);
          b = multiply_add(load(row + d + lanes), load(rows_of_k + j * pitch + d + lanes), b);
        }
        if (d < depth) a = multiply_add(load(row + d), load(rows_of_k + j * pitch + d), a);
        scores[r * keys + key + j] = sum(a + b);
      }
    }
  }
  for (int64_t g = 0, r = 0; g < s.groups; ++g)
    for (int64_t i = 0; i < s.queries; ++i, ++r) {
      float maximum = -__builtin_inff(), total = 0;
      float* const line = scores + r * keys;
      change(line, batch, head + g, i, 0, s.keys);
      softmax_step(line, s.causal ? index_min(s.keys, i + 1) : s.keys, keys, keys_heard(s, 0), maximum, total);
      state.data[2 * r] = maximum;
      state.data[2 * r + 1] = total;
    }
  const int64_t seen = s.causal ? index_min(s.keys, s.queries) : s.keys;
  for (int64_t key = 0; key < seen; key += block) {
    const int64_t count = index_min(block, seen - key);
    const T* const from = v + key * s.v_row;
    const bool there = is_float && width == s.width;
    const float* const rows_of_v = there ? reinterpret_cast<const float*>(from) : whole_rows(from, s.v_row, copies, count, s.width, width);
    const int64_t pitch = there ? s.v_row : width;
    for (int64_t r = 0; r < rows; ++r) {
      int64_t i = 0;
      for (; i + panel <= width; i += panel)
        block_product<1, panel_vectors>(scores + r * keys + key, 0, rows_of_v + i, pitch, sums + r * width + i, 0, count, key != 0);
      for (; i < width; i += lanes)
        block_product<1, 1>(scores + r * keys + key, 0, rows_of_v + i, pitch, sums + r * width + i, 0, count, key != 0);
    }
  }
  for (int64_t g = 0, r = 0; g < s.groups; ++g)
    for (int64_t i = 0; i < s.queries; ++i, ++r) {
      write_row(s, out + g * s.o_head + i * s.o_row, sums + r * width, state.data[2 * r], state.data[2 * r + 1]);
      write_log(s, batch, head + g, i, state.data[2 * r], state.data[2 * r + 1]);
    }
}

template <class T, class Scores>
static void attention_task(const Attention& s, const T* q, const T* k, const T* v, const Scores& change, int64_t batch,
                           int64_t first_head, T* out, int64_t first, int64_t rows) {
  const int64_t depth = s.depth, width = round_up(s.width, lanes), all_rows = round_up(rows, block_rows);
  const int64_t block = index_min(key_block, round_up(s.keys, lanes));
  Scratch<float> memory(all_rows * (depth + width + 2) + block * width + round_up(block, panel) * depth + row_block * block +
                        lanes * (depth + 1));
  if (!memory.data) return;
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
      int64_t head = (first + r0) / s.queries, row = (first + r0) % s.queries;
      for (int64_t r = r0; r < index_min(r0 + here, rows); ++r, head += ++row == s.queries, row = row == s.queries ? 0 : row) {
        float* const line = scores + (r - r0) * block;
        change(line, batch, first_head + head, row, key, seen);
        const int64_t visible = s.causal ? index_max(0, index_min(seen, row + 1 - key)) : seen;
        const float factor = softmax_step(line, visible, columns, keys_heard(s, key), maxima[r], totals[r]);
        float* const sum_line = sums + r * width;
        if (factor != 1.0f && key)
          for (int64_t i = 0; i < width; ++i) sum_line[i] *= factor;
      }
      product(scores, block, packed_v, width, panel, sums + r0 * width, width, here, width, columns, true);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = first + r, head = at / s.queries, row = at % s.queries;
    write_row(s, out + head * s.o_head + row * s.o_row, sums + r * width, maxima[r], totals[r]);
    write_log(s, batch, first_head + head, row, maxima[r], totals[r]);
  }
}

// Whether there are few rows: 1 or 0 where their number is known, so that only one way is compiled.
constexpr int either = -1;
constexpr int is_few(int64_t rows) { return rows < few_rows; }

// Strides are in elements; those of the last dimension of q, k, v and out are 1. `change`: what happens to the scores.
template <int Few, class T, class Scores>
static void attention(const Attention& s, const T* q, const T* k, const T* v, const Scores& change, T* out) {
  const int64_t rows = s.groups * s.queries, pairs = s.batch * s.heads;
  if (rows == 0 || pairs == 0) return;
  int64_t threads = 1;
  if (pairs * rows * s.keys * (s.depth + s.width) > 400000) threads = max_threads();
  const bool few = Few == either ? is_few(rows) : Few;
  // Chunks of rows only where there are not enough heads, or where one head's rows would need too much memory.
  int64_t chunks = index_max(1, rows / 1024);
  while (!few && threads > 1 && pairs * chunks < 4 * threads && rows / (chunks + 1) >= row_chunk) ++chunks;
  const int64_t chunk = round_up((rows + chunks - 1) / chunks, block_rows);
  const int64_t tasks = pairs * ((rows + chunk - 1) / chunk);
  #pragma omp parallel for schedule(dynamic) if (threads > 1)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t pair = task % pairs, first = task / pairs * chunk, b = pair / s.heads, h = pair % s.heads;
    if constexpr (Few != 0) {
      if (few) {
        attention_few(s, q + b * s.q_batch + h * s.groups * s.q_head, k + b * s.k_batch + h * s.k_head,
                      v + b * s.v_batch + h * s.v_head, change, b, h * s.groups, out + b * s.o_batch + h * s.groups * s.o_head);
        continue;
      }
    }
    if constexpr (Few != 1)
      attention_task(s, q + b * s.q_batch + h * s.groups * s.q_head, k + b * s.k_batch + h * s.k_head,
                     v + b * s.v_batch + h * s.v_head, change, b, h * s.groups,
                     out + b * s.o_batch + h * s.groups * s.o_head, first, index_min(chunk, rows - first));
  }
}

// Gradients of softmax(q k^T * scale) v: weights are computed again from the logs of the rows' sums, never stored.
struct AttentionGradients {
  int64_t batch, heads, queries, keys, depth, width;
  int64_t g_batch, g_head, g_row, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row;
  int64_t l_batch, l_head, l_row, gq_batch, gq_head, gq_row, gk_batch, gk_head, gk_row, gv_batch, gv_head, gv_row;  // in elements
  float scale;
  bool causal;
};

constexpr int64_t most_keys = 256;               // of a block, whose keys and values and their gradients stay in the second cache
constexpr int64_t query_rows = 8 * block_rows;   // of a block of weights

// `rows` rows as float, `padded` numbers each, zeros up to row `all`.
IM_FN void copy_rows(const float* from, int64_t pitch, float* to, int64_t rows, int64_t all, int64_t count, int64_t padded) {
  for (int64_t r = 0; r < rows; ++r) copy_row(from + r * pitch, to + r * padded, count, padded, 1.0f);
  for (int64_t i = rows * padded; i < all * padded; ++i) to[i] = 0;
}

// Rows, `pitch` apart, as panels across: `count` rows of `panel` columns each.
IM_FN void turn_rows(const float* rows, int64_t pitch, int64_t columns, int64_t count, float* to) {
  for (int64_t j = 0; j < columns; j += panel)
    transpose(rows + j * pitch, pitch, index_min(panel, columns - j), to + j * count, int64_t(panel), count);
}

// Scores and what the gradient makes of each of their weights, for one row: they become the weights and the gradients of the scores.
// Columns from `visible` to `all` are masked.
IM_FN void weights_again(float* scores, float* gradients, int64_t visible, int64_t all, float scale, float log_sum, float mean) {
  #pragma omp simd
  for (int64_t j = 0; j < visible; ++j) {
    const float weight = exp(scores[j] * scale - log_sum);
    scores[j] = weight;
    gradients[j] = weight * (gradients[j] - mean) * scale;
  }
  for (int64_t j = index_max(visible, 0); j < all; ++j) scores[j] = gradients[j] = 0;
}

// One head; addresses are those of its first rows.
static void attention_gradients_of_head(const AttentionGradients& s, const float* g, const float* q, const float* k, const float* v, const float* out,
                                        const float* logs, float* of_q, float* of_k, float* of_v) {
  const int64_t depth = round_up(s.depth, lanes), width = round_up(s.width, lanes), rows = round_up(s.queries, block_rows);
  const int64_t blocks = (s.keys + most_keys - 1) / most_keys, block = round_up((s.keys + blocks - 1) / blocks, lanes);
  const int64_t pitch = block + lanes, turned = round_up(block, panel);  // the last columns of weights are zeros: rows go in groups
  Scratch<float> memory((2 * rows + 2 * pitch) * (depth + width) + turned * (depth + width) + 2 * query_rows * pitch + rows);
  if (!memory.data) return;
  float* const queries = memory.data;
  float* const of_queries = queries + rows * depth;
  float* const given = of_queries + rows * depth;
  float* const keys = given + rows * width;
  float* const values = keys + pitch * depth;
  float* const of_keys = values + pitch * width;
  float* const of_values = of_keys + pitch * depth;
  float* const keys_across = of_values + pitch * width;
  float* const values_across = keys_across + turned * depth;
  float* const weights = values_across + turned * width;
  float* const of_scores = weights + query_rows * pitch;
  float* const means = of_scores + query_rows * pitch;  // of the gradients of a row's weights

  copy_rows(q, s.q_row, queries, s.queries, rows, s.depth, depth);
  copy_rows(g, s.g_row, given, s.queries, rows, s.width, width);
  for (int64_t i = 0; i < rows * depth; ++i) of_queries[i] = 0;
  for (int64_t r = 0; r < s.queries; ++r) {
    float total = 0;
    #pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < s.width; ++i) total += given[r * width + i] * out[r * s.o_row + i];
    means[r] = total;
  }
  for (int64_t key = 0; key < s.keys; key += block) {
    const int64_t count = index_min(block, s.keys - key), columns = round_up(count, lanes);
    copy_rows(k + key * s.k_row, s.k_row, keys, count, columns, s.depth, depth);
    copy_rows(v + key * s.v_row, s.v_row, values, count, columns, s.width, width);
    turn_rows(keys, depth, columns, depth, keys_across);
    turn_rows(values, width, columns, width, values_across);
    for (int64_t i = 0; i < pitch * depth; ++i) of_keys[i] = 0;
    for (int64_t i = 0; i < pitch * width; ++i) of_values[i] = 0;
    for (int64_t r0 = 0; r0 < s.queries; r0 += query_rows) {
      const int64_t here = index_min(query_rows, rows - r0), last = index_min(r0 + here, s.queries) - 1;
      const int64_t seen = s.causal ? index_min(count, last + 1 - key) : count, across = round_up(seen, lanes);
      if (seen <= 0) continue;
      product(queries + r0 * depth, depth, keys_across, panel, panel * depth, weights, pitch, here, across, s.depth, false);
      product(given + r0 * width, width, values_across, panel, panel * width, of_scores, pitch, here, across, s.width, false);
      for (int64_t r = 0; r < here; ++r) {
        const int64_t row = r0 + r, visible = row >= s.queries ? 0 : s.causal ? index_min(seen, row + 1 - key) : seen;
        const int64_t at = index_min(row, s.queries - 1);
        weights_again(weights + r * pitch, of_scores + r * pitch, visible, across + lanes, s.scale, logs[at * s.l_row], means[at]);
      }
      const int64_t groups = round_up(seen, block_rows);
      product(weights, 1, given + r0 * width, width, panel, of_values, width, groups, width, here, true, pitch);
      product(of_scores, 1, queries + r0 * depth, depth, panel, of_keys, depth, groups, depth, here, true, pitch);
      product(of_scores, pitch, keys, depth, panel, of_queries + r0 * depth, depth, here, depth, across, true);
    }
    for (int64_t j = 0; j < count; ++j) {
      copy_row(of_keys + j * depth, of_k + (key + j) * s.gk_row, s.depth, s.depth, 1.0f);
      copy_row(of_values + j * width, of_v + (key + j) * s.gv_row, s.width, s.width, 1.0f);
    }
  }
  for (int64_t r = 0; r < s.queries; ++r) copy_row(of_queries + r * depth, of_q + r * s.gq_row, s.depth, s.depth, 1.0f);
}

static void attention_gradients(const AttentionGradients& s, const float* g, const float* q, const float* k, const float* v, const float* out,
                                const float* logs, float* of_q, float* of_k, float* of_v) {
  const int64_t pairs = s.batch * s.heads;
  #pragma omp parallel for schedule(dynamic) if (pairs > 1 && pairs * s.queries * s.keys * (s.depth + s.width) > 200000)
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t b = pair / s.heads, h = pair % s.heads;
    attention_gradients_of_head(s, g + b * s.g_batch + h * s.g_head, q + b * s.q_batch + h * s.q_head, k + b * s.k_batch + h * s.k_head,
                                v + b * s.v_batch + h * s.v_head, out + b * s.o_batch + h * s.o_head, logs + b * s.l_batch + h * s.l_head,
                                of_q + b * s.gq_batch + h * s.gq_head, of_k + b * s.gk_batch + h * s.gk_head, of_v + b * s.gv_batch + h * s.gv_head);
  }
}

}  // namespace intarsia
