// y[M, N] = x[M, K] @ W[N, K]^T for many tokens (prefill): a weight is decoded once for each tile of TOKENS tokens and
// never written to memory as BF16.
//
// A tile is 128 rows of the weight x TOKENS tokens. Two consumer warpgroups have 64 rows each: a warp decodes one unit
// (16 rows x 64 columns) into A fragments while its warpgroup's wgmma with the unit before is under way. Producer warps
// stream units and x (64 columns of all tokens) through a ring of stages.
//
// Whole waves of tiles go out one tile a worker (a CTA) at a time, rows and tokens in blocks that keep both in L2. What
// is left, less than two tiles a worker, is dealt out stream-K, first: each worker gets an equal share of the line of all
// k64 columns of these tiles. The worker with the last columns of a tile adds what the others wrote, in order, so results
// repeat bit for bit; they depend on M, unlike those of w12_gemm.cu. It waits only for workers of lower index, which
// were started before it and work on what it waits for first.
//
// Compile-time parameters: DECODER, TOKENS (128 or 256), STAGES.
#include "decode.cuh"
#include "ptx.cuh"
#include "unit.cuh"
#include "wgmma.cuh"
#include "wide_walk.cuh"

constexpr int kEights = TOKENS / 8;
constexpr int kAcc = TOKENS / 2;  // accumulators of a thread
constexpr int kUnits = kTileRows / 16;
constexpr int kHalf = 128;        // tokens of a box of x and of y
constexpr int kBytesX = TOKENS * 128;
constexpr int kOffsetA = kBytesX, kOffsetB = kOffsetA + kUnits * kUnitA;
constexpr int kStage = kOffsetB + kUnits * kUnitB;
constexpr int kOut = kHalf * 128;  // bytes of a warpgroup's 64 rows x kHalf tokens
constexpr int kConsumers = 256;
static_assert(kStage % 1024 == 0, "swizzled boxes start at multiples of 1024");

struct alignas(64) TensorMap {
  u64 opaque[16];
};

// The same value, which the compiler can't work out again in every round of the loop.
__device__ __forceinline__ u32 once(u32 v) { return __shfl_sync(0xFFFFFFFFu, v, threadIdx.x & 31); }

// Walks around the ring of stages; each has an mbarrier that its bytes complete and one at which all consumers arrive.
struct Ring {
  u32 data, full, first, last, parity;
  __device__ __forceinline__ Ring(u32 data, u32 bars)
      : data(data), full(bars), first(bars), last(bars + 8 * (STAGES - 1)), parity(0) {}
  __device__ __forceinline__ u32 empty() const { return full + 8 * STAGES; }
  __device__ __forceinline__ void next() {
    const bool around = full == last;
    data += around ? 0u - (STAGES - 1) * kStage : u32(kStage);
    full = around ? first : full + 8;
    parity ^= around;
  }
};

// How many units, one after the other in memory, a lane copies at once: a run's first lane all of them, others none.
__device__ __forceinline__ u32 run(u32 first, u32 lane) {
  const bool begins = first != __shfl_up_sync(0xFFFFFFFFu, first, 1) + 1;
  const u32 begun = __ballot_sync(0xFFFFFFFFu, (lane == 0 || begins) && lane < kUnits);
  const u32 after = (begun | 1u << kUnits) >> (lane + 1);
  return begun >> lane & 1 ? __ffs(after) : 0;
}

// Four warps: each has every fourth lane's copies, because a warp issues them one after the other.
__device__ __forceinline__ void produce(const Params& p, const TensorMap& x, Ring ring) {
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
  if (warp == 3) ptx::wait_for_previous_kernel();  // it loads x; no kernel writes weights
  Walk walk(p, blockIdx.x);
  Segment s;
  u32 filled = 0;
  while (walk.next(p, s)) {
    const Place place(p, s.tile);
    const UnitRow row(p, place.row / 16 + (lane & (kUnits - 1)));
    const u32 length = run(row.first, lane), units = (lane & 3) == warp ? length : 0;
    for (u32 column = s.from; column < s.to; ++column, ring.next(), ++filled) {
      if (filled >= STAGES) ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
      if (lane == 0 && warp == 3) {
        ptx::mbarrier_expect(ring.full, kStage);
        for (u32 t = 0; t < TOKENS; t += kHalf)
          ptx::tensor_copy(ring.data + t * 128, &x, column * 64, place.token + t, ring.full);
      }
      if (units) {
        const size_t unit = row.at(column);
        ptx::bulk_copy(ring.data + kOffsetA + lane * kUnitA, p.a + unit * kUnitA, units * kUnitA, ring.full);
        if (kUnitB)
          ptx::bulk_copy(ring.data + kOffsetB + lane * kUnitB, p.b + unit * kUnitB, units * kUnitB, ring.full);
      }
      __syncwarp();
    }
  }
}

