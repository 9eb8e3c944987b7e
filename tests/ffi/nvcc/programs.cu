// CUDA C++ programs whose PTX, as nvcc writes it, is run in the emulator's tests.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>
namespace cg = cooperative_groups;

extern "C" __global__ void block_reduce(const float* x, float* y) {
  constexpr uint64_t n = 1000;
  __shared__ float partial[32];
  float sum = 0;
  for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
  }
}

extern "C" __global__ void scan(const int* x, int* y) {
  __shared__ int buffer[2][256];
  int t = threadIdx.x, from = 0;
  buffer[0][t] = x[t];
  for (int d = 1; d < 256; d *= 2) {
    __syncthreads();
    buffer[1 - from][t] = buffer[from][t] + (t >= d ? buffer[from][t - d] : 0);
    from = 1 - from;
  }
  __syncthreads();
  y[t] = buffer[from][t];
}

extern "C" __global__ void transpose(const float* x, float* y) {
  constexpr uint64_t rows = 37, columns = 50;
  __shared__ float tile[16][17];
  uint64_t column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
  __syncthreads();
  column = blockIdx.y * 16 + threadIdx.x, row = blockIdx.x * 16 + threadIdx.y;
  if (row < columns && column < rows) y[row * rows + column] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void matmul(const float* a, const float* b, float* c) {
  constexpr uint64_t n = 48;
  __shared__ float left[16][16], right[16][16];
  uint64_t row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (uint64_t k = 0; k < n; k += 16) {
    left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

extern "C" __global__ void histogram(const unsigned char* x, int* bins) {
  constexpr uint64_t n = 5000;
  __shared__ int local[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd(&local[x[i]], 1);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}

extern "C" __global__ void warp_sort(const int* x, int* y) {
  int value = x[threadIdx.x], lane = threadIdx.x % 32;
  for (int k = 2; k <= 32; k *= 2) {
    for (int j = k / 2; j > 0; j /= 2) {
      int other = __shfl_xor_sync(0xffffffff, value, j);
      bool up = (lane & k) == 0, low = (lane & j) == 0;
      value = (up == low) ? min(value, other) : max(value, other);
    }
  }
  y[threadIdx.x] = value;
}

extern "C" __global__ void halves(const __half* x, const __half* y, __half* sum, __half* product) {
  int i = threadIdx.x;
  const __half2* a = reinterpret_cast<const __half2*>(x);
  const __half2* b = reinterpret_cast<const __half2*>(y);
  reinterpret_cast<__half2*>(sum)[i] = __hadd2(a[i], b[i]);
  reinterpret_cast<__half2*>(product)[i] = __hfma2(a[i], b[i], a[i]);
}

extern "C" __global__ void bfloats(const __nv_bfloat16* x, const __nv_bfloat16* y, __nv_bfloat16* z) {
  int i = threadIdx.x;
  float a = __bfloat162float(x[i]), b = __bfloat162float(y[i]);
  z[i] = __float2bfloat16(a * b + 1.0f);
}

extern "C" __global__ void divisions(const int* a, const int* b, int* quotient, int* remainder) {
  int i = threadIdx.x;
  quotient[i] = a[i] / b[i] + a[i] / 7;
  remainder[i] = a[i] % b[i] + a[i] % 7;
}

extern "C" __global__ void wide(const long long* a, const long long* b, long long* out) {
  int i = threadIdx.x;
  unsigned long long high = __umul64hi(a[i], b[i]);
  out[i] = (a[i] / b[i]) ^ (a[i] % b[i]) ^ (long long)high ^ (a[i] << (b[i] & 63)) ^ (a[i] >> (b[i] & 31)) ^
           __popcll(a[i]) ^ __clzll(b[i]);
}

extern "C" __global__ void functions(const float* x, float* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  float v = x[i];
  out[i] = sinf(v);
  out[n + i] = cosf(v);
  out[2 * n + i] = expf(v);
  out[3 * n + i] = logf(fabsf(v));
  out[4 * n + i] = powf(fabsf(v), 1.7f);
  out[5 * n + i] = erff(v);
  out[6 * n + i] = tanhf(v);
  out[7 * n + i] = v / 3.0f;
}

extern "C" __global__ void doubles(const double* x, double* out) {
  int i = threadIdx.x, n = blockDim.x;
  out[i] = sin(x[i]);
  out[n + i] = exp(x[i]);
  out[2 * n + i] = log(fabs(x[i]));
  out[3 * n + i] = x[i] / 3.7 + sqrt(fabs(x[i]));
}

__device__ __noinline__ int collatz(int n, int* trail) {
  int steps = 0;
  while (n != 1 && steps < 400) {
    trail[steps % 8] = n;
    n = n % 2 ? 3 * n + 1 : n / 2;
    ++steps;
  }
  return steps;
}

extern "C" __global__ void local_arrays(int* y) {
  int trail[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  int steps = collatz(threadIdx.x + 1, trail);
  int sum = steps;
  for (int i = 0; i < 8; ++i) sum += trail[(i + threadIdx.x) % 8];
  y[threadIdx.x] = sum;
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_reduce(const float* x, float* y) {
  __shared__ float sum;
  cg::cluster_group cluster = cg::this_cluster();
  float value = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
  if (threadIdx.x == 0) sum = value;
  cluster.sync();
  float total = 0;
  for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank) total += *cluster.map_shared_rank(&sum, rank);
  cluster.sync();
  if (threadIdx.x == 0) y[blockIdx.x] = total;
}
#endif
