// y[M, N] = x[M, K] @ W[N, K]^T for few tokens: BF16 in and out, FP32 accumulation, weights read once at memory speed.
//
// Weights stand on the M side of mma.m16n8k16 (or wgmma), tokens on its N side in eights. A producer warp streams
// chunks of kTileRows x (64 * WK) weights and the matching columns of x into a ring of shared-memory stages (bulk
// copies, mbarriers); consumer warps decode weights into A fragments and multiply. Work is dealt out stream-K: the
// chunks of all tiles in one line, a share for each CTA. A tile shared by several CTAs is summed, in order of the CTA
// index, by whichever of them arrives last. Tiles, chunks, shares and the number of warps along K do not depend on M,
// so a token's result has the same bits whatever stands beside it; nothing of it depends on the decoder either, so W12
// and plain BF16 agree bit for bit. How a tile's rows are split among warps may depend on M: rows are never summed.
//
// Compile-time parameters: DECODER, NT (token eights), ROWS (16-row units of a tile), WN and WK (consumer warps along N
// and K; a chunk has WK 64-column units, so a warp has one unit of each chunk), PARTS (CTAs a multiprocessor has
// registers for), WGMMA (1: multiply by wgmma, 0: by mma; a test holds that both give the same bits).
#include "decode.cuh"
#include "ptx.cuh"
#include "unit.cuh"
#if WGMMA
#include "wgmma.cuh"
#endif

constexpr int kConsumers = WN * WK;
constexpr int kTileRows = 16 * ROWS;
constexpr int kUnits = ROWS * WK;
constexpr int kWords = (kUnits + 3) / 4 * 4;  // escape words of a chunk, whole 16-byte pieces
constexpr int kBytesA = kUnits * kUnitA;
constexpr int kBytesB = kUnits * kUnitB;
constexpr int kBytesE = kDecoder == w12::kBf16 ? 0 : kWords * 4;
constexpr int kBoxX = 8 * NT * 128;      // bytes of all tokens' columns of one unit, 128-byte swizzled rows
constexpr int kOffsetA = WK * kBoxX;
constexpr int kOffsetB = kOffsetA + kBytesA;
constexpr int kOffsetE = kOffsetB + kBytesB;
constexpr int kStage = (kOffsetE + kBytesE + 1023) / 1024 * 1024;  // swizzled boxes start at multiples of 1024
constexpr u32 kStageBytes = kOffsetE + kBytesE;                    // bytes that arrive in a stage
constexpr int kReduce = (WK - 1) * WN * NT * 512;
// Row units that wgmma multiplies, in whole warpgroups; the up to three left over go by mma, or (WN > ROWS) a warp that has
// no unit multiplies another's once more.
constexpr int kByWgmma = !WGMMA ? 0 : WN == ROWS ? ROWS / 4 * 4 : WN;
constexpr bool kMixed = kByWgmma > 0 && kByWgmma < WN;
constexpr int kLeftOver = kMixed ? WN - kByWgmma : 1, kInGroups = kMixed ? kByWgmma : 1;
// Where it was measured to gain: with more tokens it costs registers that tiles of many warps do not have, and with one CTA
// a multiprocessor, whose weights others would have to call, it took longer (docs/measured.md).
constexpr bool kLooksAhead = (NT == 1 || (NT == 2 && kUnits <= 10)) && PARTS > 1;
static_assert(WN == ROWS || (WGMMA && WN % 4 == 0 && WN > ROWS && WN < ROWS + 4), "one warp for each row unit of a tile");

struct Params {
  const u8* a;        // plane A (or BF16) in chunks
  const u8* b;        // plane B in chunks
  const u32* escape;  // one word a unit: 0, or value << 16 | place << 2 | 1, or list index << 2 | 2
  const u32* list;    // at an index: count, then count times value << 16 | place
  const u8* base;     // [padded N]
  u16* y;             // [M, N], rows `y_stride` elements apart
  float* partial;     // [2 * CTAs, kTileRows * 8 * NT]
  u32* counter;       // [tiles * ROWS], zero; zero again at the end
  u32* mark;          // set when this launch asks for its last weights (see look_ahead)
  u32* mark_before;   // that of the launch before it
  long long y_stride;
  int tokens, rows;  // M, N
  u32 ctas;                  // CTAs with work
  u32 chunks, share, extra;  // chunks along K, of a CTA, CTAs with one chunk more
  u32 stages, list_bytes, linger;
  u32 ahead;  // chunks of a CTA that are called into L2, at most 16
};

