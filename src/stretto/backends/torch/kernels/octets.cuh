// Rows in 8 bits times packed weights, in one order of sums for any number of rows: for octets.cu, few_octets.cu and
// many_octets.cu, behind batches.cuh.
//
// x is rounded to 8 bits for each 32 columns, or for each 256 where the weights' scales are whole numbers in blocks of
// 256: then such a block is one exact sum. Sums within those groups are exact, so it does not matter how they are
// made. Groups are added in order within a slice of K, slices in order within a part, parts in order.
//
// Numbers of x stand as tensor cores want them: of each 32 columns a lane l has columns c = 2 × (l % 4) and the next,
// and those 8, 16 and 24 further, in two words: c, c + 16, c + 1, c + 17; and those 8 further.
constexpr int GROUPS_OF_SCALE = SUPER ? 8 : 1;               // of 32 columns of x
constexpr bool MINIMA = FORMAT == 4 || FORMAT == 5;          // whole ones, times sums of 32 columns
constexpr int SUM_BYTES = MINIMA ? 32 : FORMAT == 2 ? 4 : 0;  // for each scale of x
constexpr int SCALES = BLOCKS32 / GROUPS_OF_SCALE;
constexpr int MAGIC = 0x4B400000;  // float 1.5 × 2^23: whole numbers added to its bits are added to it
constexpr float FACTOR = FORMAT == 1 ? 1 / 16.f : FORMAT == 3 ? 1 / 2.f : FORMAT == 6 ? 1 / 4.f : 1;  // of `octets_of`

__device__ __forceinline__ float number_of(int sum) { return __int_as_float(sum) - __int_as_float(MAGIC); }

// numbers [32 columns][rows][4 lanes][2 words]; scales float [groups][rows]; sums of groups as scales (Q4_1: times the
// scale), or [spans of 256][rows][4 lanes][2 words]: two sums of 32 columns each, multiples of 64 and rests, bfloat16.
struct Octets {
  char *numbers, *scales, *sums;
};

// -- rounding --

__device__ __forceinline__ float2 pair_of(const void* x, int type, long at) {
  if (type == 0) return *(const float2*)((const float*)x + at);
  const u32 v = *(const u32*)((const unsigned short*)x + at);
  if (type == 1) return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
  return make_float2(of_half(v & 0xffff), of_half(v >> 16));
}
__device__ __forceinline__ u32 octet(float v) { return (u32)__float2int_rn(v) & 255u; }
__device__ __forceinline__ float most_of(float v, int other) { return fmaxf(v, __shfl_xor_sync(~0u, v, other)); }

// A warp rounds 256 columns of a row, which begins at x[from], into row `row` of `rows`.
__device__ __forceinline__ void round_span(
    const void* x, int type, long from, int span, int lane, const Octets& to, int row, int rows) {
  const int group = span * 8 + lane / 4, column = group * 32 + lane % 4 * 2;
  float v[8], most = 0;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float2 p = column < K ? pair_of(x, type, from + column + 8 * j) : make_float2(0, 0);
    v[2 * j] = p.x, v[2 * j + 1] = p.y;
    most = fmaxf(most, fmaxf(fabsf(p.x), fabsf(p.y)));
  }
  most = most_of(most_of(most, 1), 2);
  if (SUPER) most = most_of(most_of(most_of(most, 4), 8), 16);
  const float by = most > 0 ? 127.f / most : 0.f, scale = most * (1 / 127.f);
  u32 q[8];
#pragma unroll
  for (int j = 0; j < 8; j++) q[j] = octet(v[j] * by);
  const uint2 words = {q[0] | q[4] << 8 | q[1] << 16 | q[5] << 24, q[2] | q[6] << 8 | q[3] << 16 | q[7] << 24};
  float sum = 0;  // whole
  if (SUM_BYTES) {
    sum = (float)dot4(0x01010101u, words.x, dot4(0x01010101u, words.y, 0));
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
  }
  if (group >= BLOCKS32) return;
  *(uint2*)(to.numbers + (((long)group * rows + row) * 4 + lane % 4) * 8) = words;
  if (lane % (SUPER ? 32 : 4) == 0) *(float*)(to.scales + ((long)group / GROUPS_OF_SCALE * rows + row) * 4) = scale;
  if (FORMAT == 2 && lane % 4 == 0) *(float*)(to.sums + ((long)group * rows + row) * 4) = sum * scale;
  if (MINIMA && lane % 4 == 0) {
    const float most_part = rintf(sum * (1 / 64.f)) * 64;
    unsigned short* at = (unsigned short*)(to.sums + (((long)span * rows + row) * 4 + lane / 8) * 8) + lane / 4 % 2;
    at[0] = to_bfloat(most_part), at[2] = to_bfloat(sum - most_part);
  }
}

