// One row times a packed matrix: y = W norm(x), with x in 8 bits, whole numbers multiplied four at a time.
//
// The layout is that of layouts.py: a warp reads 512 bytes of a tile (16 rows by 64 columns, 32 with 8 bits), and
// each lane knows its two rows and its 8 of 32 columns. A block walks some tiles. Each of its warps has a slice of
// the columns of all of them, so that a block meets only to add up and write sums. Loads of the next batch are on
// their way while a batch is multiplied, the first ones before the kernel that makes x has ended.
//
// Constants beside those of batches.cuh: X (type of x, as OUT), NORM, THEN (0 write, 1 add, 2 gate).
constexpr bool FOURS = FORMAT != 0 && FORMAT != 3;
constexpr int CHUNK = 8;           // tiles between two meetings
constexpr int MAGIC = 0x4B400000;  // float 1.5 × 2^23: whole numbers added to its bits are added to it
static_assert(CHUNK * 16 <= THREADS, "");

__device__ __forceinline__ float number_of(int sum) { return __int_as_float(sum) - __int_as_float(MAGIC); }

// A word of 4-bit numbers, by even and odd ones; `more` has the bits above.
__device__ __forceinline__ void split(u32 word, u32 more, u32& even, u32& odd) {
  even = word & 0x0f0f0f0fu, odd = word >> 4 & 0x0f0f0f0fu;
  if (FORMAT == 5) {  // 8 bits
    u32 t = (more | more << 12) & 0x000f000fu;
    t = (t | t << 6) & 0x03030303u;
    even |= (t & 0x01010101u) << 4, odd |= (t & 0x02020202u) << 3;
  }
  if (FORMAT == 6) {  // 16 bits
    u32 t = (more | more << 8) & 0x00ff00ffu;
    t = (t | t << 4) & 0x0f0f0f0fu;
    even |= (t & 0x03030303u) << 4, odd |= (t & 0x0c0c0c0cu) << 2;
    const u32 e = even;  // the first 16 columns, the next 16
    even = permute(e, odd, 0x6240), odd = permute(e, odd, 0x7351);
  }
}

// Products of a row (`below`: 8 rows further) with 32 columns; x: two words, what ZERO takes or the sum, the scale.
__device__ __forceinline__ void multiply(
    const Batch& b, int j, int g, int below, const int4& x, float& a, float& least) {
  const u32 words[4] = {b.numbers[j].x, b.numbers[j].y, b.numbers[j].z, b.numbers[j].w};
  const int at = GROUPS == 2 ? g * 2 + below : below * 2;
  const u32 scale = half_of(b.scales[j], at);
  const float dx = __int_as_float(x.w);
  if (OCTETS) {
    const int n = dot4(words[at + 1], x.y, dot4(words[at], x.x, x.z));
    a = fmaf(of_half(scale) * dx, number_of(n), a);
  } else if (FORMAT == 3) {  // twice the numbers; a selector with its fourth bit set selects the sign, which is 0
    const u32 low = 0x03020100u, up = 0x0c080604u, w = words[at], v = w >> 16;
    int n = dot4(permute_signed(low, up, v), x.y, dot4(permute_signed(low, up, w), x.x, MAGIC));
    int m = dot4(permute_signed(low, up, v ^ 0x8888), x.y, dot4(permute_signed(low, up, w ^ 0x8888), x.x, 0));
    const u32 exponent = scale << 23;
    a = fmaf(__uint_as_float(exponent > 0x400000u ? exponent : 0x400000u) * (0.5f * dx), number_of(n - m), a);
  } else {
    u32 even, odd, more = 0;
    if (FORMAT == 5) more = b.high[j].x >> (at * 8) & 255;
    if (FORMAT == 6) more = (g ? b.high[j].y : b.high[j].x) >> (below * 16) & 0xffff;
    split(words[at], more, even, odd);
    if (FORMAT == 6) {
      const float n = number_of(dot4(even, x.x, MAGIC + (short)x.z));
      const float m = number_of(dot4(odd, x.y, MAGIC + (x.z >> 16)));
      a = fmaf(dx, fmaf((float)(int)(scale & 255) - 128.f, n, ((float)(int)(scale >> 8) - 128.f) * m), a);
    } else {
      const float t = number_of(dot4(odd, x.y, dot4(even, x.x, LEAST ? MAGIC : x.z))) * dx;
      if (SUPER) {
        a = fmaf((float)(int)(scale & 255), t, a);
        least = fmaf((float)(int)(scale >> 8), __int_as_float(x.z), least);
      } else {
        a = fmaf(of_half(scale), t, a);
        if (FORMAT == 2) a = fmaf(of_half(half_of(b.minima[j], at)), __int_as_float(x.z), a);
      }
    }
  }
}

