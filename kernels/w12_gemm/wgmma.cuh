// wgmma: D[64 x 8 * NT] += A[64 x 16] * B[16 x 8 * NT], A in registers as for mma (16 rows a warp), B in shared memory
// as the copy engine leaves it: tokens in rows of 128 swizzled bytes. One warpgroup; asynchronous.
#pragma once

namespace ptx {

// Descriptor of B at `address` (1024-byte aligned, plus 32 bytes for each k16 step): K-major, 128-byte swizzle, groups
// of eight tokens 1024 bytes apart.
W12_DEV u64 wgmma_operand(u32 address) {
  return (u64(1) << 62) | (u64(64) << 32) | (u64(1) << 16) | ((address & 0x3FFFF) >> 4);
}
// The same in two steps: its lower half, to which 2 is added for each k16 step, and all of it.
W12_DEV u32 wgmma_operand_low(u32 address) { return (1u << 16) | (address >> 4); }
W12_DEV u64 wgmma_operand_of(u32 low) {
  u64 operand;
  asm("mov.b64 %0, {%1, %2};" : "=l"(operand) : "r"(low), "r"((1u << 30) | 64u));
  return operand;
}
W12_DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
W12_DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kInFlight>
W12_DEV void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kInFlight) : "memory");
}

// Stands where wgmma has read `v`, sixteen registers: stores that never happen (`never` is 0 whenever the kernel runs,
// which the compiler can't know) keep ptxas (13.0) from computing into these registers while they are being read.
W12_DEV void wgmma_keep(const u32* v, u32 never) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %16, 0;\n"
      "@p st.shared.v4.u32 [%0], {%0, %1, %2, %3};\n@p st.shared.v4.u32 [%0], {%4, %5, %6, %7};\n"
      "@p st.shared.v4.u32 [%0], {%8, %9, %10, %11};\n@p st.shared.v4.u32 [%0], {%12, %13, %14, %15};\n}"
      ::"r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7]), "r"(v[8]), "r"(v[9]),
      "r"(v[10]), "r"(v[11]), "r"(v[12]), "r"(v[13]), "r"(v[14]), "r"(v[15]), "r"(never));
}

template <int kTokenEights>
__device__ __forceinline__ void wgmma(float* c, const u32* a, u64 b);

#define W12_C4(i) "+f"(c[i]), "+f"(c[(i) + 1]), "+f"(c[(i) + 2]), "+f"(c[(i) + 3])
#define W12_C16(i) W12_C4(i), W12_C4((i) + 4), W12_C4((i) + 8), W12_C4((i) + 12)
#define W12_C64(i) W12_C16(i), W12_C16((i) + 16), W12_C16((i) + 32), W12_C16((i) + 48)
#define W12_A "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)

template <>
__device__ __forceinline__ void wgmma<4>(float* c, const u32* a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
      : W12_C16(0)
      : W12_A);
}

template <>
__device__ __forceinline__ void wgmma<8>(float* c, const u32* a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
      : W12_C16(0), W12_C16(16)
      : W12_A);
}

template <>
__device__ __forceinline__ void wgmma<16>(float* c, const u32* a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
      : W12_C64(0)
      : W12_A);
}

template <>
__device__ __forceinline__ void wgmma<32>(float* c, const u32* a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "{%128, %129, %130, %131}, %132, 1, 1, 1, 0;"
      : W12_C64(0), W12_C64(64)
      : W12_A);
}

#undef W12_C4
#undef W12_C16
#undef W12_C64
#undef W12_A

}  // namespace ptx
