// Up to 32 rows times a packed matrix, in 8 bits: whole numbers multiplied by tensor cores.
//
// A block walks some tiles of 16 rows. Each of its warps has a slice of the columns of all of them, so that a block
// meets only to add up and write sums. Loads of the next batch are on their way while a batch is multiplied, the first
// ones before the kernel that makes x has ended. Rows are rounded by each block, or have been before (X = 3).
//
// Constants beside those of octets.cuh: X (type of x as OUT, or 3), ROWS (1, 2, 4, 8; rounded rows 8, 16 or 32, as many
// as they have places for), GATED, EXPERTS (each row is a pair of a row and an expert, `each` pairs for a row of x;
// ROWS is 1).
constexpr int CHUNK = ROWS < 8 ? 8 / ROWS : 1;  // tiles between two meetings
constexpr int BUFFERS = ROWS > 16 ? 1 : 2;      // of sums
constexpr int NB = ROWS < 8 ? 1 : ROWS / 8;
constexpr int NUMBER_BYTES = BLOCKS32 * ROWS * 32, SCALE_BYTES = (SCALES * ROWS * 4 + 15) / 16 * 16;

__device__ __forceinline__ void prepare(const void* x, long from, int rows, const Octets& to, int thread) {
  constexpr int SPANS = (BLOCKS32 + 7) / 8;
  for (int i = thread / 32; i < SPANS * rows; i += WARPS)
    round_span(x, X, from + (long)(i / SPANS) * K, i % SPANS, thread % 32, to, i / SPANS, ROWS);
}

typedef float Parts[CHUNK][WARPS][ROWS][16];

// The sums of some tiles, and what follows them.
__device__ __forceinline__ void finish(
    const Parts& parts, int first, int count, int rows, int row, long stride, const float* bias, void* out,
    float limit, float alpha, int thread) {
  constexpr int EACH = GATED ? 2 : 1;
  for (int i = thread * EACH; i < count * 16 * ROWS; i += THREADS * EACH) {
    const int tile = i / 16 / ROWS, m = i / 16 % ROWS, n = (first + tile) * 16 + i % 16;
    if (m >= rows || n >= N) continue;
    float y[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      float sums[4];
#pragma unroll
      for (int p = 0; p < 4; p++) {
        sums[p] = parts[tile][p][m][i % 16 + e];
#pragma unroll
        for (int s = 1; s < SLICES; s++) sums[p] += parts[tile][p + 4 * s][m][i % 16 + e];
      }
      y[e] = sums[0] + sums[1] + sums[2] + sums[3];
      if (BIAS) y[e] += bias[n + e];
    }
    write(out, (row + m) * stride + n / EACH, GATED ? gate(y[0], y[EACH - 1], limit, alpha) : activate(y[0]), false);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) few_octets(
    const void* x, Octets ready, int rows, Weights weights, const float* bias, void* out, long stride,
    const int* experts, int each, float limit, float alpha) {
  extern __shared__ int4 xs[];
  __shared__ Parts parts[BUFFERS];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, part = warp % 4;
  const int begin = warp / 4 * PER, end = begin + PER < STEPS ? begin + PER : STEPS;
  const int pairs = EXPERTS ? rows : 1, pair = blockIdx.x % pairs;
  const u32 blocks = gridDim.x / pairs, block = blockIdx.x / pairs;
  const int tile = TILES * block / blocks, tiles = (int)(TILES * (block + 1) / blocks) - tile;
  const int total = tiles * BATCHES;
  char* shared = (char*)xs;
  const Octets mine = X == 3 ? ready : Octets{shared, shared + NUMBER_BYTES, shared + NUMBER_BYTES + SCALE_BYTES};
  Batch one, two;
  int behind = 0;  // tiles of other experts
  if (!EXPERTS) load(one, weights, tile, begin, end, part, lane, total > 0);
  launch_next();
  await_inputs();
  if (EXPERTS) {
    const int expert = experts[pair];
    behind = expert * TILES, bias += (long)expert * N, rows = 1;
    load(one, weights, behind + tile, begin, end, part, lane, total > 0);
  }
  if (X != 3) {
    prepare(x, EXPERTS ? (long)(pair / each) * K : 0, rows, mine, thread);
    __syncthreads();
  }
  const int group = (part * STEPS + begin) * GROUPS, row = lane / 4 < ROWS ? lane / 4 : ROWS - 1;
  const int column = lane % 4 * 2 < ROWS - 1 ? lane % 4 * 2 : 0;  // the first of the lane's rows of x
  const char* numbers = mine.numbers + ((group * ROWS + row) * 4 + lane % 4) * 8;
  const float* scales = (const float*)mine.scales + group / GROUPS_OF_SCALE * ROWS + column;
  const float* sums = (const float*)mine.sums + group * ROWS + column;
  const char* minima = mine.sums + ((group / GROUPS_OF_SCALE * ROWS + row) * 4 + lane % 4) * 8;
  Sums mine_sums[NB] = {};
  auto two_of = [&](const float* from, int at, float to[2]) {
    to[0] = from[at];
    if (ROWS > 1) to[1] = from[at + 1];
  };
  auto multiply = [&](const Batch& b, int first) {
#pragma unroll
    for (int j = 0; j < U; j++) {
      if (!EVEN && begin + first + j >= end) break;
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        const int i = ((first + j) * GROUPS + g) * ROWS;
        const Group w = group_of(b, j, g);
#pragma unroll
        for (int n = 0; n < NB; n++) {
          float by[2], sum[2];
          if (!SUPER) two_of(scales, i + n * 8, by);
          if (FORMAT == 2) two_of(sums, i + n * 8, sum);
          add<ROWS>(mine_sums[n], w, *(const uint2*)(numbers + (i + n * 8) * 32), by, sum);
        }
      }
      if (!SUPER || j % SPAN < SPAN - 1) continue;
      const Span w = span_of(b, j - (SPAN - 1), lane);
#pragma unroll
      for (int n = 0; n < NB; n++) {
        const int i = (first + j) / SPAN * ROWS + n * 8;
        float by[2];
        two_of(scales, i, by);
        uint2 sum = {0, 0};
        if (MINIMA) sum = *(const uint2*)(minima + i * 32);
        end_span<ROWS>(mine_sums[n], w, by, sum);
      }
    }
  };
  auto step = [&](const Batch& batch, Batch& next, int i) {
    const int n = i + 1;
    load(next, weights, behind + tile + n / BATCHES, begin + n % BATCHES * U, end, part, lane, n < total);
    keep_order();
    const int done = i / BATCHES, b = i % BATCHES;
    multiply(batch, b * U);
    if (b < BATCHES - 1) return;
    float (*to)[16] = parts[done / CHUNK % BUFFERS][done % CHUNK][warp];
#pragma unroll
    for (int n = 0; n < NB; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int m = n * 8 + lane % 4 * 2 + e % 2;
        if (needs<ROWS>(e) && m < ROWS) to[m][lane / 4 + e / 2 * 8] = mine_sums[n].done[e];
        mine_sums[n].done[e] = 0;
      }
    }
    if (done % CHUNK < CHUNK - 1 && done + 1 < tiles) return;
    __syncthreads();
    const int from = done / CHUNK * CHUNK;
    finish(
        parts[done / CHUNK % BUFFERS], tile + from, done - from + 1, rows, EXPERTS ? pair : 0, stride, bias, out, limit,
        alpha, thread);
    if (BUFFERS == 1) __syncthreads();
  };
#pragma unroll 1
  for (int i = 0; i < total; i += 2) {
    step(one, two, i);
    if (i + 1 < total) step(two, one, i + 1);
  }
}
