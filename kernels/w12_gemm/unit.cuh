// A warp's unit, 16 rows x 64 columns of the weight: from shared memory to A fragments in registers.
// Compile-time parameter: DECODER.
#pragma once

#include "decode.cuh"
#include "ptx.cuh"

constexpr int kDecoder = DECODER;
constexpr int kUnitA = kDecoder == w12::kBf16 ? 2048 : 1024;
constexpr int kUnitB = kDecoder == w12::kW12 || kDecoder == w12::kW12Zero ? 512 : 0;

// A unit as it is stored. Addresses in shared memory are this lane's.
struct Packed {
  uint4 q[kDecoder == w12::kBf16 ? 4 : 2], low;
  u32 word;
  __device__ __forceinline__ void load(u32 a, u32 b) {
#pragma unroll
    for (int i = 0; i < (kDecoder == w12::kBf16 ? 4 : 2); ++i) q[i] = ptx::lds128(a + i * 512);
    low = uint4{0, 0, 0, 0};
    if (kUnitB) low = ptx::lds128(b);
  }
  __device__ __forceinline__ void load(u32 a, u32 b, u32 escape) {
    load(a, b);
    word = kDecoder == w12::kBf16 ? 0 : ptx::lds32(escape);
  }
};

// Decodes k16 step `s` of a unit into v[4 * s], ..., v[4 * s + 3]; escapes still hold their placeholders.
template <int s>
__device__ __forceinline__ void decode_quarter(const Packed& w, const u32* base, u32* v) {
  if constexpr (kDecoder == w12::kBf16) {
    v[4 * s] = w.q[s].x, v[4 * s + 1] = w.q[s].y, v[4 * s + 2] = w.q[s].z, v[4 * s + 3] = w.q[s].w;
  } else {
    const uint4 q = w.q[s / 2];
    const u32 low = s == 0 ? w.low.x : s == 1 ? w.low.y : s == 2 ? w.low.z : w.low.w;
    w12::decode_step<kDecoder>(s % 2 ? q.z : q.x, s % 2 ? q.w : q.y, low, base[0], base[1], v + 4 * s);
  }
}

// Puts a decoded unit's escapes in place. `list` as in decode.cuh.
__device__ __forceinline__ void decode_escapes(u32 word, const u32* list, u32* v) {
  if (kDecoder != w12::kBf16 && word) w12::patch_unit(v, word, list, threadIdx.x & 31);
}

// Decodes a unit into v[16]: register 8 * half + 4 * step + i.
__device__ __forceinline__ void decode_unit(const Packed& w, const u32* list, const u32* base, u32* v) {
  decode_quarter<0>(w, base, v);
  decode_quarter<1>(w, base, v);
  decode_quarter<2>(w, base, v);
  decode_quarter<3>(w, base, v);
  decode_escapes(w.word, list, v);
}
