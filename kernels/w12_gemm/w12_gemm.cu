// y[M, N] = x[M, K] @ W[N, K]^T for few tokens: BF16 in and out, FP32 accumulation, weights read once at memory speed.
//
// Weights stand on the M side of mma.m16n8k16, tokens on its N side in eights. A producer warp streams chunks of
// kTileRows x kChunkColumns weights and the matching columns of x into a ring of shared-memory stages (bulk copies,
// mbarriers); consumer warps decode weights into A fragments and multiply. Work is dealt out stream-K: the chunks of
// all tiles in one line, an equal share for each CTA. A tile shared by several CTAs is summed, in order of the CTA
// index, by whichever of them arrives last. Nothing of this depends on M, so a token's result has the same bits
// whatever stands beside it; nothing of it depends on the decoder either, so W12 and plain BF16 agree bit for bit.
//
// Compile-time parameters: DECODER, NT (token eights), WN and WK (consumer warps along N and K), MT (16-row units a
// warp), KU (64-column units a chunk; a multiple of WK), CTAS (a multiprocessor).
#include "decode.cuh"
#include "ptx.cuh"

constexpr int kDecoder = DECODER;
constexpr int kConsumers = WN * WK;
constexpr int kRowUnits = WN * MT;
constexpr int kTileRows = 16 * kRowUnits;
constexpr int kUnits = kRowUnits * KU;
constexpr int kUnitA = kDecoder == w12::kBf16 ? 2048 : 1024;
constexpr int kUnitB = kDecoder == w12::kW12 || kDecoder == w12::kW12Zero ? 512 : 0;
constexpr int kBytesA = kUnits * kUnitA;
constexpr int kBytesB = kUnits * kUnitB;
constexpr int kBytesE = kDecoder == w12::kBf16 ? 0 : kUnits * 4;
constexpr int kBoxX = 8 * NT * 128;      // bytes of all tokens' columns of one unit, 128-byte swizzled rows
constexpr int kOffsetA = KU * kBoxX;
constexpr int kOffsetB = kOffsetA + kBytesA;
constexpr int kOffsetE = kOffsetB + kBytesB;
constexpr int kStage = (kOffsetE + kBytesE + 1023) / 1024 * 1024;  // swizzled boxes start at multiples of 1024
constexpr u32 kStageBytes = kOffsetE + kBytesE;                    // bytes that arrive in a stage
constexpr int kReduce = (WK - 1) * WN * MT * NT * 512;
static_assert(KU % WK == 0, "every warp along K takes the same number of units of a chunk");
static_assert(kUnits % 4 == 0, "escape words of a chunk are a multiple of 16 bytes");

struct Params {
  const u8* a;        // plane A (or BF16) in chunks
  const u8* b;        // plane B in chunks
  const u32* escape;  // one word a unit: 0, or value << 16 | place << 2 | 1, or list index << 2 | 2
  const u32* list;    // at an index: count, then count times value << 16 | place
  const u8* base;     // [padded N]
  u16* y;             // [M, N], rows `y_stride` elements apart
  float* partial;     // [2 * CTAs, kTileRows * 8 * NT]
  u32* counter;       // [tiles * WN], zero; zero again at the end
  long long y_stride;
  int tokens, rows;  // M, N
  u32 tiles, chunks, stages;  // tiles along N, chunks along K
};

// x [M, K] as the copy engine sees it: boxes of 8 * NT tokens x 64 columns, missing tokens read as 0.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