// x [M, K] as the copy engine sees it: boxes of 8 * NT tokens x 64 columns, missing tokens read as 0.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

// A CTA's share of the line of all chunks, and the order in which it works through it: a tile that it only begins
// comes first, so that the other CTAs' parts of it are waited for as little as possible at the end.
struct Share {
  u32 begin, count, shift;
};

// Walks through a share; `column` is the position's chunk along K.
struct Cursor {
  u32 position, column;
  __device__ __forceinline__ Cursor(const Share& share, u32 chunks) {
    position = share.begin + share.shift;
    column = position % chunks;
  }
  __device__ __forceinline__ void next(const Share& share, u32 chunks) {
    if (++column == chunks) column = 0;
    if (++position == share.begin + share.count) position = share.begin, column = position % chunks;
  }
};

// The same value, which the compiler can't work out again (in every round of the loop, it would, to save a register).
__device__ __forceinline__ u32 once(u32 v) { return __shfl_sync(0xFFFFFFFFu, v, threadIdx.x & 31); }

// The ring's stages; each has an mbarrier that its bytes complete and one that the consumers complete: every lane arrives
// at that itself, which orders its own reads before the copy engine's next writes. One lane a warp after __syncwarp would
// be enough, but racecheck does not follow that, and 32 arrivals cost no measurable time.
struct Stages {
  u32 data, full, empty, number;
};

// Walks around the ring.
struct Ring {
  u32 data, full, parity;
  __device__ __forceinline__ explicit Ring(const Stages& ring) : data(ring.data), full(ring.full), parity(0) {}
  __device__ __forceinline__ u32 empty(const Stages& ring) const { return full + (ring.empty - ring.full); }
  __device__ __forceinline__ void next(const Stages& ring) {
    data += kStage, full += 8;
    if (full == ring.empty) data = ring.data, full = ring.full, parity ^= 1;
  }
};

// First position of a CTA's share: the first `extra` CTAs have one chunk more than the others.
__device__ __forceinline__ u32 share_begin(const Params& p, u32 cta) {
  return cta * p.share + (cta < p.extra ? cta : p.extra);
}

// Index of the CTA that owns a position in the line of all chunks.
__device__ __forceinline__ u32 owner(const Params& p, u32 position) {
  const u32 larger = p.extra * (p.share + 1);
  return position < larger ? position / (p.share + 1) : p.extra + (position - larger) / p.share;
}

__device__ __forceinline__ Share share_of(const Params& p, u32 cta) {
  const u32 begin = share_begin(p, cta), end = share_begin(p, cta + 1), begun = end % p.chunks;
  return {begin, end - begin, begun && begun < end - begin ? end - begin - begun : 0};
}

__device__ __forceinline__ void load_weights(const Params& p, size_t chunk, u32 stage, u32 full, u64 policy) {
  ptx::bulk_copy(stage + kOffsetA, p.a + chunk * kBytesA, kBytesA, full, policy);
  if (kBytesB) ptx::bulk_copy(stage + kOffsetB, p.b + chunk * kBytesB, kBytesB, full, policy);
  if (kBytesE) ptx::bulk_copy(stage + kOffsetE, p.escape + chunk * kWords, kBytesE, full, policy);
}

__device__ __forceinline__ void load_x(const TensorMap& x, u32 column, u32 stage, u32 full) {
  for (int i = 0; i < WK; ++i) ptx::tensor_copy(stage + i * kBoxX, &x, (column * WK + i) * 64, 0, full);
}

