// Batches of packed weights on their way from memory to registers, for gemv.cu and few.cu.
//
// Constants of both are given by -D: FORMAT (code of the layout), K columns, N rows, STEPS of a part, SLICES of a
// part, U steps in a batch, RESIDENT blocks of a multiprocessor, OUT (0 float32, 1 bfloat16, 2 float16), BIAS, ACT,
// AHEAD (the first loads before waiting for x).
constexpr bool OCTETS = FORMAT == 0, SUPER = FORMAT >= 4;
constexpr bool LEAST = FORMAT == 2 || FORMAT == 4 || FORMAT == 5;  // formats with minima
constexpr int GROUPS = OCTETS ? 1 : 2;                             // of 32 columns in a step
constexpr int ZERO = OCTETS ? 128 : FORMAT == 1 ? 8 : FORMAT == 6 ? 32 : 0;
constexpr int WARPS = 4 * SLICES, THREADS = 32 * WARPS;
constexpr int SPAN = SUPER ? 4 : 1;  // steps that share d and dmin
constexpr int PER = (STEPS + SLICES * SPAN - 1) / (SLICES * SPAN) * SPAN;  // steps of a slice
constexpr int BATCHES = (PER + U - 1) / U;                                 // of a tile
constexpr bool EVEN = PER * SLICES == STEPS && BATCHES * U == PER;
constexpr int TILES = (N + 15) / 16, BLOCKS32 = 4 * STEPS * GROUPS;  // blocks of 32 columns, with padding
static_assert(U % SPAN == 0, "");

struct Batch {
  uint4 numbers[U];
  uint2 scales[U], minima[FORMAT == 2 ? U : 1], high[FORMAT >= 5 ? U : 1], supers[SUPER ? U / SPAN : 1];
};

struct Weights {
  const char *quants, *high, *scales, *minima, *supers;
};

__device__ __forceinline__ void load(
    Batch& to, const Weights& w, int tile, int first, int last, int part, int lane, bool wanted) {
#pragma unroll
  for (int j = 0; j < U; j++) {
    const bool ok = wanted && (EVEN || first + j < last);
    const long unit = ((long)tile * STEPS + first + j) * 4 + part;
    to.numbers[j] = stream4(w.quants + (unit * 32 + lane) * 16, ok);
    to.scales[j] = stream2(w.scales + (unit * 8 + lane / 4) * 8, ok);
    if (FORMAT == 2) to.minima[j] = stream2(w.minima + (unit * 8 + lane / 4) * 8, ok);
    if (FORMAT == 5) to.high[j].x = stream1(w.high + (unit * 32 + lane) * 4, ok);
    if (FORMAT == 6) to.high[j] = stream2(w.high + (unit * 32 + lane) * 8, ok);
    if (SUPER && j % SPAN == 0) {
      const long span = ((long)tile * (STEPS / SPAN) + (first + j) / SPAN) * 4 + part;
      to.supers[j / SPAN] = stream2(w.supers + (span * 8 + lane / 4) * 8, ok);
    }
  }
}

__device__ __forceinline__ u32 half_of(const uint2& v, int i) { return (i < 2 ? v.x : v.y) >> (i % 2 * 16) & 0xffff; }

__device__ __forceinline__ void write(void* out, long at, float y, bool adds) {
  if (OUT == 0) {
    float* to = (float*)out + at;
    *to = adds ? *to + y : y;
  } else {
    ((unsigned short*)out)[at] = OUT == 1 ? to_bfloat(y) : to_half(y);
  }
}
