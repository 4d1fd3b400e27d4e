// The instructions that have no name in C++, for gemv.cu: no headers are needed to compile it.
typedef unsigned int u32;

// Weights are read once: they bypass L1. Loads are predicated, not branched around: behind a branch the compiler
// moves them below the work that they are to overlap with.
__device__ __forceinline__ uint4 stream4(const void* p, bool wanted) {
  uint4 v;
  asm volatile(
      "{ .reg .pred q; setp.ne.u32 q, %5, 0;\n"
      "@q ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p), "r"((u32)wanted));
  return v;
}
__device__ __forceinline__ uint2 stream2(const void* p, bool wanted) {
  uint2 v;
  asm volatile(
      "{ .reg .pred q; setp.ne.u32 q, %3, 0;\n"
      "@q ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2]; }"
      : "=r"(v.x), "=r"(v.y)
      : "l"(p), "r"((u32)wanted));
  return v;
}
__device__ __forceinline__ u32 stream1(const void* p, bool wanted) {
  u32 v;
  asm volatile(
      "{ .reg .pred q; setp.ne.u32 q, %2, 0;\n"
      "@q ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1]; }"
      : "=r"(v)
      : "l"(p), "r"((u32)wanted));
  return v;
}
// Reads of memory stay behind it.
__device__ __forceinline__ void keep_order() { asm volatile("" ::: "memory"); }

// Four numbers without a sign times four with one, added to c.
__device__ __forceinline__ int dot4(u32 a, u32 b, int c) {
  int d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ u32 permute(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

__device__ __forceinline__ float of_half(u32 bits) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((unsigned short)bits));
  return f;
}
__device__ __forceinline__ unsigned short to_half(float f) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
__device__ __forceinline__ unsigned short to_bfloat(float f) {
  unsigned short h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

// The next kernel may be launched; what the kernel before has written can be read behind `await_inputs`.
__device__ __forceinline__ void launch_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void await_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
