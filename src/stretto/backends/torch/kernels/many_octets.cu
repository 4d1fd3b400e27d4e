// Many rows times a packed matrix, in 8 bits, with the sums of few_octets.cu.
//
// A block multiplies ROWS rows with 16 rows of weights for each of its warps. Both stand in shared memory, some steps
// of K at a time, and those that follow are on their way meanwhile. Where a matrix is narrow, a block has one part of
// K; the last one of four adds them up.
//
// Constants beside those of octets.cuh: ROWS (8 to 64), BLOCK warps, STAGES, AT_ONCE (blocks of a multiprocessor),
// SPLIT, GATED, EXPERTS (a block's rows are pairs of a row and its expert, `each` pairs for a row of x; pairs and
// experts of blocks below 0 are none).
constexpr int NB = ROWS / 8, WIDTH = BLOCK * 16, BLOCK_THREADS = BLOCK * 32;
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

// Where a thread copies from: addresses of its pieces of the first stage.
struct Source {
  const char *quants, *high, *wscales, *wminima, *supers;
  const char *numbers, *sums, *scales;
};

// A thread copies pieces of one row: PIECES threads have a group of 32 columns of all rows, two for each.
constexpr int PIECES = 2 * ROWS, GROUPS_AT_ONCE = BLOCK_THREADS / PIECES;
// Scales are copied four rows at a time where rows stand beside each other.
constexpr int SCALE_ROWS = EXPERTS ? 1 : 4, SCALE_PIECES = ROWS / SCALE_ROWS;
constexpr int SCALES_AT_ONCE = BLOCK_THREADS / SCALE_PIECES;
static_assert(BLOCK_THREADS % PIECES == 0, "");

__device__ __forceinline__ Source source_of(
    const Weights& w, const Octets& x, const int* from, int tile, int lane, int thread) {
  const long units = (long)tile * STEPS * 4;
  const int row = from[thread % PIECES / 2], scale_row = from[thread % SCALE_PIECES * SCALE_ROWS];
  return {
      w.quants + (units * 32 + lane) * 16,
      w.high + (units * 32 + lane) * HIGH_BYTES,
      w.scales + (units + lane / 8 * 4) * 64 + lane % 8 * 8,
      w.minima + (units + lane / 8 * 4) * 64 + lane % 8 * 8,
      w.supers + (units / SPAN + lane / 8 * 4) * 64 + lane % 8 * 8,
      x.numbers + row * 32 + thread % 2 * 16,
      x.sums + row * 32 + thread % 2 * 16,
      x.scales + scale_row * 4};
}

__device__ __forceinline__ void load_weights(char* stage, const Source& from, const Place& at, int lane) {
  const int unit = at.first * 4 + at.part;
#pragma unroll
  for (int j = 0; j < U; j++) {
    const bool ok = EVEN || at.first + j < at.last;
    copy16(stage + (j * 32 + lane) * 16, from.quants + (long)unit * 512 + j * 2048, ok);
    if (FORMAT == 5) copy4(stage + AT_HIGH + (j * 32 + lane) * 4, from.high + (long)unit * 128 + j * 512, ok);
    if (FORMAT == 6) copy8(stage + AT_HIGH + (j * 32 + lane) * 8, from.high + (long)unit * 256 + j * 1024, ok);
  }
  if (lane < U * 8) {
    const bool ok = EVEN || at.first + lane / 8 < at.last;
    copy8(stage + AT_WSCALES + lane * 8, from.wscales + (long)unit * 64, ok);
    if (FORMAT == 2) copy8(stage + AT_WMINIMA + lane * 8, from.wminima + (long)unit * 64, ok);
  }
  if (SUPER && lane < U / SPAN * 8) {
    const long span = at.first / SPAN * 4 + at.part;
    copy8(stage + AT_SUPERS + lane * 8, from.supers + span * 64, EVEN || at.first < at.last);
  }
}