// The units of a consumer warp's 16 rows, one of each column, on their way from stages to registers.
struct Source {
  u32 a, b;  // this lane's addresses, as offsets in a stage
  UnitRow row;
  u32 base[2];
  u32 column, columns;          // to be loaded next; number of columns of the weight
  u32 words, words_after, turn;  // escape words of 32 columns and of 32 more, one a lane; columns used up
  u32 x, empty;  // of the stage that was loaded last: where its x is, and its barrier
  Packed w;
  __device__ __forceinline__ Source(const Params& p, u32 first_row, u32 warp, u32 lane, u32 column)
      : a(once(kOffsetA + warp * kUnitA + lane * 16)), b(once(kOffsetB + warp * kUnitB + lane * 16)),
        row(p, first_row / 16 + warp), base{0, 0}, column(column), columns(p.columns), words(0), words_after(0), turn(0), x(0), empty(0) {
    if (kDecoder == w12::kBf16) return;
    const u32 unit = first_row / 16 + warp < p.units ? first_row / 16 + warp : p.units - 1;
    base[0] = __ldg(p.base + unit * 16 + (lane >> 2)) * 0x00800080u;
    base[1] = __ldg(p.base + unit * 16 + (lane >> 2) + 8) * 0x00800080u;
    words = fetch_words(p, lane), words_after = fetch_words(p, lane + 32);
  }
  __device__ __forceinline__ u32 fetch_words(const Params& p, u32 ahead) const {
    return column + ahead < columns ? __ldg(p.escape + row.word(column + ahead)) : 0;
  }
  // Reads the next column's unit from its stage, when that has arrived.
  __device__ __forceinline__ void load(const Params& p, Ring& ring) {
    if (kDecoder != w12::kBf16) {
      if (turn == 32) turn = 0, words = words_after, words_after = fetch_words(p, (threadIdx.x & 31) + 32);
      w.word = __shfl_sync(0xFFFFFFFFu, words, turn++);
      ++column;
    }
    x = ptx::wgmma_operand_low(ring.data), empty = ring.empty();
    ptx::mbarrier_wait(ring.full, ring.parity);
    w.load(ring.data + a, ring.data + b);
    ring.next();
  }
};

__device__ __forceinline__ void issue(const u32* v, u32 x, float* acc) {
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step)
    ptx::wgmma<kEights>(acc, v + 4 * step, ptx::wgmma_operand_of(x + 2 * step));
  ptx::wgmma_commit();
}

// The unit in `now` is being multiplied, from a stage with the barrier `empty`. Decodes the one that `source` has loaded
// into `next` meanwhile, has it multiplied too, loads one more if there is one, and releases the stage of the first.
__device__ __forceinline__ void step(const Params& p, Source& source, bool more, Ring& ring, u32& empty, const u32* now,
                                     u32* next, float* acc) {
  decode_unit(source.w, p.list, source.base, next);
  const u32 before = empty;
  empty = source.empty;
  issue(next, source.x, acc);
  if (more) source.load(p, ring);
  ptx::wgmma_wait<1>();
  ptx::wgmma_keep(now, p.workers >> 24);
  ptx::mbarrier_arrive(before);
}

__device__ __forceinline__ void last(const Params& p, u32 empty, const u32* now) {
  ptx::wgmma_wait<0>();
  ptx::wgmma_keep(now, p.workers >> 24);
  ptx::mbarrier_arrive(empty);
}

__device__ __forceinline__ void multiply(const Params& p, Source& source, u32 count, Ring& ring, float* acc) {
  u32 even[16], odd[16];
  source.load(p, ring);
  decode_unit(source.w, p.list, source.base, even);
  u32 empty = source.empty;
  issue(even, source.x, acc);
  if (count > 1) source.load(p, ring);
  for (u32 left = count - 1;;) {
    if (left == 0) return last(p, empty, even);
    step(p, source, left-- > 1, ring, empty, even, odd, acc);
    if (left == 0) return last(p, empty, odd);
    step(p, source, left-- > 1, ring, empty, odd, even, acc);
  }
}

__device__ __forceinline__ float4* slot(const Params& p, u32 cta, int group, u32 thread) {
  return reinterpret_cast<float4*>(p.partial) + (cta * 2 + group) * (kEights * 128) + thread;
}

// Leaves a part of a tile to the worker that finishes it.
__device__ __forceinline__ void leave_part(const Params& p, int group, u32 thread, const float* acc) {
  float4* mine = slot(p, blockIdx.x, group, thread);
#pragma unroll
  for (int j = 0; j < kEights; ++j)
    ptx::store_l2(mine + j * 128, {acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]});
  ptx::named_sync<128>(1 + group);
  if (thread == 0) ptx::store_release(p.ready + blockIdx.x * 2 + group, 1);
}

