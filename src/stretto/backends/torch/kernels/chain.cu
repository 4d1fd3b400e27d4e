// What stands between the attention of one layer and that of the next, for a few rows: one launch.
//
// Four legs: attention's result back to the stream, the inner rows of the feed-forward behind their norm, back to the
// stream, and the projection of the next layer (or the output) behind its norm. Blocks, one for each multiprocessor,
// meet between legs; weights do not depend on what came before, so each warp's copies of them run ahead through
// all legs, also while blocks meet. Rows of x are the first operand of 16 × 8 × 16 products, 8 rows of a matrix the
// second, and K is walked in order: the bits of all other products.
//
// Constants: E numbers of the stream, A of attention's result, F inner ones, Q rows of the last matrix, ROWS of x (1,
// 2, 4 or 8), FROM the first leg (0 or 3), OUT type of what the last one gives (0 float32, 1 bfloat16), ACT, CHUNK
// columns of a copy (64 or 128), STAGES. `add_rms` needs E, ADD, Y and OUT alone.
constexpr int WARPS = 8, THREADS = 32 * WARPS;

// -- norms, alone and at the beginning of legs: a thread has every 256th four numbers, whatever the kernel --

constexpr int FOURS = (E / 4 + THREADS - 1) / THREADS;  // of a thread
struct Row {
  float4 v[FOURS];
};
__device__ __forceinline__ bool has_four(int i, int thread) {
  return E / 4 % THREADS == 0 || i * THREADS + thread < E / 4;
}
__device__ __forceinline__ float squares_of(const Row& row) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < FOURS; i++) {
    const float4 v = row.v[i];
    sum = fmaf(v.x, v.x, sum), sum = fmaf(v.y, v.y, sum), sum = fmaf(v.z, v.z, sum), sum = fmaf(v.w, v.w, sum);
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  return sum;
}
__device__ __forceinline__ float inverse_of(const float* squares, float eps) {  // of the root mean square
  float sum = squares[0];
#pragma unroll
  for (int i = 1; i < WARPS; i++) sum += squares[i];
  return 1.f / sqrtf(sum * (1.f / E) + eps);
}
__device__ __forceinline__ float4 normed(const float4& v, float by, const float4& g) {
  return {v.x * by * g.x, v.y * by * g.y, v.z * by * g.z, v.w * by * g.w};
}
__device__ __forceinline__ uint2 in_bfloat(const float4& v) { return {pair(v.x, v.y), pair(v.z, v.w)}; }

#ifdef ADD
// x += y, if ADD; out = norm(x), if there is a gain. A block for each row.
extern "C" __global__ void __launch_bounds__(THREADS) add_rms(
    float* x, const void* y, long stride_y, const float* gain, float eps, void* out) {
  __shared__ float squares[WARPS];
  const int thread = threadIdx.x;
  const long row = blockIdx.x;
  Row v = {};
  launch_next();
  await_inputs();
#pragma unroll
  for (int i = 0; i < FOURS; i++) {
    const int four = i * THREADS + thread;
    if (!has_four(i, thread)) continue;
    v.v[i] = ((const float4*)(x + row * E))[four];
    if (!ADD) continue;
    float4 w;
    if (Y == 0) {
      w = *(const float4*)((const float*)y + row * stride_y + four * 4);
    } else {
      const uint2 u = *(const uint2*)((const unsigned short*)y + row * stride_y + four * 4);
      w = {of_bfloat(u.x), __uint_as_float(u.x & 0xffff0000u), of_bfloat(u.y), __uint_as_float(u.y & 0xffff0000u)};
    }
    v.v[i] = {v.v[i].x + w.x, v.v[i].y + w.y, v.v[i].z + w.z, v.v[i].w + w.w};
    ((float4*)(x + row * E))[four] = v.v[i];
  }
  if (!gain) return;
  const float sum = squares_of(v);
  if (thread % 32 == 0) squares[thread / 32] = sum;
  __syncthreads();
  const float by = inverse_of(squares, eps);
#pragma unroll
  for (int i = 0; i < FOURS; i++) {
    const int four = i * THREADS + thread;
    if (!has_four(i, thread)) continue;
    const float4 made = normed(v.v[i], by, ((const float4*)gain)[four]);
    if (OUT == 0) ((float4*)((float*)out + row * E))[four] = made;
    else ((uint2*)((unsigned short*)out + row * E))[four] = in_bfloat(made);
  }
}
#else
constexpr int PIECES = CHUNK / 8, AT_ONCE = 32 / PIECES, COPIES = 8 / AT_ONCE;  // of 16 bytes: rows of a copy
constexpr int PITCH = CHUNK * 2 + 16, STAGE = 8 * PITCH;                       // rows begin in other banks
constexpr int LONGEST = A > F ? (A > E ? A : E) : F > E ? F : E;
constexpr int MOST_K = FROM == 3 ? E : LONGEST;
static_assert(E % CHUNK == 0 && A % CHUNK == 0 && F % CHUNK == 0 && Q % 8 == 0, "");

