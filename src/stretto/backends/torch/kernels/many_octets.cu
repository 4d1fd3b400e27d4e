// Many rows times a packed matrix, in 8 bits, with the sums of few_octets.cu.
//
// A block multiplies ROWS rows with 16 rows of weights for each of its warps. Both stand in shared memory, some steps
// of K at a time, and those that follow are on their way meanwhile. Where a matrix is narrow, a block has one part of
// K; the last one of four adds them up.
//
// Constants beside those of octets.cuh: ROWS (8 to 64), BLOCK warps, STAGES, AT_ONCE (blocks of a multiprocessor), SPLIT, GATED, EXPERTS (a block's rows are
// pairs of a row and its expert, `each` pairs for a row of x; pairs and experts of blocks below 0 are none).
constexpr int NB = ROWS / 8, WIDTH = BLOCK * 16, BLOCK_THREADS = BLOCK * 32, MAX_TILE = BLOCK;
constexpr int STAGE_GROUPS = U * GROUPS, STAGE_SCALES = STAGE_GROUPS / GROUPS_OF_SCALE;
// A stage in shared memory: x, then what each warp has.
constexpr int AT_SCALES = STAGE_GROUPS * ROWS * 32, AT_SUMS = AT_SCALES + STAGE_SCALES * ROWS * 4;
constexpr int AT_WEIGHTS = (AT_SUMS + STAGE_SCALES * ROWS * SUM_BYTES + 15) / 16 * 16;
constexpr int AT_WSCALES = U * 512, AT_WMINIMA = AT_WSCALES + U * 64, AT_HIGH = AT_WMINIMA + (FORMAT == 2 ? U * 64 : 0);
constexpr int HIGH_BYTES = FORMAT == 5 ? 4 : FORMAT == 6 ? 8 : 0;
constexpr int AT_SUPERS = AT_HIGH + U * 32 * HIGH_BYTES, WARP_BYTES = AT_SUPERS + (SUPER ? U / SPAN * 64 : 0);
constexpr int STAGE_BYTES = AT_WEIGHTS + BLOCK * WARP_BYTES;
constexpr int IN_PART = SLICES * BATCHES, PITCH = WIDTH + 4;

struct Place {
  int part, first, last;  // steps of the part
};
__device__ __forceinline__ Place place_of(int i, int first_part) {
  const int rest = i % IN_PART, slice = rest / BATCHES * PER, first = slice + rest % BATCHES * U;
  return {first_part + i / IN_PART, first, slice + PER < STEPS ? slice + PER : STEPS};
}

__device__ __forceinline__ void load_weights(char* stage, const Weights& w, int tile, bool is_tile, const Place& at, int lane) {
#pragma unroll
  for (int j = 0; j < U; j++) {
    const bool ok = is_tile && at.first + j < at.last;
    const long unit = ((long)tile * STEPS + at.first + j) * 4 + at.part;
    copy16(stage + (j * 32 + lane) * 16, ok ? w.quants + (unit * 32 + lane) * 16 : w.quants, ok);
    if (FORMAT == 5) copy4(stage + AT_HIGH + (j * 32 + lane) * 4, ok ? w.high + (unit * 32 + lane) * 4 : w.high, ok);
    if (FORMAT == 6) copy8(stage + AT_HIGH + (j * 32 + lane) * 8, ok ? w.high + (unit * 32 + lane) * 8 : w.high, ok);
  }
#pragma unroll
  for (int i = lane; i < U * 8; i += 32) {
    const int step = at.first + i / 8;
    const bool ok = is_tile && step < at.last;
    const long unit = (((long)tile * STEPS + step) * 4 + at.part) * 8 + i % 8;
    copy8(stage + AT_WSCALES + i * 8, ok ? w.scales + unit * 8 : w.scales, ok);
    if (FORMAT == 2) copy8(stage + AT_WMINIMA + i * 8, ok ? w.minima + unit * 8 : w.minima, ok);
  }
  if (SUPER && lane < U / SPAN * 8) {
    const int step = at.first + lane / 8 * SPAN;
    const bool ok = is_tile && step < at.last;
    const long span = (((long)tile * (STEPS / SPAN) + step / SPAN) * 4 + at.part) * 8 + lane % 8;
    copy8(stage + AT_SUPERS + lane * 8, ok ? w.supers + span * 8 : w.supers, ok);
  }
}