// -- multiplying --

// MXFP4: four codes as twice their numbers; a selector with its fourth bit set selects the sign, which is 0.
__device__ __forceinline__ u32 twice_of(u32 codes) {
  const u32 low = 0x03020100u, up = 0x0c080604u;
  return (permute_signed(low, up, codes) + 0x80808080u - permute_signed(low, up, codes ^ 0x8888u)) ^ 0x80808080u;
}

// Numbers of a row (`below`: 8 rows further) in group g of unit j, as x stands, times 1 / FACTOR.
__device__ __forceinline__ uint2 octets_of(const Batch& b, int j, int g, int below) {
  const u32 words[4] = {b.numbers[j].x, b.numbers[j].y, b.numbers[j].z, b.numbers[j].w};
  const int at = GROUPS == 2 ? g * 2 + below : below * 2;
  const u32 w = words[at];
  if (OCTETS || FORMAT == 3) {
    const u32 first = OCTETS ? w ^ 0x80808080u : twice_of(w);
    const u32 second = OCTETS ? words[at + 1] ^ 0x80808080u : twice_of(w >> 16);
    return {permute(first, second, 0x6420), permute(first, second, 0x7531)};
  }
  if (FORMAT == 1) return {(w << 4 & 0xf0f0f0f0u) ^ 0x80808080u, (w & 0xf0f0f0f0u) ^ 0x80808080u};
  if (FORMAT == 5) {  // 8 bits
    const u32 more = b.high[j].x >> (at * 8) & 255;
    u32 t = (more | more << 12) & 0x000f000fu;
    t = (t | t << 6) & 0x03030303u;
    return {(w & 0x0f0f0f0fu) | (t & 0x01010101u) << 4, (w >> 4 & 0x0f0f0f0fu) | (t & 0x02020202u) << 3};
  }
  if (FORMAT == 6) {  // 16 bits
    const u32 more = (g ? b.high[j].y : b.high[j].x) >> (below * 16) & 0xffff;
    u32 t = (more | more << 8) & 0x00ff00ffu;
    t = (t | t << 4) & 0x0f0f0f0fu;
    return {
        ((w << 2 & 0x3c3c3c3cu) | (t & 0x03030303u) << 6) ^ 0x80808080u,
        ((w >> 2 & 0x3c3c3c3cu) | (t & 0x0c0c0c0cu) << 4) ^ 0x80808080u};
  }
  return {w & 0x0f0f0f0fu, w >> 4 & 0x0f0f0f0fu};
}

// A group of 32 columns of 16 rows of weights: a lane's numbers of two rows, and their scales.
struct Group {
  u32 a[4];
  float scales[2], minima[2];
  int whole[2], next[2];  // of the first 16 columns (or all of them), and the other 16
};

__device__ __forceinline__ Group group_of(const Batch& b, int j, int g) {
  Group to;
#pragma unroll
  for (int below = 0; below < 2; below++) {
    const uint2 words = octets_of(b, j, g, below);
    to.a[below] = words.x, to.a[2 + below] = words.y;
    const int at = GROUPS == 2 ? g * 2 + below : below * 2;
    const u32 bits = half_of(b.scales[j], at);
    if (FORMAT == 3) {
      const u32 exponent = bits << 23;
      to.scales[below] = __uint_as_float(exponent > 0x400000u ? exponent : 0x400000u) * FACTOR;
    } else if (!SUPER) {
      to.scales[below] = of_half(bits) * FACTOR;
      if (FORMAT == 2) to.minima[below] = of_half(half_of(b.minima[j], at));
    } else if (FORMAT == 6) {
      to.whole[below] = (int)(bits & 255) - 128, to.next[below] = (int)(bits >> 8) - 128;
    } else {
      to.whole[below] = bits & 255;
    }
  }
  return to;
}

// Sums of two rows of weights with two rows of x: above and below, each with both.
struct Sums {
  float done[4];
  int whole[SUPER ? 4 : 1];  // of the span of 256 columns so far
};

