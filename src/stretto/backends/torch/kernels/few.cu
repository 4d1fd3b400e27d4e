// A few rows times a packed matrix, with the bits of the other kernels: weights become bfloat16 in registers, K is
// walked in order by tensor cores, the sums of the four parts are added in order.
//
// A block of four warps, one for each part, walks some tiles of 16 rows; loads of the next batch are on their way
// while a batch is multiplied. Constants beside those of batches.cuh: ROWS of x at most (1, 2, 4 or 8), GATED.
constexpr int CHUNK = 4;  // tiles between two meetings
static_assert(SLICES == 1, "one warp walks a part");

// Pairs of columns of a row in 32 columns: [16 further][8 further], from its words of a unit.
struct Four {
  u32 pairs[4];
};

// Q4_0: the scale is split into its upper 8 bits and the rest; (number − 8) × rest is exact, and the sum with
// (number − 8) × upper is rounded once.
__device__ __forceinline__ Four four_of(u32 word, float scale) {
  const u32 bits = __float_as_uint(scale), upper = permute(bits, bits, 0x3232);
  const u32 rest = __float_as_uint(scale - __uint_as_float(bits & 0xffff0000u)), lower = permute(rest, rest, 0x3232);
  Four to;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 n = fma2((word >> 4 * i & 0x000f000fu) | 0x43004300u, 0x3f803f80u, 0xc308c308u);
    to.pairs[i] = fma2(n, upper, fma2(n, lower, 0x80008000u));
  }
  return to;
}

constexpr u32 LARGE = 0x4B000000u;  // float 2^23: a number in its last bits is added to it
__device__ __forceinline__ float whole(u32 octets, int i) {
  return __uint_as_float(permute(octets, LARGE, 0x7440 + i)) - (8388608.f + ZERO);
}
__device__ __forceinline__ float e2m1(u32 code) {  // three bits become the exponent's end and the mantissa's begin
  return __uint_as_float((code & 7) << 22 | (code & 8) << 28) * 8.507059173023462e37f;
}
__device__ __forceinline__ float small(u32 octet) { return __uint_as_float(octet | LARGE) - 8388608.f; }

// The pairs of a row (`below`: 8 rows further) in group g of 32 columns of unit j.
__device__ __forceinline__ Four four_of(const Batch& b, int j, int g, int below) {
  const u32 words[4] = {b.numbers[j].x, b.numbers[j].y, b.numbers[j].z, b.numbers[j].w};
  const int at = OCTETS ? below * 2 : g * 2 + below;
  const u32 bits = half_of(b.scales[j], at), w = words[at];
  Four to;
  if (FORMAT == 1) return four_of(w, of_half(bits));
  if (OCTETS) {
    const float scale = of_half(bits);
#pragma unroll
    for (int i = 0; i < 4; i++) to.pairs[i] = pair(whole(w, i) * scale, whole(words[at + 1], i) * scale);
    return to;
  }
  if (FORMAT == 3) {
    const u32 exponent = bits << 23;
    const float scale = __uint_as_float(exponent > 0x400000u ? exponent : 0x400000u);
#pragma unroll
    for (int i = 0; i < 4; i++)
      to.pairs[i] = pair(e2m1(w >> 4 * i & 15) * scale, e2m1(w >> (4 * i + 16) & 15) * scale);
    return to;
  }
  // even: numbers 0, 2, 4, 6 of the word; odd: 1, 3, 5, 7; pairs are four apart
  u32 even = w & 0x0f0f0f0fu, odd = w >> 4 & 0x0f0f0f0fu;
  if (FORMAT == 5) {
    const u32 more = b.high[j].x >> (at * 8) & 255;
    u32 t = (more | more << 12) & 0x000f000fu;
    t = (t | t << 6) & 0x03030303u;
    even |= (t & 0x01010101u) << 4, odd |= (t & 0x02020202u) << 3;
  }
  if (FORMAT == 6) {
    const u32 more = (g ? b.high[j].y : b.high[j].x) >> (below * 16) & 0xffff;
    u32 t = (more | more << 8) & 0x00ff00ffu;
    t = (t | t << 4) & 0x0f0f0f0fu;
    even |= (t & 0x03030303u) << 4, odd |= (t & 0x0c0c0c0cu) << 2;
  }
  float scales[2], least = 0;  // of the first 16 columns, and the next
  if (SUPER) {
    const float d = of_half(half_of(b.supers[j / SPAN], below * 2));
    if (FORMAT == 6) {
      scales[0] = (small(bits & 255) - 128.f) * d, scales[1] = (small(bits >> 8) - 128.f) * d;
    } else {
      scales[0] = scales[1] = small(bits & 255) * d;
      least = small(bits >> 8) * of_half(half_of(b.supers[j / SPAN], below * 2 + 1));
    }
  } else {
    scales[0] = scales[1] = of_half(bits);
    least = -of_half(half_of(b.minima[j], at));
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 octets = i % 2 ? odd : even;
    const float low = whole(octets, i / 2) * scales[i / 2], high = whole(octets, i / 2 + 2) * scales[i / 2];
    to.pairs[i] = LEAST ? pair(low - least, high - least) : pair(low, high);
  }
  return to;
}