// `from`: the rows of x that the block's rows are.
__device__ __forceinline__ void load_x(char* stage, const Octets& x, const int* from, int rows, const Place& at, int thread) {
  const long group = ((long)at.part * STEPS + at.first) * GROUPS;
  const int groups = (at.last - at.first < U ? at.last - at.first : U) * GROUPS;
#pragma unroll 4
  for (int i = thread; i < STAGE_GROUPS * ROWS * 2; i += BLOCK_THREADS) {
    const int g = i / (ROWS * 2), r = i / 2 % ROWS;
    const bool ok = g < groups;
    copy16(stage + i * 16, ok ? x.numbers + ((group + g) * rows + from[r]) * 32 + i % 2 * 16 : x.numbers, ok);
  }
  const long scale = group / GROUPS_OF_SCALE;
  const int scales = groups / GROUPS_OF_SCALE;
#pragma unroll 4
  for (int i = thread; i < STAGE_SCALES * ROWS; i += BLOCK_THREADS) {
    const int g = i / ROWS, r = i % ROWS;
    const bool ok = g < scales;
    const long n = (scale + g) * rows + from[r];
    copy4(stage + AT_SCALES + i * 4, ok ? x.scales + n * 4 : x.scales, ok);
    if (FORMAT == 2) copy4(stage + AT_SUMS + i * 4, ok ? x.sums + n * 4 : x.sums, ok);
    if (MINIMA) {
      copy16(stage + AT_SUMS + i * 32, ok ? x.sums + n * 32 : x.sums, ok);
      copy16(stage + AT_SUMS + i * 32 + 16, ok ? x.sums + n * 32 + 16 : x.sums, ok);
    }
  }
}

