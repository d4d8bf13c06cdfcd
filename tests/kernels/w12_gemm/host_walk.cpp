// wide_walk.cuh on the host. TOKENS comes from the compiler's command line.
#include "wide_walk.cuh"

static Params params(const u32* v) {
  Params p = {};
  p.columns = v[0], p.units = v[1], p.tiling_rows = v[2], p.log_wk = v[3], p.chunks = v[4], p.words = v[5];
  p.row_tiles = v[6], p.token_tiles = v[7], p.workers = v[8], p.shared_tiles = v[9], p.share = v[10], p.extra = v[11];
  return p;
}

// Writes tile, from, to of each segment of a worker, in order; returns how many there are.
extern "C" int segments(const u32* values, u32 worker, u32* out) {
  const Params p = params(values);
  Walk walk(p, worker);
  Segment s;
  int count = 0;
  while (walk.next(p, s)) out[3 * count] = s.tile, out[3 * count + 1] = s.from, out[3 * count++ + 2] = s.to;
  return count;
}

extern "C" u32 first_worker(const u32* values, u32 tile) {
  const Params p = params(values);
  return owner(p, tile * p.columns);
}

extern "C" void place(const u32* values, u32 tile, u32* out) {
  const Place where(params(values), tile);
  out[0] = where.row, out[1] = where.token;
}

// Index of the unit and of its escape word.
extern "C" void unit_at(const u32* values, u32 unit, u32 column, u32* out) {
  const UnitRow row(params(values), unit);
  out[0] = row.at(column), out[1] = row.word(column);
}