struct Ring {
  u32 stage, parity;
  __device__ __forceinline__ void next(u32 stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

__device__ __forceinline__ void load_weights(const Params& p, size_t chunk, u32 stage, u32 full, u64 policy) {
  ptx::bulk_copy(stage + kOffsetA, p.a + chunk * kBytesA, kBytesA, full, policy);
  if (kBytesB) ptx::bulk_copy(stage + kOffsetB, p.b + chunk * kBytesB, kBytesB, full, policy);
  if (kBytesE) ptx::bulk_copy(stage + kOffsetE, p.escape + chunk * kUnits, kBytesE, full, policy);
}

__device__ __forceinline__ void load_x(const TensorMap& x, u32 chunk, u32 chunks, u32 stage, u32 full) {
  for (int ku = 0; ku < KU; ++ku)
    ptx::tensor_copy(stage + ku * kBoxX, &x, (chunk % chunks * KU + ku) * 64, 0, full);
}

// One thread: sets up the barriers and asks for the weights of the first stages. No kernel writes weights, so this
// need not wait for the previous one.
__device__ __forceinline__ void start(const Params& p, const TensorMap& x, u32 begin, u32 first, u32 ring, u32 full, u32 empty) {
  for (u32 s = 0; s < p.stages; ++s) {
    ptx::mbarrier_init(full + 8 * s, 1);
    ptx::mbarrier_init(empty + 8 * s, kConsumers);
  }
  ptx::fence_mbarrier_init();
  ptx::prefetch_tensor_map(&x);
  const u64 policy = ptx::evict_first_policy();
  for (u32 s = 0; s < first; ++s) {
    ptx::mbarrier_expect(full + 8 * s, kStageBytes);
    load_weights(p, begin + s, ring + s * kStage, full + 8 * s, policy);
  }
}

// One thread: x of the first stages, then weights and x of all others as stages fall free.
__device__ __forceinline__ void produce(const Params& p, const TensorMap& x, u32 begin, u32 end, u32 first, u32 ring,
                                        u32 full, u32 empty) {
  for (u32 s = 0; s < first; ++s) load_x(x, begin + s, p.chunks, ring + s * kStage, full + 8 * s);
  const u64 policy = ptx::evict_first_policy();
  Ring r = {0, 0};
  for (u32 chunk = begin + first; chunk < end; ++chunk) {
    const u32 bar = full + 8 * r.stage, stage = ring + r.stage * kStage;
    ptx::mbarrier_wait(empty + 8 * r.stage, r.parity);
    ptx::mbarrier_expect(bar, kStageBytes);
    load_weights(p, chunk, stage, bar, policy);
    load_x(x, chunk, p.chunks, stage, bar);
    r.next(p.stages);
  }
}

// Decodes unit `u` into v[16]: register 8 * half + 4 * step + i.
__device__ __forceinline__ void decode_unit(const Params& p, u32 stage, int u, const u32* base, u32 lane, u32* v) {
  if (kDecoder == w12::kBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 w = ptx::lds128(stage + kOffsetA + u * kUnitA + i * 512 + lane * 16);
      v[4 * i] = w.x, v[4 * i + 1] = w.y, v[4 * i + 2] = w.z, v[4 * i + 3] = w.w;
    }
    return;
  }
  const uint4 q0 = ptx::lds128(stage + kOffsetA + u * kUnitA + lane * 16);
  const uint4 q1 = ptx::lds128(stage + kOffsetA + u * kUnitA + 512 + lane * 16);
  uint4 low = {0, 0, 0, 0};
  if (kUnitB) low = ptx::lds128(stage + kOffsetB + u * kUnitB + lane * 16);
  const u32 word = ptx::lds32(stage + kOffsetE + u * 4);
  w12::decode_step<kDecoder>(q0.x, q0.y, low.x, base[0], base[1], v);
  w12::decode_step<kDecoder>(q0.z, q0.w, low.y, base[0], base[1], v + 4);
  w12::decode_step<kDecoder>(q1.x, q1.y, low.z, base[0], base[1], v + 8);
  w12::decode_step<kDecoder>(q1.z, q1.w, low.w, base[0], base[1], v + 12);
  if (word) w12::patch_unit(v, word, p.list, lane);
}

// The token, among eight, in a column of the MMA. Neighbouring lanes take tokens 4 apart, so that with 128-byte swizzled
// rows the eight lanes of a shared-memory phase hit all banks once.
__device__ __forceinline__ u32 token_of(u32 column) { return (column >> 1) | (column & 1) << 2; }

// Multiplies this warp's units of one stage into its accumulators.
__device__ __forceinline__ void multiply(const Params& p, u32 stage, int wn, int wk, const u32 (*base)[2],
                                         float (*acc)[NT][4]) {
  const u32 lane = threadIdx.x & 31;
  const u32 token = token_of(lane >> 2);
  const u32 x = stage + token * 128 + ((lane & 3) ^ token) * 16;
#pragma unroll
  for (int i = 0; i < KU / WK; ++i) {
    const int ku = wk * (KU / WK) + i;
    u32 v[MT][16];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) decode_unit(p, stage, (wn * MT + mt) * KU + ku, base[mt], lane, v[mt]);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        const uint4 xr = ptx::lds128((x ^ half * 64) + ku * kBoxX + nt * 1024);
#pragma unroll
        for (int mt = 0; mt < MT; ++mt) {
          ptx::mma(acc[mt][nt], v[mt] + 8 * half, xr.x, xr.y);
          ptx::mma(acc[mt][nt], v[mt] + 8 * half + 4, xr.z, xr.w);
        }
      }
  }
}

