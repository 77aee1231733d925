// Random numbers of generated kernels: Philox4x32-10 (Salmon and others, 2011). Word n of a stream is part n % 4 of block n / 4.
#pragma once
#include "intarsia_types.h"

namespace intarsia {

IM_FN int32_t philox(int64_t seed, int64_t number) {
  const uint64_t counter = static_cast<uint64_t>(number) >> 2;
  uint32_t a = static_cast<uint32_t>(counter), b = static_cast<uint32_t>(counter >> 32), c = 0, d = 0;
  uint32_t left = static_cast<uint32_t>(seed), right = static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * a, second = uint64_t{0xCD9E8D57u} * c;
    a = static_cast<uint32_t>(second >> 32) ^ b ^ left;
    b = static_cast<uint32_t>(second);
    c = static_cast<uint32_t>(first >> 32) ^ d ^ right;
    d = static_cast<uint32_t>(first);
    left += 0x9E3779B9u;
    right += 0xBB67AE85u;
  }
  const uint32_t low = (number & 1) != 0 ? b : a, high = (number & 1) != 0 ? d : c;
  return static_cast<int32_t>((number & 2) != 0 ? high : low);
}

}  // namespace intarsia