// `xs`: the lane's part of x for the first step; lanes of rows that are not there have zeros.
__device__ __forceinline__ void multiply(
    const Batch& b, const uint4* xs, int first, int last, bool is_row, float acc[4]) {
#pragma unroll
  for (int j = 0; j < U; j++) {
    if (!EVEN && first + j >= last) break;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      uint4 x = xs[(j * GROUPS + g) * ROWS * 4];
      if (!is_row) x.x = x.y = x.z = x.w = 0;
      const Four above = four_of(b, j, g, 0), below = four_of(b, j, g, 1);
      const u32 one[4] = {above.pairs[0], below.pairs[0], above.pairs[1], below.pairs[1]};
      const u32 two[4] = {above.pairs[2], below.pairs[2], above.pairs[3], below.pairs[3]};
      mma(acc, one, x.x, x.y);
      mma(acc, two, x.z, x.w);
    }
  }
}

// x as the second operand wants it: [32 columns][row][4 lanes], pairs of columns 8 apart.
__device__ __forceinline__ void prepare(const unsigned short* x, int rows, uint4* xs, int thread) {
  for (int i = thread; i < BLOCKS32 * ROWS * 4; i += THREADS) {
    const int column = i / (ROWS * 4) * 32 + i % 4 * 2, row = i / 4 % ROWS;
    u32 v[4] = {0, 0, 0, 0};
    if (column < K && row < rows) {
#pragma unroll
      for (int p = 0; p < 4; p++) v[p] = *(const u32*)(x + (long)row * K + column + 8 * p);
    }
    xs[i] = uint4{v[0], v[1], v[2], v[3]};
  }
}

__device__ __forceinline__ float activate(float x) {  // with the very instructions of the other kernels
  if (ACT == 0) return x;
  return divide(x, exp2_of(-x * 1.44269504f) + 1.f);
}

typedef float Parts[CHUNK][4][ROWS][16];

// The sums of some tiles, and what follows them.
__device__ __forceinline__ void finish(
    const Parts& parts, int first, int count, int rows, long stride, const float* bias, void* out, int thread) {
  constexpr int EACH = GATED ? 2 : 1;
  for (int i = thread * EACH; i < count * 16 * ROWS; i += THREADS * EACH) {
    const int tile = i / 16 / ROWS, m = i / 16 % ROWS, n = (first + tile) * 16 + i % 16;
    if (m >= rows || n >= N) continue;
    float y[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      y[e] = parts[tile][0][m][i % 16 + e];
#pragma unroll
      for (int p = 1; p < 4; p++) y[e] += parts[tile][p][m][i % 16 + e];
      if (BIAS) y[e] += bias[n + e];
    }
    write(out, m * stride + n / EACH, GATED ? activate(y[0]) * y[EACH - 1] : activate(y[0]), false);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) few(
    const unsigned short* x, int rows, Weights weights, const float* bias, void* out, long stride) {
  extern __shared__ uint4 xs[];
  __shared__ Parts parts[2];
  const int thread = threadIdx.x, lane = thread % 32, part = thread / 32;
  const u32 blocks = gridDim.x, block = blockIdx.x;
  const int tile = TILES * block / blocks, tiles = (int)(TILES * (block + 1) / blocks) - tile;
  const int total = tiles * BATCHES;
  Batch one, two;
  if (AHEAD) load(one, weights, tile, 0, STEPS, part, lane, total > 0);
  launch_next();
  await_inputs();
  prepare(x, rows, xs, thread);
  if (!AHEAD) load(one, weights, tile, 0, STEPS, part, lane, total > 0);
  __syncthreads();
  const bool is_row = lane / 4 < ROWS;
  const uint4* mine = xs + part * STEPS * GROUPS * ROWS * 4 + (is_row ? lane : lane % 4);
  float acc[4] = {0, 0, 0, 0};
  auto step = [&](const Batch& batch, Batch& next, int i) {
    const int n = i + 1;
    load(next, weights, tile + n / BATCHES, n % BATCHES * U, STEPS, part, lane, n < total);
    keep_order();
    const int done = i / BATCHES, b = i % BATCHES;
    multiply(batch, mine + b * U * GROUPS * ROWS * 4, b * U, STEPS, is_row, acc);
    if (b < BATCHES - 1) return;
    float (*to)[16] = parts[done / CHUNK % 2][done % CHUNK][part];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (lane % 4 * 2 + e % 2 < ROWS) to[lane % 4 * 2 + e % 2][lane / 4 + e / 2 * 8] = acc[e];
      acc[e] = 0;
    }
    if (done % CHUNK < CHUNK - 1 && done + 1 < tiles) return;
    __syncthreads();
    const int from = done / CHUNK * CHUNK;
    finish(parts[done / CHUNK % 2], tile + from, done - from + 1, rows, stride, bias, out, thread);
  };
#pragma unroll 1
  for (int i = 0; i < total; i += 2) {
    step(one, two, i);
    if (i + 1 < total) step(two, one, i + 1);
  }
}