__device__ __forceinline__ void add(float* c, float4 v) { c[0] += v.x, c[1] += v.y, c[2] += v.z, c[3] += v.w; }

__device__ __forceinline__ void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(32 * kConsumers) : "memory"); }

// Sums the accumulators of the warps along K into those of warp 0, in order.
__device__ __forceinline__ void reduce_along_k(float4* buffer, int wn, int wk, float (*acc)[NT][4]) {
  if (WK == 1) return;
  const u32 lane = threadIdx.x & 31;
  if (wk > 0)
#pragma unroll
    for (int i = 0; i < MT * NT; ++i) {
      const float* c = acc[i / NT][i % NT];
      buffer[(((wk - 1) * WN + wn) * MT * NT + i) * 32 + lane] = {c[0], c[1], c[2], c[3]};
    }
  consumers_sync();
  if (wk == 0)
#pragma unroll
    for (int w = 1; w < WK; ++w)
#pragma unroll
      for (int i = 0; i < MT * NT; ++i)
        add(acc[i / NT][i % NT], buffer[(((w - 1) * WN + wn) * MT * NT + i) * 32 + lane]);
  consumers_sync();
}

__device__ __forceinline__ void store(const Params& p, long long row, float (*acc)[NT][4]) {
  const u32 lane = threadIdx.x & 31;
#pragma unroll
  for (int mt = 0; mt < MT; ++mt)
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const long long n = row + 16 * mt + (lane >> 2) + 8 * (i >> 1);
        const int m = 8 * nt + token_of(2 * (lane & 3) + (i & 1));
        if (m < p.tokens && n < p.rows) p.y[m * p.y_stride + n] = ptx::to_bf16(acc[mt][nt][i]);
      }
}

// Index of the CTA that owns a position in the line of all chunks.
__device__ __forceinline__ u32 owner(u32 position, u32 work) { return ((position + 1) * gridDim.x - 1) / work; }