__device__ __forceinline__ void load_x(
    char* stage, const Octets& x, const Source& from, int rows, const Place& at, int thread) {
  const int group = (at.part * STEPS + at.first) * GROUPS, scale = group / GROUPS_OF_SCALE;
  const int groups = EVEN ? STAGE_GROUPS : (at.last - at.first < U ? at.last - at.first : U) * GROUPS;
  const bool is_any = EVEN || at.first < at.last;
  const int its_group = thread / PIECES;
#pragma unroll
  for (int g = 0; g < STAGE_GROUPS; g += GROUPS_AT_ONCE) {
    if (STAGE_GROUPS % GROUPS_AT_ONCE && g + its_group >= STAGE_GROUPS) break;
    const bool ok = EVEN || g + its_group < groups;
    copy16(stage + (g * PIECES + thread) * 16, from.numbers + (long)(group + g + its_group) * rows * 32, ok);
  }
  if (MINIMA) {
#pragma unroll
    for (int g = 0; g < STAGE_SCALES; g += GROUPS_AT_ONCE) {
      if (g + its_group >= STAGE_SCALES) break;
      const long sum = (long)(scale + g + its_group) * rows;
      copy16(stage + AT_SUMS + (g * PIECES + thread) * 16, from.sums + sum * 32, is_any);
    }
  }
  const int its_scale = thread / SCALE_PIECES;
#pragma unroll
  for (int g = 0; g < STAGE_SCALES; g += SCALES_AT_ONCE) {
    if (g + its_scale >= STAGE_SCALES) break;
    const bool ok = SUPER ? is_any : EVEN || g + its_scale < groups;
    const int to = (g * SCALE_PIECES + thread) * SCALE_ROWS * 4;
    const char* scales = from.scales + (long)(scale + g + its_scale) * rows * 4;
    const char* sums = scales + (x.sums - x.scales);  // of as many numbers
    if (EXPERTS) {
      copy4(stage + AT_SCALES + to, scales, ok);
      if (FORMAT == 2) copy4(stage + AT_SUMS + to, sums, ok);
    } else {
      copy16(stage + AT_SCALES + to, scales, ok);
      if (FORMAT == 2) copy16(stage + AT_SUMS + to, sums, ok);
    }
  }
}

__device__ __forceinline__ void read(Batch& to, const char* stage, int lane) {
  const char *its = stage + lane * 16, *row = stage + lane / 4 * 8;
#pragma unroll
  for (int j = 0; j < U; j++) {
    to.numbers[j] = *(const uint4*)(its + j * 512);
    to.scales[j] = *(const uint2*)(row + AT_WSCALES + j * 64);
    if (FORMAT == 2) to.minima[j] = *(const uint2*)(row + AT_WMINIMA + j * 64);
    if (FORMAT == 5) to.high[j].x = *(const u32*)(stage + AT_HIGH + (j * 32 + lane) * 4);
    if (FORMAT == 6) to.high[j] = *(const uint2*)(stage + AT_HIGH + (j * 32 + lane) * 8);
    if (SUPER && j % SPAN == 0) to.supers[j / SPAN] = *(const uint2*)(row + AT_SUPERS + j / SPAN * 64);
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
  const int part = SPLIT ? rest % 4 : 0, first_tile = (SPLIT ? rest / 4 : rest) * BLOCK, tile = first_tile + warp;
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
    from[i] = !EXPERTS ? (row < x_rows ? row : x_rows - 8 + i % 8) : is_row ? row / each : 0;
  }
  __syncthreads();
  const Source source = source_of(weights, x, from, behind + (tile < TILES ? tile : TILES - 1), lane, thread);
  auto start = [&](int i) {
    if (i < total) {
      const Place at = place_of(i, part);
      char* stage = stages + i % STAGES * STAGE_BYTES;
      load_weights(stage + AT_WEIGHTS + warp * WARP_BYTES, source, at, lane);
      load_x(stage, x, source, x_rows, at, thread);
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
    int* counter = counters + row_block * ((TILES + BLOCK - 1) / BLOCK) + rest / 4;
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
    const float made = GATED ? gate(v[0], v[EACH - 1], limit, alpha) : activate(v[0]);
    write(out, row * stride + (first_tile * 16 + n) / EACH, made, false);
  }
}