// A batch: `xs` is where the lane's part of x for the first step is.
__device__ __forceinline__ void multiply(const Batch& b, const int4* xs, int first, int last, float sums[2]) {
#pragma unroll
  for (int j = 0; j < U; j++) {
    if (!EVEN && first + j >= last) break;
    float a[2] = {SUPER ? 0.f : sums[0], SUPER ? 0.f : sums[1]}, least[2] = {0.f, 0.f};
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      const int4 x = xs[(j * GROUPS + g) * 4];
#pragma unroll
      for (int below = 0; below < 2; below++) multiply(b, j, g, below, x, a[below], least[below]);
    }
#pragma unroll
    for (int below = 0; below < 2; below++) {
      if (!SUPER) {
        sums[below] = a[below];
        continue;
      }
      const uint2 d = b.supers[j / SPAN];
      sums[below] = fmaf(of_half(half_of(d, below * 2)), a[below], sums[below]);
      if (LEAST) sums[below] = fmaf(-of_half(half_of(d, below * 2 + 1)), least[below], sums[below]);
    }
  }
}

__device__ __forceinline__ float2 pair_of(const void* x, int at) {
  if (X == 0) return *(const float2*)((const float*)x + at);
  const u32 v = *(const u32*)((const unsigned short*)x + at);
  if (X == 1) return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
  return make_float2(of_half(v & 0xffff), of_half(v >> 16));
}

__device__ __forceinline__ u32 octet(float v) { return (u32)__float2int_rn(v) & 255u; }

// x in 8 bits for each 32 columns, in the order in which a lane multiplies it; the sum of squares of the thread's part.
__device__ __forceinline__ float prepare(const void* x, const float* gain, int4* xs, int thread) {
  float squares = 0;
  for (int i = thread; i < (BLOCKS32 * 4 + 31) / 32 * 32; i += THREADS) {
    const int column = i / 4 * 32 + i % 4 * 2;
    float v[8], most = 0;  // pairs of columns that are 8 apart
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float2 p = make_float2(0, 0);
      if (column < K) {
        p = pair_of(x, column + 8 * j);
        if (NORM) {
          squares = fmaf(p.x, p.x, fmaf(p.y, p.y, squares));
          const float2 by = *(const float2*)(gain + column + 8 * j);
          p.x *= by.x, p.y *= by.y;
        }
      }
      v[2 * j] = p.x, v[2 * j + 1] = p.y;
      most = fmaxf(most, fmaxf(fabsf(p.x), fabsf(p.y)));
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float by = most > 0 ? __fdividef(127.f, most) : 0.f, dx = most * (1 / 127.f);
    u32 q[8];
#pragma unroll
    for (int j = 0; j < 8; j++) q[j] = octet(v[j] * by);
    int4 to;
    if (!FOURS)
      to.x = q[0] | q[2] << 8 | q[4] << 16 | q[6] << 24, to.y = q[1] | q[3] << 8 | q[5] << 16 | q[7] << 24;
    else if (FORMAT == 6)
      to.x = q[0] | q[2] << 8 | q[1] << 16 | q[3] << 24, to.y = q[4] | q[6] << 8 | q[5] << 16 | q[7] << 24;
    else
      to.x = q[0] | q[4] << 8 | q[1] << 16 | q[5] << 24, to.y = q[2] | q[6] << 8 | q[3] << 16 | q[7] << 24;
    const int first = dot4(0x01010101u, to.x, 0), second = dot4(0x01010101u, to.y, 0);
    if (LEAST)
      to.z = __float_as_int(dx * (float)(first + second));
    else if (FORMAT == 6)
      to.z = ((-ZERO * first) & 0xffff) | (u32)(-ZERO * second) << 16;
    else
      to.z = MAGIC - ZERO * (first + second);
    to.w = __float_as_int(dx);
    if (i < BLOCKS32 * 4) xs[i] = to;
  }
  return squares;
}