// Adds the parts of a tile that other workers have left, in order of the worker.
__device__ __forceinline__ void add_parts(const Params& p, u32 tile, int group, u32 thread, float* acc) {
  for (u32 cta = owner(p, tile * p.columns); cta < blockIdx.x; ++cta) {
    u32* flag = p.ready + cta * 2 + group;
    if (thread == 0)
      while (ptx::load_acquire(flag) == 0) __nanosleep(100);
    ptx::named_sync<128>(1 + group);
    if (thread == 0) *flag = 0;
    const float4* part = slot(p, cta, group, thread);
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const float4 v = ptx::load_l2(part + j * 128);
      acc[4 * j] += v.x, acc[4 * j + 1] += v.y, acc[4 * j + 2] += v.z, acc[4 * j + 3] += v.w;
    }
  }
}

// Tokens become rows on the way through shared memory, then the copy engine stores what lies inside y.
__device__ __forceinline__ void store(const Params& p, const TensorMap& y, const Place& place, u32 out, int group,
                                      u32 thread, const float* acc) {
  const u32 lane = thread & 31, warp = thread >> 5, piece = warp * 2 + ((lane >> 3) & 1);
#pragma unroll
  for (int half = 0; half < TOKENS / kHalf; ++half) {
    if (place.token + half * kHalf >= static_cast<u32>(p.tokens)) break;
    if (thread == 0) ptx::wait_for_store_reads();
    ptx::named_sync<128>(1 + group);
#pragma unroll
    for (int j = 0; j < kHalf / 16; ++j) {
      const float* c = acc + half * 64 + 8 * j;
      const u32 v[4] = {ptx::to_bf16_pair(c[0], c[1]), ptx::to_bf16_pair(c[2], c[3]), ptx::to_bf16_pair(c[4], c[5]),
                        ptx::to_bf16_pair(c[6], c[7])};
      const u32 token = 16 * j + (lane >> 4) * 8 + (lane & 7);
      ptx::stmatrix_transposed(out + token * 128 + (piece ^ (token & 7)) * 16, v);
    }
    ptx::fence_async();
    ptx::named_sync<128>(1 + group);
    if (thread == 0) ptx::tensor_store(&y, place.row + group * 64, place.token + half * kHalf, out);
  }
}

__device__ __forceinline__ void consume(const Params& p, const TensorMap& y, u32 out, Ring ring) {
  const int group = __shfl_sync(0xFFFFFFFFu, threadIdx.x >> 7, 0);
  const u32 thread = threadIdx.x & 127, lane = threadIdx.x & 31;
  const u32 warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x >> 5, 0);
  Walk walk(p, blockIdx.x);
  Segment s;
  if (!walk.next(p, s)) return;
  Place place(p, s.tile);
  Source source(p, place.row, warp, lane, s.from);
  ptx::wait_for_previous_kernel();
  for (bool more = true; more;) {
    float acc[kAcc];
#pragma unroll
    for (int i = 0; i < kAcc; ++i) acc[i] = 0.0f;
    multiply(p, source, s.to - s.from, ring, acc);
    const Segment done = s;
    const Place where = place;
    more = walk.next(p, s);
    if (more) {  // its base and words are on their way while this tile is stored
      place = Place(p, s.tile);
      source = Source(p, place.row, warp, lane, s.from);
    }
    if (done.to < p.columns) {
      leave_part(p, group, thread, acc);
    } else {
      if (done.from > 0) add_parts(p, done.tile, group, thread, acc);
      store(p, y, where, out + group * kOut, group, thread, acc);
    }
  }
  if (thread == 0) ptx::wait_for_store_reads();
}

extern "C" __global__ void __launch_bounds__(kConsumers + 128, 1)
    w12_wide(const __grid_constant__ Params p, const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap y) {
  extern __shared__ __align__(1024) u8 smem[];
  ptx::let_next_kernel_start();
  const u32 data = once(ptx::smem_address(smem)), out = data + STAGES * kStage, bars = out + 2 * kOut;
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < STAGES; ++i) {
      ptx::mbarrier_init(bars + 8 * i, 1);
      ptx::mbarrier_init(bars + 8 * (STAGES + i), kConsumers);
    }
    ptx::fence_mbarrier_init();
    ptx::prefetch_tensor_map(&x);
    ptx::prefetch_tensor_map(&y);
  }
  __syncthreads();
  const Ring ring(data, bars);
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    produce(p, x, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume(p, y, out, ring);
  }
}