// Writes this warp's partial tile; the last CTA to do so sums all of them in order of the CTA index and stores.
__device__ __forceinline__ void finish_shared(const Params& p, u32 tile, bool starts_tile, int wn, float (*acc)[NT][4]) {
  const u32 lane = threadIdx.x & 31;
  const u32 work = p.tiles * p.chunks, origin = tile * p.chunks;
  const u32 first = owner(origin, work), last = owner(origin + p.chunks - 1, work);
  float4* partial = reinterpret_cast<float4*>(p.partial);
  const auto slot = [&](u32 cta, bool starts) {
    return partial + static_cast<size_t>((2 * cta + starts) * WN + wn) * (MT * NT * 32) + lane;
  };
  float4* mine = slot(blockIdx.x, starts_tile);
#pragma unroll
  for (int i = 0; i < MT * NT; ++i) {
    const float* c = acc[i / NT][i % NT];
    mine[i * 32] = {c[0], c[1], c[2], c[3]};
  }
  __syncwarp();
  u32* counter = p.counter + tile * WN + wn;
  u32 before = 0;
  if (lane == 0) before = ptx::count_arrival(counter);
  if (__shfl_sync(0xFFFFFFFFu, before, 0) != last - first) return;
  if (lane == 0) *counter = 0;
  const float4* begin = slot(first, true);
#pragma unroll
  for (int i = 0; i < MT * NT; ++i) {
    const float4 v = ptx::load_l2(begin + i * 32);
    float* c = acc[i / NT][i % NT];
    c[0] = v.x, c[1] = v.y, c[2] = v.z, c[3] = v.w;
  }
  for (u32 cta = first + 1; cta <= last; ++cta) {
    const float4* next = slot(cta, false);
#pragma unroll
    for (int i = 0; i < MT * NT; ++i) add(acc[i / NT][i % NT], ptx::load_l2(next + i * 32));
  }
  store(p, static_cast<long long>(tile) * kTileRows + wn * MT * 16, acc);
}

__device__ __forceinline__ void consume(const Params& p, u32 begin, u32 end, u32 ring, float4* buffer,
                                        u32 full, u32 empty) {
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int wn = warp % WN, wk = warp / WN;
  Ring r = {0, 0};
  const u32 chunks = p.chunks;
  for (u32 position = begin; position < end;) {
    const u32 tile = position / chunks, from = position % chunks;
    const u32 to = chunks - from < end - position ? chunks : from + (end - position);
    const long long row = static_cast<long long>(tile) * kTileRows + wn * MT * 16;
    u32 base[MT][2];
    float acc[MT][NT][4];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
      if (kDecoder != w12::kBf16) {
        base[mt][0] = __ldg(p.base + row + 16 * mt + (lane >> 2)) * 0x00800080u;
        base[mt][1] = __ldg(p.base + row + 16 * mt + (lane >> 2) + 8) * 0x00800080u;
      }
#pragma unroll
      for (int i = 0; i < NT * 4; ++i) acc[mt][i / 4][i % 4] = 0.0f;
    }
    for (u32 chunk = from; chunk < to; ++chunk) {
      ptx::mbarrier_wait(full + 8 * r.stage, r.parity);
      multiply(p, ring + r.stage * kStage, wn, wk, base, acc);
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(empty + 8 * r.stage);
      r.next(p.stages);
    }
    reduce_along_k(buffer, wn, wk, acc);
    if (wk == 0) {
      if (from == 0 && to == chunks)
        store(p, row, acc);
      else
        finish_shared(p, tile, from == 0, wn, acc);
    }
    position += to - from;
  }
}

extern "C" __global__ void __launch_bounds__(32 * (kConsumers + 1), CTAS) w12_gemm(const __grid_constant__ Params p,
                                                                               const __grid_constant__ TensorMap x) {
  extern __shared__ __align__(1024) u8 smem[];
  const u32 ring = ptx::smem_address(smem);
  const u32 buffer = p.stages * kStage, full = ring + buffer + kReduce, empty = full + 8 * p.stages;
  const u32 work = p.tiles * p.chunks;  // times CTAs fits 32 bits: the launcher sees to it
  const u32 begin = work * blockIdx.x / gridDim.x, end = work * (blockIdx.x + 1) / gridDim.x;
  const u32 first = end - begin < p.stages ? end - begin : p.stages;
  const u32 producer = 32 * kConsumers;
  if (threadIdx.x == producer) start(p, x, begin, first, ring, full, empty);
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  __syncthreads();
  if (threadIdx.x == producer)
    produce(p, x, begin, end, first, ring, full, empty);
  else if (threadIdx.x < producer)
    consume(p, begin, end, ring, reinterpret_cast<float4*>(smem + buffer), full, empty);
}
