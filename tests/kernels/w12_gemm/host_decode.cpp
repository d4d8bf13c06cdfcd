// decode.cuh on the host: every lane of every unit, registers placed as the PTX manual places the fragments of
// mma.m16n8k16.
#include "decode.cuh"

typedef unsigned short u16;
typedef unsigned char u8;

template <int kDecoder>
static void decode(long units, const u32* a, const u32* b, const u32* words, const u32* list, const u8* base, u16* out) {
  for (long u = 0; u < units; ++u)
    for (u32 lane = 0; lane < 32; ++lane) {
      const u32 g = lane / 4, t = lane % 4;
      const u32 low = base[u * 16 + g] * 0x00800080u, high = base[u * 16 + g + 8] * 0x00800080u;
      u32 v[16];
      for (int hs = 0; hs < 4; ++hs) {
        const u32* q = a + u * 256 + (hs / 2) * 128 + lane * 4 + (hs % 2) * 2;
        const u32 p = kDecoder == w12::kNested8 ? 0 : b[u * 128 + lane * 4 + hs];
        w12::decode_step<kDecoder>(q[0], q[1], p, low, high, v + 4 * hs);
      }
      if (words[u]) w12::patch_unit(v, words[u], list, lane);
      for (u32 r = 0; r < 16; ++r)
        for (u32 e = 0; e < 2; ++e) {
          const u32 half = r / 8, step = r / 4 % 2, i = r % 4;
          // Fragment A: register i holds row g + 8 * (i & 1), k 2t + 8 * (i >> 1) + e.
          const u32 row = g + 8 * (i & 1), column = 32 * half + 16 * step + 8 * (i >> 1) + 2 * t + e;
          out[(u * 16 + row) * 64 + column] = (u16)(v[r] >> (16 * e));
        }
    }
}

extern "C" void decode_units(int decoder, long units, const u32* a, const u32* b, const u32* words, const u32* list,
                             const u8* base, u16* out) {
  if (decoder == w12::kW12) decode<w12::kW12>(units, a, b, words, list, base, out);
  if (decoder == w12::kNested8) decode<w12::kNested8>(units, a, b, words, list, base, out);
  if (decoder == w12::kW12Zero) decode<w12::kW12Zero>(units, a, b, words, list, base, out);
}