__device__ __forceinline__ constexpr int columns_of(int leg) { return leg == 0 ? A : leg == 2 ? F : E; }
__device__ __forceinline__ constexpr int tiles_of(int leg) { return (leg == 1 ? 2 * F : leg == 3 ? Q : E) / 8; }
// Warps that begin with a leg: legs of few tiles take others than those beside them, whose copies run ahead.
__device__ __forceinline__ constexpr int first_warp(int leg) { return leg == 0 ? 0 : leg == 1 ? 1 : leg == 2 ? 7 : 0; }
__device__ __forceinline__ int first_tile(int leg, int warp) {
  return blockIdx.x + gridDim.x * ((warp + WARPS - first_warp(leg)) % WARPS);
}

struct Legs {
  const char* weights[4];
  const float* biases[4];
  const float* gains[2];  // of the second leg and the last
  float eps[2];
};

// A warp's copies of weights, in the order in which it multiplies them.
struct Feed {
  int leg, tile, left, at;
  long stride;
  const char* from;

  __device__ __forceinline__ void settle(const Legs& legs, int warp, int lane) {
    while (tile >= tiles_of(leg)) {
      if (++leg > 3) return;
      tile = first_tile(leg, warp);
    }
    const char* w = leg == 0 ? legs.weights[0] : leg == 1 ? legs.weights[1] : leg == 2 ? legs.weights[2] : legs.weights[3];
    const long row = columns_of(leg) * 2;
    left = columns_of(leg) / CHUNK, stride = AT_ONCE * row;
    from = w + (tile * 8 + lane / PIECES) * row + lane % PIECES * 16;
  }
  __device__ __forceinline__ void send(char* ring, int j, int lane) const {
    char* to = ring + at * STAGE + lane / PIECES * PITCH + lane % PIECES * 16;
    if (leg <= 3) copy16(to + j * AT_ONCE * PITCH, from + j * stride, true);
  }
  __device__ __forceinline__ void end(const Legs& legs, int warp, int lane) {
    commit();
    if (++at == STAGES) at = 0;
    from += CHUNK * 2;
    if (leg <= 3 && --left == 0) tile += gridDim.x * WARPS, settle(legs, warp, lane);
  }
};

// Blocks wait for each other; what they wrote before can be read behind it, freshly.
__device__ __forceinline__ void meet(int* counter) {
  __syncthreads();
  if (threadIdx.x == 0) {
    add_release(counter);
    while (load_acquire(counter) < (int)gridDim.x) {}
  }
  __syncthreads();
}

// What a warp multiplies at a time: columns of x and of the weights, 32 in each.
constexpr int PARTS = CHUNK / 32;
struct Fragments {
  u32 x[PARTS][4], w[PARTS][4];
};
static_assert(COPIES == PARTS, "");

struct Memory {
  const void* mixed;
  float* x;
  void *inner, *out;
  long stride;  // of out
  int* counters;
};

// x of a leg in shared memory: [ROWS][K + 8] bfloat16.
template <int LEG>
__device__ __forceinline__ void take(
    const Memory& m, const Legs& legs, int rows, unsigned short* xs, float (*squares)[WARPS], int thread) {
  constexpr int K = columns_of(LEG);
  if (LEG == 0 || LEG == 2) {
    const char* from = (const char*)(LEG == 0 ? m.mixed : m.inner);
    for (int i = thread; i < rows * (K / 8); i += THREADS)
      *(uint4*)(xs + i / (K / 8) * (K + 8) + i % (K / 8) * 8) = read_fresh16(from + i * 16);
    return;
  }
  constexpr int N = LEG == 1 ? 0 : 1;
  Row row[ROWS], gain;
#pragma unroll
  for (int i = 0; i < FOURS; i++)
    if (has_four(i, thread)) gain.v[i] = ((const float4*)legs.gains[N])[i * THREADS + thread];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
      row[r].v[i] = {0, 0, 0, 0};
      if (r < rows && has_four(i, thread)) row[r].v[i] = read_fresh4(m.x + r * E + (i * THREADS + thread) * 4);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const float sum = squares_of(row[r]);
    if (thread % 32 == 0) squares[r][thread / 32] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const float by = inverse_of(squares[r], legs.eps[N]);
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
      const int four = i * THREADS + thread;
      if (has_four(i, thread)) *(uint2*)(xs + r * (K + 8) + four * 4) = in_bfloat(normed(row[r].v[i], by, gain.v[i]));
    }
  }
}

