// From packed words in fragment order to BF16 pairs in registers. Plain integer code: a test compiles it for the host.
//
// One word of plane A holds four weights of one row, two BF16 pairs. Pair 0 lies where BF16 wants it (mask 0x87F0 in
// each 16-bit lane: sign, four exponent bits, upper mantissa); pair 1 fills the remaining bits so that one shift left
// and one shift right put it there. One word of plane B holds the low nibbles of four pairs, pair i at bit 4 * i of
// each lane. The window's base is added as an integer, which is exact for every base, where a scale of the row's
// result could overflow.
#pragma once

#ifdef __CUDACC__
#define W12_FN __device__ __forceinline__
#define W12_LOAD(p) __ldg(p)
#else
#define W12_FN static inline
#define W12_LOAD(p) (*(p))
#endif

typedef unsigned int u32;

namespace w12 {

enum Decoder { kBf16 = 0, kW12 = 1, kNested8 = 2, kW12Zero = 3 };

W12_FN u32 pair0(u32 q) { return q & 0x87F087F0u; }

W12_FN u32 pair1(u32 q) { return ((q << 4) & 0x80F080F0u) | ((q >> 4) & 0x07000700u); }

// Adds the row's base to both exponents. `base` is base * 0x00800080.
template <int kDecoder>
W12_FN u32 rebase(u32 v, u32 base) {
  if (kDecoder != kW12Zero) return v + base;
  // The zero code: a lane with exponent offset and mantissa 0 keeps its sign and gets no base.
  const u32 nonzero = (((v & 0x7FFF7FFFu) + 0x7FFF7FFFu) >> 15) & 0x00010001u;
  return v + nonzero * (base & 0xFFFFu);
}

// Decodes one k16 step of a 16-row unit: v[0], v[2] belong to row g, v[1], v[3] to row g + 8.
template <int kDecoder>
W12_FN void decode_step(u32 q_low, u32 q_high, u32 p, u32 base_low, u32 base_high, u32* v) {
  u32 m[4];
  for (int i = 0; i < 4; ++i) m[i] = kDecoder == kNested8 ? 0x00080008u : (p >> (4 * i)) & 0x000F000Fu;
  v[0] = rebase<kDecoder>(pair0(q_low) | m[0], base_low);
  v[1] = rebase<kDecoder>(pair0(q_high) | m[1], base_high);
  v[2] = rebase<kDecoder>(pair1(q_low) | m[2], base_low);
  v[3] = rebase<kDecoder>(pair1(q_high) | m[3], base_high);
}

// Puts one escape into the 16 registers of a unit. `place` is lane | register << 5 | upper half << 9.
W12_FN void patch(u32* v, u32 lane, u32 place, u32 value) {
  const u32 half = (place & 0x200u) ? 0xFFFF0000u : 0x0000FFFFu;
  const u32 mask = lane == (place & 31u) ? half : 0u;
  const u32 both = value | (value << 16);
  const u32 target = (place >> 5) & 15u;
#pragma unroll
  for (u32 r = 0; r < 16; ++r)
    if (r == target) v[r] = (v[r] & ~mask) | (both & mask);
}

// Replaces the placeholders of a unit by the exact bits of its escapes. `word` is value << 16 | place << 2 | 1 for one
// escape, or index << 2 | 2 for several: list[index] is their count, then value << 16 | place for each.
W12_FN void patch_unit(u32* v, u32 word, const u32* list, u32 lane) {
  if (word & 1) {
    patch(v, lane, (word >> 2) & 0x3FF, word >> 16);
  } else {
    const u32* entry = list + (word >> 2);
    for (u32 left = W12_LOAD(entry); left; --left) {
      const u32 e = W12_LOAD(++entry);
      patch(v, lane, e & 0x3FF, e >> 16);
    }
  }
}

}  // namespace w12