// One thread: sets up the barriers and asks for the weights of the first stages. No kernel writes weights, so this
// need not wait for the previous one.
__device__ __forceinline__ void start(const Params& p, const TensorMap& x, const Share& share, u32 first,
                                      const Stages& ring) {
  for (u32 s = 0; s < ring.number; ++s) {
    ptx::mbarrier_init(ring.full + 8 * s, 1);
    ptx::mbarrier_init(ring.empty + 8 * s, 32 * kConsumers);
  }
  ptx::fence_mbarrier_init();
  ptx::prefetch_tensor_map(&x);
  const u64 policy = ptx::evict_first_policy();
  Cursor at(share, p.chunks);
  for (u32 s = 0; s < first; ++s, at.next(share, p.chunks)) {
    ptx::mbarrier_expect(ring.full + 8 * s, kStageBytes);
    load_weights(p, at.position, ring.data + s * kStage, ring.full + 8 * s, policy);
  }
}

// One warp: small things that a consumer would otherwise wait a whole memory latency for.
__device__ __forceinline__ void prefetch_side(const Params& p, const Share& share, u32 lane) {
  if (kDecoder == w12::kBf16) return;
  const u32 first = share.begin / p.chunks * kTileRows;
  const u32 last = (share.begin + share.count - 1) / p.chunks * kTileRows + kTileRows;
  for (u32 row = first + lane * 128; row < last; row += 32 * 128) ptx::prefetch_l2(p.base + row);
  for (u32 at = (blockIdx.x * 32 + lane) * 128; at < p.list_bytes; at += p.ctas * 32 * 128)
    ptx::prefetch_l2(reinterpret_cast<const u8*>(p.list) + at);
}

// Calls chunk `i` of a share into L2; even lanes its plane A, odd ones its plane B.
__device__ __forceinline__ void call(const Params& p, const Share& share, u32 i) {
  const u32 after = share.shift + i;
  const size_t position = share.begin + (after < share.count ? after : after - share.count);
  if ((threadIdx.x & 1) == 0)
    ptx::bulk_prefetch(p.a + position * kBytesA, kBytesA);
  else if (kBytesB)
    ptx::bulk_prefetch(p.b + position * kBytesB, kBytesB);
}

// One warp, before it waits for the previous kernel. This CTA's ring is full by then and the copy engine idle, and so is
// memory from the previous kernel's last bytes until this kernel's first stage falls free: for its last products, its
// end, and x's way here. So as soon as the previous launch marks that it has asked for its last weights, the next
// chunks are called into L2. This ends at the latest when x has come, and is about time only: a mark that is missing or
// old changes no result.
__device__ __forceinline__ void look_ahead(const Params& p, const Share& share, const Stages& ring) {
  if (p.ahead == 0) return;
  for (u32 marked = 0; !marked;) {
    marked = ptx::load_relaxed(p.mark_before);  // its value arrives during the following tests
    for (int i = 0; i < 16; ++i)
      if (ptx::mbarrier_test(ring.full, 0)) return;
  }
  const u32 chunk = (threadIdx.x & 31) >> 1;
  if (chunk < p.ahead && p.stages + chunk < share.count) call(p, share, p.stages + chunk);
}

// One thread: x of the first stages, then weights and x of all others as stages fall free.
__device__ __forceinline__ void produce(const Params& p, const TensorMap& x, const Share& share, u32 first,
                                        const Stages& ring) {
  if (kLooksAhead && blockIdx.x == 0) *p.mark_before = 0;  // the previous kernel has ended
  Cursor at(share, p.chunks);
  for (u32 s = 0; s < first; ++s, at.next(share, p.chunks))
    load_x(x, at.column, ring.data + s * kStage, ring.full + 8 * s);
  const u64 policy = ptx::evict_first_policy();
  Ring r(ring);
  for (u32 i = first; i < share.count; ++i, at.next(share, p.chunks)) {
    ptx::mbarrier_wait(r.empty(ring), r.parity);
    ptx::mbarrier_expect(r.full, kStageBytes);
    load_weights(p, at.position, r.data, r.full, policy);
    load_x(x, at.column, r.data, r.full);
    r.next(ring);
  }
  if (kLooksAhead && blockIdx.x == 0) ptx::store_relaxed(p.mark, 1);
}