__device__ __forceinline__ float tanh_of(float x) { return 1 - 2 / (1 + __expf(2 * x)); }
__device__ __forceinline__ float activate(float x) {
  if (ACT == 1) return x / (1 + __expf(-x));
  if (ACT == 2) return 0.5f * x * (1 + tanh_of(0.7978845608028654f * (x + 0.044715f * x * x * x)));
  if (ACT == 3) return x > 0 ? x * x : 0;
  if (ACT == 7) return x > 0 ? x : 0;
  if (ACT == 4) return 0.5f * x * (1 + erff(x * 0.7071067811865476f));
  return ACT == 5 ? tanh_of(x) : x;
}

// The sums of some tiles from those of the warps, and what follows them.
__device__ __forceinline__ void finish(
    const float (*parts)[WARPS][16], int first, int count, float factor, const float* bias, void* out, int thread) {
  constexpr int EACH = THEN == 2 ? 2 : 1;
  const int i = thread * EACH, row = first * 16 + i;
  if (i >= count * 16 || row >= N) return;
  float y[EACH];
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    y[e] = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) y[e] += parts[i / 16][w][i % 16 + e];
    y[e] *= factor;
    if (BIAS) y[e] += bias[row + e];
  }
  write(out, row / EACH, THEN == 2 ? activate(y[0]) * y[EACH - 1] : activate(y[0]), THEN == 1);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemv(
    const void* x, const float* gain, Weights weights, const float* bias, void* out, float eps) {
  extern __shared__ int4 xs[];  // [blocks of 32 columns][4]
  __shared__ float parts[2][CHUNK][WARPS][16], squares[WARPS];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, part = warp % 4;
  const int begin = warp / 4 * PER, end = begin + PER < STEPS ? begin + PER : STEPS;
  const u32 blocks = gridDim.x, block = blockIdx.x;
  const int tile = TILES * block / blocks, tiles = (int)(TILES * (block + 1) / blocks) - tile;
  const int total = tiles * BATCHES;
  Batch one, two;
  if (AHEAD) load(one, weights, tile, begin, end, part, lane, total > 0);
  launch_next();
  await_inputs();
  float mine = prepare(x, gain, xs, thread);
  if (NORM) {
#pragma unroll
    for (int o = 16; o; o >>= 1) mine += __shfl_xor_sync(~0u, mine, o);
    if (lane == 0) squares[warp] = mine;
  }
  if (!AHEAD) load(one, weights, tile, begin, end, part, lane, total > 0);
  __syncthreads();
  float factor = 1;
  if (NORM) {
    float all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) all += squares[w];
    factor = rsqrtf(all / K + eps);
  }
  const int4* mine_x = xs + (part * STEPS + begin) * GROUPS * 4 + lane % 4;
  float sums[2] = {0, 0};
  auto step = [&](const Batch& batch, Batch& next, int i) {
    const int n = i + 1;
    load(next, weights, tile + n / BATCHES, begin + n % BATCHES * U, end, part, lane, n < total);
    keep_order();
    const int done = i / BATCHES, b = i % BATCHES;
    multiply(batch, mine_x + b * U * GROUPS * 4, begin + b * U, end, sums);
    if (b < BATCHES - 1) return;
    // lanes with an even column pair keep the row, the others the one below it
    const float sent = lane & 1 ? sums[0] : sums[1], kept = lane & 1 ? sums[1] : sums[0];
    float y = kept + __shfl_xor_sync(~0u, sent, 1);
    y += __shfl_xor_sync(~0u, y, 2);
    if ((lane & 2) == 0) parts[done / CHUNK % 2][done % CHUNK][warp][lane / 4 + (lane & 1) * 8] = y;
    sums[0] = sums[1] = 0;
    if (done % CHUNK < CHUNK - 1 && done + 1 < tiles) return;
    __syncthreads();
    const int from = done / CHUNK * CHUNK;
    finish(parts[done / CHUNK % 2], tile + from, done - from + 1, factor, bias, out, thread);
  };
#pragma unroll 1
  for (int i = 0; i < total; i += 2) {
    step(one, two, i);
    if (i + 1 < total) step(two, one, i + 1);
  }
}