template <int LEG>
__device__ __forceinline__ void run_leg(
    const Memory& m, const Legs& legs, int rows, unsigned short* xs, float (*squares)[WARPS], char* ring, Feed& feed,
    int& at, int thread) {
  constexpr int K = columns_of(LEG), TILES = tiles_of(LEG);
  const int warp = thread / 32, lane = thread % 32, g = lane / 4;
  if (blockIdx.x < TILES) {
    take<LEG>(m, legs, rows, xs, squares, thread);
    __syncthreads();
  }
  const unsigned short* x_row = xs + (lane % 8 < ROWS ? lane % 8 : 0) * (K + 8) + lane / 8 * 8;
  const char* w_row = ring + lane % 8 * PITCH + lane / 8 * 16;
  const float* bias = legs.biases[LEG];
  for (int tile = first_tile(LEG, warp); tile < TILES; tile += gridDim.x * WARPS) {
    const int n = tile * 8 + lane % 4 * 2;
    const bool is_row = g < rows;
    float* stream = m.x + g * E + n;
    float2 before = {0, 0}, plus = {0, 0};
    if ((LEG == 0 || LEG == 2) && is_row) before = {read_fresh(stream), read_fresh(stream + 1)};
    if (bias) plus = *(const float2*)(bias + n);
    float acc[4] = {};
    Fragments one, two;
    // A product waits for the one before it: what else a turn has to do is done meanwhile, so it stands between them.
    auto turn = [&](const Fragments* has, Fragments* next, int c) {
      if (next) {
        await_copies<STAGES - 2>();
        __syncwarp();
      }
      const char* w_at = w_row + at * STAGE;
      const unsigned short* x_at = x_row + c * CHUNK;
#pragma unroll
      for (int k = 0; k < PARTS; k++) {
        if (has) {
          const u32 a[4] = {has->x[k][0], 0, has->x[k][1], 0};
          mma(acc, a, has->w[k][0], has->w[k][1]);
        }
        if (next) load_matrices(next->w[k], w_at + k * 64);
        if (next) load_matrices(next->x[k], x_at + k * 32);
        if (has) {
          const u32 a[4] = {has->x[k][2], 0, has->x[k][3], 0};
          mma(acc, a, has->w[k][2], has->w[k][3]);
        }
        if (next) feed.send(ring, k, lane);
      }
      if (next) {
        feed.end(legs, warp, lane);
        if (++at == STAGES) at = 0;
      }
    };
    constexpr int TURNS = K / CHUNK;
    turn(nullptr, &one, 0);
#pragma unroll 1
    for (int c = 1; c + 1 < TURNS; c += 2) turn(&one, &two, c), turn(&two, &one, c + 1);
    if (TURNS % 2 == 0) turn(&one, &two, TURNS - 1), turn(&two, nullptr, 0);
    else turn(&one, nullptr, 0);
    if (!is_row) continue;
    const float y0 = bias ? acc[0] + plus.x : acc[0], y1 = bias ? acc[1] + plus.y : acc[1];
    if (LEG == 0 || LEG == 2) {
      const u32 y = pair(y0, y1);
      *(float2*)stream = {before.x + of_bfloat(y), before.y + __uint_as_float(y & 0xffff0000u)};
    } else if (LEG == 1) {
      const float gate = ACT == 1 ? divide(y0, exp2_of(-y0 * 1.44269504f) + 1.f) : y0;
      ((unsigned short*)m.inner)[g * F + n / 2] = to_bfloat(gate * y1);
    } else if (OUT == 0) {
      *(float2*)((float*)m.out + g * m.stride + n) = {y0, y1};
    } else {
      *(u32*)((unsigned short*)m.out + g * m.stride + n) = pair(y0, y1);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) chain(Memory m, Legs legs, int rows) {
  extern __shared__ int4 shared[];
  __shared__ float squares[ROWS][WARPS];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  char* ring = (char*)shared + warp * STAGES * STAGE;
  unsigned short* xs = (unsigned short*)((char*)shared + WARPS * STAGES * STAGE);
  Feed feed = {FROM, first_tile(FROM, warp)};
  feed.settle(legs, warp, lane);
  for (int i = 0; i < STAGES - 1; i++) {
#pragma unroll
    for (int j = 0; j < COPIES; j++) feed.send(ring, j, lane);
    feed.end(legs, warp, lane);
  }
  for (int i = thread; i < E / 32; i += THREADS) {  // 128 bytes each
    if (FROM == 0) prefetch(legs.gains[0] + i * 32);
    prefetch(legs.gains[1] + i * 32);
  }
  launch_next();
  await_inputs();
  int at = 0;
  if (FROM == 0) {
    if (blockIdx.x == 0 && thread == 0) m.counters[2] = 0;  // where nobody is before all have met twice
    run_leg<0>(m, legs, rows, xs, squares, ring, feed, at, thread);
    meet(m.counters);
    run_leg<1>(m, legs, rows, xs, squares, ring, feed, at, thread);
    meet(m.counters + 1);
    if (blockIdx.x == 0 && thread == 0) m.counters[0] = 0;
    run_leg<2>(m, legs, rows, xs, squares, ring, feed, at, thread);
    meet(m.counters + 2);
    if (blockIdx.x == 0 && thread == 0) m.counters[1] = 0;
  }
  run_leg<3>(m, legs, rows, xs, squares, ring, feed, at, thread);
}
#endif