// A consumer warp's place along N and K where wgmma and mma share a tile: warps of wgmma come first, four in a row at one place
// along K.
__device__ __forceinline__ int along_n(u32 warp) {
  return warp < kByWgmma * WK ? warp % kInGroups : kByWgmma + (warp - kByWgmma * WK) % kLeftOver;
}
__device__ __forceinline__ int along_k(u32 warp) {
  return warp < kByWgmma * WK ? warp / kInGroups : (warp - kByWgmma * WK) / kLeftOver;
}

// Where a warp reads, as offsets in a stage.
struct Offsets {
  u32 a, b, escape, x;
  __device__ __forceinline__ Offsets(int wn, int wk) {
    const u32 lane = threadIdx.x & 31, unit = (wn < ROWS ? wn : 0) * WK + wk;
    a = once(kOffsetA + unit * kUnitA + lane * 16);
    b = once(kOffsetB + unit * kUnitB + lane * 16);
    escape = once(kOffsetE + unit * 4);
    const u32 piece = wn < kByWgmma ? 0 : (lane & 7) * 128 + ((lane >> 3) ^ (lane & 7)) * 16;  // token lane % 8, columns lane / 8
    x = once(wk * kBoxX + piece);
  }
};

#if WGMMA
__device__ __forceinline__ void issue(const u32* v, u32 x, float (*acc)[4]) {
  const u64 operand = ptx::wgmma_operand(x);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) ptx::wgmma<NT>(acc[0], v + 4 * step, operand + 2 * step);
  ptx::wgmma_commit();
}
#endif

// Multiplies a decoded unit with all tokens.
__device__ __forceinline__ void multiply(const u32* v, u32 x, float (*acc)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      const uint4 xr = ptx::ldmatrix((x ^ half * 64) + nt * 1024);
      ptx::mma(acc[nt], v + 8 * half, xr.x, xr.y);
      ptx::mma(acc[nt], v + 8 * half + 4, xr.z, xr.w);
    }
}

// Waits for a stage and decodes this warp's unit of it.
__device__ __forceinline__ void fetch(const Params& p, const Offsets& at, const u32* base, const Ring& r, u32* v) {
  Packed w;
  ptx::mbarrier_wait(r.full, r.parity);
  w.load(r.data + at.a, r.data + at.b, r.data + at.escape);
  decode_unit(w, p.list, base, v);
}

// Multiplies `count` chunks into the accumulators, by mma.
__device__ __forceinline__ void multiply_chunks(const Params& p, u32 count, const Offsets& at, const u32* base,
                                                const Stages& ring, Ring& r, float (*acc)[4]) {
  for (u32 left = count; left; --left) {
    u32 v[16];
    fetch(p, at, base, r, v);
    multiply(v, r.data + at.x, acc);
    ptx::mbarrier_arrive(r.empty(ring));
    r.next(ring);
  }
}

#if WGMMA
// The same by wgmma. The next chunk's unit is fetched if it has arrived, but not decoded: ptxas (13.0) would compute into
// the registers that wgmma is reading, and there are none left to keep it from that. Where mma
// takes units too, zeroed registers make ptxas spill less (34816 rows x 64 tokens: 72 to 75 us instead of 82).
__device__ __forceinline__ void multiply_chunks_wgmma(const Params& p, u32 count, const Offsets& at, const u32* base,
                                                      const Stages& ring, Ring& r, float (*acc)[4]) {
  Packed w;
  if constexpr (kMixed) w = {};
  bool fetched = false;
  for (u32 left = count; left; --left) {
    if (!fetched) {
      ptx::mbarrier_wait(r.full, r.parity);
      w.load(r.data + at.a, r.data + at.b, r.data + at.escape);
    }
    u32 v[16];
    if constexpr (kMixed)
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = 0;
    decode_unit(w, p.list, base, v);
    const u32 empty = r.empty(ring), x = r.data + at.x;
    r.next(ring);
    fetched = left > 1 && ptx::mbarrier_test(r.full, r.parity);
    if (fetched) w.load(r.data + at.a, r.data + at.b, r.data + at.escape);
    issue(v, x, acc);
    ptx::wgmma_wait<0>();
    ptx::mbarrier_arrive(empty);
  }
}
#endif

