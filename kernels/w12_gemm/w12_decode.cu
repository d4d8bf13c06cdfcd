// A packed weight back to row-major BF16 [N, K], for calls with many tokens: decode, then the library's GEMM. One warp
// decodes one unit with the functions of the GEMM. Compile-time parameter: DECODER (W12, W12_ZERO or NESTED8).
#include "decode.cuh"
#include "ptx.cuh"

struct DecodeParams {
  const uint4* a;
  const uint4* b;
  const u32* escape;
  const u32* list;
  const u8* base;
  u16* out;  // [rows, columns], contiguous
  long long units;
  int rows, columns;
  u32 chunks, row_units, ku;  // chunks along K, units of a tile along N, units of a chunk along K
};

extern "C" __global__ void __launch_bounds__(256) w12_decode(const __grid_constant__ DecodeParams p) {
  const u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const long long unit = static_cast<long long>(blockIdx.x) * 8 + (threadIdx.x >> 5);
  if (unit >= p.units) return;
  const u32 in_chunk = p.row_units * p.ku, within = unit % in_chunk;
  const long long chunk = unit / in_chunk;
  const long long row = (chunk / p.chunks * p.row_units + within / p.ku) * 16 + g;
  const long long column = (chunk % p.chunks * p.ku + within % p.ku) * 64 + 8 * t;
  const uint4 q[2] = {__ldcs(p.a + unit * 64 + lane), __ldcs(p.a + unit * 64 + 32 + lane)};
  uint4 low = {0, 0, 0, 0};
  if (DECODER != w12::kNested8) low = __ldcs(p.b + unit * 32 + lane);
  const u32 word = __ldg(p.escape + unit);
  const u32 base = p.base[row] * 0x00800080u, base8 = p.base[row + 8] * 0x00800080u;
  u32 v[16];
  w12::decode_step<DECODER>(q[0].x, q[0].y, low.x, base, base8, v);
  w12::decode_step<DECODER>(q[0].z, q[0].w, low.y, base, base8, v + 4);
  w12::decode_step<DECODER>(q[1].x, q[1].y, low.z, base, base8, v + 8);
  w12::decode_step<DECODER>(q[1].z, q[1].w, low.w, base, base8, v + 12);
  if (word) w12::patch_unit(v, word, p.list, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u32* w = v + 8 * (i >> 1) + (i & 1);
    const long long r = row + 8 * (i & 1);
    if (r < p.rows)
      *reinterpret_cast<uint4*>(p.out + r * p.columns + column + 32 * (i >> 1)) = {w[0], w[2], w[4], w[6]};
  }
}
