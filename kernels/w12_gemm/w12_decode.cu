// A packed weight back to row-major BF16 [N, K], for calls with many tokens: decode, then the library's GEMM. The warps
// of a CTA decode units side by side along K with the functions of the GEMM, so that it writes whole kilobytes of a row,
// the next units' loads in flight meanwhile, and turn fragments into rows through shared memory.
// Compile-time parameter: DECODER (W12, W12_ZERO or NESTED8).
#include "decode.cuh"
#include "ptx.cuh"

struct DecodeParams {
  const uint4* a;
  const uint4* b;
  const u32* escape;
  const u32* list;
  const u8* base;
  u16* out;  // [rows, columns], contiguous
  int rows, columns;
  u32 items, groups;          // rows of units times `groups`, each kWarps units along K
  u32 chunks, row_units, wk;  // chunks along K, units of a tile along N, units of a chunk along K (a power of two)
};

constexpr int kWarps = 8;

struct Unit {
  uint4 q[2], low;
  u32 word, base[2];
  u32 row, column;  // its first ones
};

// Loads this warp's unit of an item; a unit past the end of K is the last one, and is not stored.
__device__ __forceinline__ void load_unit(const DecodeParams& p, u32 item, u32 warp, u32 lane, Unit& w) {
  const u32 unit_row = item / p.groups, along = (item - unit_row * p.groups) * kWarps + warp;
  const u32 tile = unit_row / p.row_units, log_wk = __ffs(p.wk) - 1, last = (p.chunks << log_wk) - 1;
  const u32 k = along < last ? along : last;
  const u32 chunk = tile * p.chunks + (k >> log_wk);
  const u32 within = ((unit_row - tile * p.row_units) << log_wk) + (k & (p.wk - 1));
  const u32 in_chunk = p.row_units << log_wk;
  const size_t unit = static_cast<size_t>(chunk) * in_chunk + within;
  w.row = unit_row * 16, w.column = along * 64;
  w.q[0] = __ldcs(p.a + unit * 64 + lane);
  w.q[1] = __ldcs(p.a + unit * 64 + 32 + lane);
  if (DECODER != w12::kNested8) w.low = __ldcs(p.b + unit * 32 + lane);
  w.word = __ldg(p.escape + static_cast<size_t>(chunk) * ((in_chunk + 3) / 4 * 4) + within);
  w.base[0] = __ldg(p.base + w.row + (lane >> 2));
  w.base[1] = __ldg(p.base + w.row + (lane >> 2) + 8);
}

__device__ __forceinline__ void store_unit(const DecodeParams& p, const Unit& w, u32 tile, u32 lane) {
  const u32 base = w.base[0] * 0x00800080u, base8 = w.base[1] * 0x00800080u;
  u32 v[16];
  w12::decode_step<DECODER>(w.q[0].x, w.q[0].y, w.low.x, base, base8, v);
  w12::decode_step<DECODER>(w.q[0].z, w.q[0].w, w.low.y, base, base8, v + 4);
  w12::decode_step<DECODER>(w.q[1].x, w.q[1].y, w.low.z, base, base8, v + 8);
  w12::decode_step<DECODER>(w.q[1].z, w.q[1].w, w.low.w, base, base8, v + 12);
  if (w.word) w12::patch_unit(v, w.word, p.list, lane);
  // Matrix lane / 8 of a step: rows 8 * (its bit 0), columns 8 * (its bit 1); 16-byte pieces of a row are swizzled.
  const u32 row = (lane & 7) + (lane & 8), piece = lane >> 4;
#pragma unroll
  for (u32 step = 0; step < 4; ++step)
    ptx::stmatrix(tile + row * 128 + ((2 * step + piece) ^ (row & 7)) * 16, v + 4 * step);
  __syncwarp();
  uint4* out = reinterpret_cast<uint4*>(p.out + static_cast<size_t>(w.row) * p.columns + w.column);
  const u32 rows = p.rows, left = w.column < static_cast<u32>(p.columns) && w.row < rows ? rows - w.row : 0;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 r = 4 * i + (lane >> 3), c = lane & 7;
    const uint4 part = ptx::lds128(tile + r * 128 + (c ^ (r & 7)) * 16);
    if (r < left) out[r * (p.columns / 8) + c] = part;
  }
  __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32 * kWarps) w12_decode(const __grid_constant__ DecodeParams p) {
  __shared__ __align__(128) u8 tiles[kWarps * 2048];
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32 tile = ptx::smem_address(tiles) + warp * 2048;
  u32 item = blockIdx.x;
  Unit now, next;
  load_unit(p, item, warp, lane, now);
  for (; item + gridDim.x < p.items; item += gridDim.x, now = next) {
    load_unit(p, item + gridDim.x, warp, lane, next);
    store_unit(p, now, tile, lane);
  }
  store_unit(p, now, tile, lane);
}