__device__ __forceinline__ void add(float* c, float4 v) { c[0] += v.x, c[1] += v.y, c[2] += v.z, c[3] += v.w; }

__device__ __forceinline__ void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(32 * kConsumers) : "memory"); }

// Sums the accumulators of the warps along K into those of warp 0, in order.
__device__ __forceinline__ void reduce_along_k(float4* buffer, int wn, int wk, float (*acc)[4]) {
  if (WK == 1) return;
  const u32 lane = threadIdx.x & 31;
  if (wk > 0)
#pragma unroll
    for (int i = 0; i < NT; ++i) {
      const float* c = acc[i];
      buffer[(((wk - 1) * WN + wn) * NT + i) * 32 + lane] = {c[0], c[1], c[2], c[3]};
    }
  consumers_sync();
  if (wk == 0)
#pragma unroll
    for (int w = 1; w < WK; ++w)
#pragma unroll
      for (int i = 0; i < NT; ++i)
        add(acc[i], buffer[(((w - 1) * WN + wn) * NT + i) * 32 + lane]);
  consumers_sync();
}

__device__ __forceinline__ void store(const Params& p, long long row, float (*acc)[4]) {
  const u32 lane = threadIdx.x & 31;
#pragma unroll
  for (int nt = 0; nt < NT; ++nt)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const long long n = row + (lane >> 2) + 8 * (i >> 1);
      const int m = 8 * nt + 2 * (lane & 3) + (i & 1);
      if (m < p.tokens && n < p.rows) p.y[m * p.y_stride + n] = ptx::to_bf16(acc[nt][i]);
    }
}

// Adds the partial tiles of the CTAs after `first`, in order, and stores.
template <class Slot>
__device__ __forceinline__ void sum_and_store(const Params& p, u32 tile, u32 first, u32 last, int wn, const Slot& slot,
                                              float (*acc)[4]) {
  for (u32 cta = first + 1; cta <= last; ++cta) {
    const float4* next = slot(cta, false);
#pragma unroll
    for (int i = 0; i < NT; ++i) add(acc[i], ptx::load_l2(next + i * 32));
  }
  store(p, static_cast<long long>(tile) * kTileRows + wn * 16, acc);
}

// Writes this warp's partial tile; the last CTA to do so sums all of them in order of the CTA index and stores.
__device__ __forceinline__ void finish_shared(const Params& p, u32 tile, bool starts_tile, int wn, float (*acc)[4]) {
  const u32 lane = threadIdx.x & 31;
  const u32 first = owner(p, tile * p.chunks), last = owner(p, tile * p.chunks + p.chunks - 1);
  float4* partial = reinterpret_cast<float4*>(p.partial);
  const auto slot = [&](u32 cta, bool starts) {
    return partial + static_cast<size_t>((2 * cta + starts) * ROWS + wn) * (NT * 32) + lane;
  };
  u32* counter = p.counter + tile * ROWS + wn;
  u32 before = 0;
  if (starts_tile) {
    // First in the order of the sum: when all others are there already, nothing of ours need be written.
    if (lane == 0) before = ptx::load_acquire(counter);
    if (__shfl_sync(0xFFFFFFFFu, before, 0) == last - first) {
      if (lane == 0) *counter = 0;
      sum_and_store(p, tile, first, last, wn, slot, acc);
      return;
    }
  }
  float4* mine = slot(blockIdx.x, starts_tile);
#pragma unroll
  for (int i = 0; i < NT; ++i) {
    const float* c = acc[i];
    mine[i * 32] = {c[0], c[1], c[2], c[3]};
  }
  __syncwarp();
  if (lane == 0) before = ptx::count_arrival(counter);
  if (__shfl_sync(0xFFFFFFFFu, before, 0) != last - first) return;
  if (lane == 0) *counter = 0;
  const float4* begin = slot(first, true);
#pragma unroll
  for (int i = 0; i < NT; ++i) {
    const float4 v = ptx::load_l2(begin + i * 32);
    float* c = acc[i];
    c[0] = v.x, c[1] = v.y, c[2] = v.z, c[3] = v.w;
  }
  sum_and_store(p, tile, first, last, wn, slot, acc);
}