// Whether a lane needs element e: alone, a row of x stands in all columns.
template <int ROWS_OF_X> __device__ __forceinline__ constexpr bool needs(int e) { return ROWS_OF_X > 1 || e % 2 == 0; }

template <int ROWS_OF_X>
__device__ __forceinline__ void add(Sums& to, const Group& w, uint2 x, const float* scales, const float* sums) {
  int n[4], m[4];
  if (FORMAT == 6) {
    const u32 first[4] = {w.a[0] & 0xff00ffu, w.a[1] & 0xff00ffu, w.a[2] & 0xff00ffu, w.a[3] & 0xff00ffu};
    const u32 next[4] = {w.a[0] & 0xff00ff00u, w.a[1] & 0xff00ff00u, w.a[2] & 0xff00ff00u, w.a[3] & 0xff00ff00u};
    imma(n, first, x.x, x.y, 0);
    imma(m, next, x.x, x.y, 0);
  } else {
    imma(n, w.a, x.x, x.y, SUPER ? 0 : MAGIC);
  }
#pragma unroll
  for (int e = 0; e < 4; e++) {
    if (!needs<ROWS_OF_X>(e)) continue;
    if (SUPER) {
      to.whole[e] += n[e] * w.whole[e / 2];
      if (FORMAT == 6) to.whole[e] += m[e] * w.next[e / 2];
    } else {
      to.done[e] = fmaf(number_of(n[e]), w.scales[e / 2] * scales[e % 2], to.done[e]);
      if (FORMAT == 2) to.done[e] = fmaf(w.minima[e / 2], sums[e % 2], to.done[e]);
    }
  }
}

// What a span of 256 columns has beside its whole sums.
struct Span {
  float d[2], least[2];
  u32 minima[4];  // two of a lane's groups in bfloat16, above and below, twice
};

__device__ __forceinline__ Span span_of(const Batch& b, int j, int lane) {
  Span to;
  const uint2 d = b.supers[j / SPAN];
#pragma unroll
  for (int below = 0; below < 2; below++) {
    to.d[below] = of_half(half_of(d, below * 2)) * FACTOR;
    if (MINIMA) to.least[below] = -of_half(half_of(d, below * 2 + 1));
  }
  if (MINIMA) {
    uint2 s = b.scales[j];
#pragma unroll
    for (int t = 1; t < 4; t++) {
      if (lane % 4 == t) s = b.scales[j + t];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {  // 128 + number, then less 128
      const u32 both = permute(s.x, s.y, i % 2 ? 0x0703 : 0x0501) & 0x00ff00ffu;
      to.minima[i] = fma2(both | 0x43004300u, 0x3f803f80u, 0xc300c300u);
    }
  }
  return to;
}

template <int ROWS_OF_X>
__device__ __forceinline__ void end_span(Sums& to, const Span& w, const float* scales, uint2 sums) {
  float least[4] = {0, 0, 0, 0};
  if (MINIMA) mma(least, w.minima, sums.x, sums.y);
#pragma unroll
  for (int e = 0; e < 4; e++) {
    if (!needs<ROWS_OF_X>(e)) continue;
    float sum = (float)to.whole[e] * w.d[e / 2];
    if (MINIMA) sum = fmaf(least[e], w.least[e / 2], sum);
    to.done[e] = fmaf(sum, scales[e % 2], to.done[e]);
    to.whole[e] = 0;
  }
}

// -- what follows the sums --

__device__ __forceinline__ float sigmoid_of(float x) { return divide(1.f, exp2_of(-1.44269504f * x) + 1.f); }
__device__ __forceinline__ float tanh_of(float x) { return 2 * sigmoid_of(2 * x) - 1; }
__device__ __forceinline__ float activate(float x) {
  if (ACT == 1) return x * sigmoid_of(x);
  if (ACT == 2) return 0.5f * x * (1 + tanh_of(0.7978845608028654f * (x + 0.044715f * x * x * x)));
  if (ACT == 3) return x > 0 ? x * x : 0;
  if (ACT == 7) return x > 0 ? x : 0;
  if (ACT == 4) return 0.5f * x * (1 + erff(x * 0.7071067811865476f));
  return ACT == 5 ? tanh_of(x) : x;
}
__device__ __forceinline__ float gate(float g, float u, float limit, float alpha) {
  if (ACT != 6) return activate(g) * u;
  g = fminf(g, limit), u = fminf(fmaxf(u, -limit), limit);
  return g * sigmoid_of(alpha * g) * (u + 1);
}