__device__ __forceinline__ void read(Batch& to, const char* stage, int lane) {
#pragma unroll
  for (int j = 0; j < U; j++) {
    to.numbers[j] = *(const uint4*)(stage + (j * 32 + lane) * 16);
    to.scales[j] = *(const uint2*)(stage + AT_WSCALES + (j * 8 + lane / 4) * 8);
    if (FORMAT == 2) to.minima[j] = *(const uint2*)(stage + AT_WMINIMA + (j * 8 + lane / 4) * 8);
    if (FORMAT == 5) to.high[j].x = *(const u32*)(stage + AT_HIGH + (j * 32 + lane) * 4);
    if (FORMAT == 6) to.high[j] = *(const uint2*)(stage + AT_HIGH + (j * 32 + lane) * 8);
    if (SUPER && j % SPAN == 0) to.supers[j / SPAN] = *(const uint2*)(stage + AT_SUPERS + (j / SPAN * 8 + lane / 4) * 8);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, AT_ONCE) many_octets(
    Octets x, int rows, int x_rows, Weights weights, const float* bias, void* out, long stride, const int* experts,
    const int* pairs, int each, float limit, float alpha, float* scratch, int* counters, int row_blocks) {
  extern __shared__ int4 xs[];
  __shared__ float y[ROWS][PITCH];
  __shared__ int from[ROWS], to_rows[ROWS], is_last;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int row_block = blockIdx.x % row_blocks, rest = blockIdx.x / row_blocks;
  const int part = SPLIT ? rest % 4 : 0, first_tile = (SPLIT ? rest / 4 : rest) * MAX_TILE, tile = first_tile + warp;
  const int total = IN_PART * (SPLIT ? 1 : 4);
  char* stages = (char*)xs;
  int behind = 0;
  launch_next();
  await_inputs();
  if (EXPERTS) {
    const int expert = experts[row_block];
    if (expert < 0) return;
    behind = expert * TILES, bias += (long)expert * N;
  }
  for (int i = thread; i < ROWS; i += BLOCK_THREADS) {
    const int row = EXPERTS ? pairs[row_block * ROWS + i] : row_block * ROWS + i;
    const bool is_row = row >= 0 && row < rows;
    to_rows[i] = is_row ? row : -1;
    from[i] = is_row ? row / each : 0;
  }
  __syncthreads();
  auto start = [&](int i) {
    if (i < total) {
      const Place at = place_of(i, part);
      char* stage = stages + i % STAGES * STAGE_BYTES;
      load_weights(stage + AT_WEIGHTS + warp * WARP_BYTES, weights, behind + tile, tile < TILES, at, lane);
      load_x(stage, x, from, x_rows, at, thread);
    }
    commit();
  };
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) start(i);
  Sums sums[NB] = {};
  float in_part[NB][4] = {};
#pragma unroll 1
  for (int i = 0; i < total; i++) {
    await_copies<STAGES - 2>();
    __syncthreads();
    start(i + STAGES - 1);
    const Place at = place_of(i, part);
    const char* stage = stages + i % STAGES * STAGE_BYTES;
    const char* numbers = stage + lane * 8;
    const float* scales = (const float*)(stage + AT_SCALES) + lane % 4 * 2;
    const float* group_sums = (const float*)(stage + AT_SUMS) + lane % 4 * 2;
    Batch b;
    read(b, stage + AT_WEIGHTS + warp * WARP_BYTES, lane);
#pragma unroll
    for (int j = 0; j < U; j++) {
      if (!EVEN && at.first + j >= at.last) break;
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        const Group w = group_of(b, j, g);
        const int group = j * GROUPS + g;
#pragma unroll
        for (int n = 0; n < NB; n++) {
          float by[2], sum[2];
#pragma unroll
          for (int c = 0; c < 2; c++) {
            if (!SUPER) by[c] = scales[group * ROWS + n * 8 + c];
            if (FORMAT == 2) sum[c] = group_sums[group * ROWS + n * 8 + c];
          }
          add<ROWS>(sums[n], w, *(const uint2*)(numbers + (group * ROWS + n * 8) * 32), by, sum);
        }
      }
      if (!SUPER || j % SPAN < SPAN - 1) continue;
      const Span w = span_of(b, j - (SPAN - 1), lane);
#pragma unroll
      for (int n = 0; n < NB; n++) {
        const int at_row = j / SPAN * ROWS + n * 8;
        const float by[2] = {scales[at_row], scales[at_row + 1]};
        uint2 sum = {0, 0};
        if (MINIMA) sum = *(const uint2*)(stage + AT_SUMS + at_row * 32 + lane * 8);
        end_span<ROWS>(sums[n], w, by, sum);
      }
    }
    const int done = i % IN_PART;
    if (done % BATCHES < BATCHES - 1) continue;
#pragma unroll
    for (int n = 0; n < NB; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        in_part[n][e] = done / BATCHES ? in_part[n][e] + sums[n].done[e] : sums[n].done[e];
        sums[n].done[e] = 0;
        if (done / BATCHES < SLICES - 1) continue;
        float& to = y[n * 8 + lane % 4 * 2 + e % 2][warp * 16 + lane / 4 + e / 2 * 8];
        to = i / IN_PART ? to + in_part[n][e] : in_part[n][e];
      }
    }
  }
  __syncthreads();
  const int count = WIDTH < N - first_tile * 16 ? WIDTH : N - first_tile * 16;
  if (SPLIT) {  // [block of rows][4 parts][ROWS][N]
    float* mine = scratch + (long)row_block * 4 * ROWS * N + first_tile * 16;
    for (int i = thread; i < ROWS * WIDTH; i += BLOCK_THREADS)
      if (i % WIDTH < count) mine[((long)part * ROWS + i / WIDTH) * N + i % WIDTH] = y[i / WIDTH][i % WIDTH];
    fence();
    __syncthreads();
    int* counter = counters + row_block * ((TILES + MAX_TILE - 1) / MAX_TILE) + rest / 4;
    if (thread == 0) is_last = atomicAdd(counter, 1) == 3;
    __syncthreads();
    if (!is_last) return;
    if (thread == 0) *counter = 0;
    fence();
    for (int i = thread; i < ROWS * WIDTH; i += BLOCK_THREADS) {
      if (i % WIDTH >= count) continue;
      float p[4];
#pragma unroll
      for (int k = 0; k < 4; k++) p[k] = read_fresh(mine + ((long)k * ROWS + i / WIDTH) * N + i % WIDTH);
      y[i / WIDTH][i % WIDTH] = p[0] + p[1] + p[2] + p[3];
    }
    __syncthreads();
  }
  constexpr int EACH = GATED ? 2 : 1;
  for (int i = thread; i < ROWS * WIDTH / EACH; i += BLOCK_THREADS) {
    const int m = i / (WIDTH / EACH), n = i % (WIDTH / EACH) * EACH, row = to_rows[m];
    if (row < 0 || n >= count) continue;
    float v[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) v[e] = BIAS ? y[m][n + e] + bias[first_tile * 16 + n + e] : y[m][n + e];
    write(
        out, row * stride + (first_tile * 16 + n) / EACH, GATED ? gate(v[0], v[EACH - 1], limit, alpha) : activate(v[0]),
        false);
  }
}