__device__ __forceinline__ void consume(const Params& p, const Share& share, const Stages& ring, float4* buffer) {
  const u32 lane = threadIdx.x & 31, warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x >> 5, 0);
  const int wn = kMixed ? along_n(warp) : warp % WN, wk = kMixed ? along_k(warp) : warp / WN;
  const Offsets at(wn, wk);
  Ring r(ring);
  const u32 chunks = p.chunks, end = share.begin + share.count;
  for (u32 position = share.begin + share.shift, left = share.count; left;) {
    const u32 tile = position / chunks, from = position - tile * chunks;
    const u32 to = chunks - from < end - position ? chunks : from + (end - position);
    const long long row = static_cast<long long>(tile) * kTileRows + wn * 16;
    u32 base[2] = {0, 0};
    if (kDecoder != w12::kBf16 && wn < ROWS) {
      base[0] = __ldg(p.base + row + (lane >> 2)) * 0x00800080u;
      base[1] = __ldg(p.base + row + (lane >> 2) + 8) * 0x00800080u;
    }
    float acc[NT][4];
#pragma unroll
    for (int j = 0; j < NT * 4; ++j) acc[j / 4][j % 4] = 0.0f;
    if (left == share.count) {
      if (kLooksAhead) {
        if (warp == 0) look_ahead(p, share, ring);
        __syncwarp();
      }
      ptx::wait_for_previous_kernel();
    }
#if WGMMA
    if (wn < kByWgmma) {
      multiply_chunks_wgmma(p, to - from, at, base, ring, r, acc);
    } else
#endif
      multiply_chunks(p, to - from, at, base, ring, r, acc);
    reduce_along_k(buffer, wn, wk, acc);
    if (wk == 0 && wn < ROWS) {
      if (from == 0 && to == chunks)
        store(p, row, acc);
      else
        finish_shared(p, tile, from == 0, wn, acc);
    }
    left -= to - from;
    position += to - from;
    if (position == end) position = share.begin;
  }
}

// A CTA without work stays for about half the kernel's time, until the next kernel's CTAs have surely been placed:
// otherwise two of them would share this multiprocessor, and both would be slow.
__device__ __forceinline__ void linger(u32 nanoseconds) {
  if (threadIdx.x) return;
  ptx::wait_for_previous_kernel();
  const u64 begin = ptx::nanosecond_clock();
  while (ptx::nanosecond_clock() - begin < nanoseconds) __nanosleep(500);
}

extern "C" __global__ void __launch_bounds__(32 * (kConsumers + 1), PARTS) w12_gemm(const __grid_constant__ Params p,
                                                                                const __grid_constant__ TensorMap x) {
  extern __shared__ __align__(1024) u8 smem[];
  const u32 data = once(ptx::smem_address(smem)), full = once(data + p.stages * kStage + kReduce);
  const Stages ring = {data, full, once(full + 8 * p.stages), p.stages};
  ptx::let_next_kernel_start();
  if (blockIdx.x >= p.ctas) {
    linger(p.linger);
    return;
  }
  const Share share = share_of(p, blockIdx.x);
  const u32 first = share.count < p.stages ? share.count : p.stages;
  const u32 producer = 32 * kConsumers;
  if (threadIdx.x == producer) start(p, x, share, first, ring);
  __syncthreads();
  if (threadIdx.x < producer) {
    consume(p, share, ring, reinterpret_cast<float4*>(smem + p.stages * kStage));
    return;
  }
  prefetch_side(p, share, threadIdx.x & 31);
  if (threadIdx.x == producer) {
    ptx::wait_for_previous_kernel();
    produce(p, x, share, first, ring);
  }
}
