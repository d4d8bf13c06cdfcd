// How w12_wide.cu deals tiles out to workers, and where a tile lies. Plain integer code: a test compiles it for the host.
// Compile-time parameter: TOKENS.
#pragma once

#include "decode.cuh"

#ifdef __CUDACC__
#define W12_INSIDE __device__ __forceinline__
#else
#define W12_INSIDE inline
typedef unsigned char u8;
#endif

constexpr u32 kTileRows = 128;
constexpr u32 kGroup = 8;  // token tiles that are worked on at a time

struct Params {
  const u8* a;
  const u8* b;
  const u32* escape;
  const u32* list;
  const u8* base;
  float* partial;  // [CTAs, 2, kEights, 128] float4: the part of a tile that a CTA did not finish
  u32* ready;      // [CTAs, 2] zero; zero again at the end
  int tokens, rows;
  u32 columns;  // k64 columns of the weight
  u32 units;    // 16-row units of the padded weight
  u32 tiling_rows, log_wk, chunks, words;  // the weight's tiling: units of a tile, log2 of wk, chunks, words of a chunk
  u32 row_tiles, token_tiles;
  u32 workers, shared_tiles, share, extra;  // stream-K tiles; columns of a worker's share; workers with one more
};

// Columns [from, to) of a tile.
struct Segment {
  u32 tile, from, to;
};

// A worker's segments: of its stream-K share the tile that it only begins, for which another worker waits, then whole
// tiles, then the rest of a tile that others have begun; after that its tiles of the whole waves.
struct Walk {
  u32 begin, middle, tail, end, whole;
  W12_INSIDE Walk(const Params& p, u32 worker) {
    begin = worker * p.share + (worker < p.extra ? worker : p.extra);
    end = begin + p.share + (worker < p.extra);
    middle = (begin + p.columns - 1) / p.columns * p.columns;
    middle = middle < end ? middle : end;
    tail = end / p.columns * p.columns;
    tail = tail > middle ? tail : middle;
    whole = p.shared_tiles + worker;
  }
  W12_INSIDE bool next(const Params& p, Segment& s) {
    u32 from, to;
    if (tail < end) {
      from = tail, to = end, end = tail;
    } else if (middle < tail) {
      from = middle, to = middle += p.columns;
    } else if (begin % p.columns) {
      from = begin, to = begin / p.columns * p.columns + p.columns;
      to = to < end ? to : end, begin = 0;
    } else {
      s = {whole, 0, p.columns};
      whole += p.workers;
      return s.tile < p.row_tiles * p.token_tiles;
    }
    s.tile = from / p.columns;
    s.from = from - s.tile * p.columns, s.to = to - s.tile * p.columns;
    return true;
  }
};

// First row and first token of a tile.
struct Place {
  u32 row, token;
  W12_INSIDE Place(const Params& p, u32 tile) {
    const u32 block = kGroup * p.row_tiles, group = tile / block, within = tile - group * block;
    const u32 width = p.token_tiles - group * kGroup < kGroup ? p.token_tiles - group * kGroup : kGroup;
    const u32 along = within / width;
    row = along * kTileRows;
    token = (group * kGroup + within - along * width) * TOKENS;
  }
};

// Where a row of units lies in the packed weight; rows past its end read the last one, and are not stored.
struct UnitRow {
  u32 first, step, mask, log_wk, words, step_words;
  W12_INSIDE UnitRow(const Params& p, u32 unit) {
    unit = unit < p.units ? unit : p.units - 1;
    const u32 tile = unit / p.tiling_rows, row = unit - tile * p.tiling_rows;
    log_wk = p.log_wk, mask = (1u << log_wk) - 1, step = p.tiling_rows << log_wk, step_words = p.words;
    first = tile * p.chunks * step + (row << log_wk);
    words = tile * p.chunks * p.words + (row << log_wk);
  }
  W12_INSIDE u32 at(u32 column) const { return first + (column >> log_wk) * step + (column & mask); }
  W12_INSIDE u32 word(u32 column) const {
    return words + (column >> log_wk) * step_words + (column & mask);
  }
};

// The worker whose share has a position of the line.
W12_FN u32 owner(const Params& p, u32 position) {
  const u32 larger = p.extra * (p.share + 1);
  return position < larger ? position / (p.share + 1) : p.extra + (position - larger) / p.share;
}
