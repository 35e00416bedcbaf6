// RMSNorm over the last dimension on NVIDIA GPUs: the kernels of rms_norm.cc, one block of threads per row.
//
// A row is read once from memory and once more from the cache; the sum over it goes through warp shuffles. Built with
// nvcc where there is a GPU: `nvcc -O3 -std=c++17 -shared -Xcompiler -fPIC`.

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int kThreads = 256, kWarp = 32;

__device__ inline float Load(float x) { return x; }
__device__ inline float Load(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void Store(float value, float* to) { *to = value; }
__device__ inline void Store(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }

// The sum over all threads of a block, in every one of them.
__device__ float BlockSum(float value) {
  __shared__ float parts[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kThreads / kWarp; ++warp) sum += parts[warp];
  return sum;
}

template <typename T>
__global__ void ForwardRow(int64_t width, float epsilon, const T* x, const T* scale, T* y, float* inverse) {
  x += blockIdx.x * width;
  y += blockIdx.x * width;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += Load(x[i]) * Load(x[i]);
  const float r = rsqrtf(BlockSum(sum) / width + epsilon);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) Store(Load(x[i]) * r * Load(scale[i]), &y[i]);
  if (threadIdx.x == 0) inverse[blockIdx.x] = r;
}

template <typename T>
__global__ void BackwardRow(int64_t width, const T* x, const T* scale, const float* inverse, const T* dy, T* dx) {
  x += blockIdx.x * width;
  dy += blockIdx.x * width;
  dx += blockIdx.x * width;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += Load(dy[i]) * Load(scale[i]) * Load(x[i]);
  const float r = inverse[blockIdx.x], pull = BlockSum(sum) / width * r * r;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    Store(r * (Load(dy[i]) * Load(scale[i]) - Load(x[i]) * pull), &dx[i]);
  }
}

template <typename T>
void LaunchForward(cudaStream_t stream, int64_t rows, int64_t width, float epsilon, ffi::AnyBuffer x,
                   ffi::AnyBuffer scale, ffi::AnyBuffer y, float* inverse) {
  ForwardRow<T><<<rows, kThreads, 0, stream>>>(width, epsilon, static_cast<const T*>(x.untyped_data()),
                                               static_cast<const T*>(scale.untyped_data()),
                                               static_cast<T*>(y.untyped_data()), inverse);
}

template <typename T>
void LaunchBackward(cudaStream_t stream, int64_t rows, int64_t width, ffi::AnyBuffer x, ffi::AnyBuffer scale,
                    const float* inverse, ffi::AnyBuffer dy, ffi::AnyBuffer dx) {
  BackwardRow<T><<<rows, kThreads, 0, stream>>>(
      width, static_cast<const T*>(x.untyped_data()), static_cast<const T*>(scale.untyped_data()), inverse,
      static_cast<const T*>(dy.untyped_data()), static_cast<T*>(dx.untyped_data()));
}

ffi::Error Launched() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? ffi::Error::Success() : ffi::Error::Internal(cudaGetErrorString(error));
}

ffi::Error CheckShapes(const ffi::AnyBuffer& x, const ffi::AnyBuffer& scale) {
  if (x.dimensions().size() == 0 || scale.dimensions().size() != 1 || x.dimensions().back() != scale.dimensions()[0]) {
    return ffi::Error::InvalidArgument("rms_norm: expected x [..., D] and scale [D]");
  }
  if (x.element_type() != scale.element_type() ||
      (x.element_type() != ffi::F32 && x.element_type() != ffi::BF16)) {
    return ffi::Error::InvalidArgument("rms_norm: expected x and scale of one type, float32 or bfloat16");
  }
  return ffi::Error::Success();
}

ffi::Error Forward(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer scale, ffi::Result<ffi::AnyBuffer> y,
                   ffi::ResultBuffer<ffi::F32> inverse, float epsilon) {
  if (auto error = CheckShapes(x, scale); error.failure()) return error;
  if (x.element_count() == 0) return ffi::Error::Success();
  const int64_t width = x.dimensions().back(), rows = x.element_count() / width;
  const auto launch = x.element_type() == ffi::F32 ? LaunchForward<float> : LaunchForward<__nv_bfloat16>;
  launch(stream, rows, width, epsilon, x, scale, *y, inverse->typed_data());
  return Launched();
}

ffi::Error Backward(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer scale, ffi::Buffer<ffi::F32> inverse,
                    ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dx) {
  if (auto error = CheckShapes(x, scale); error.failure()) return error;
  if (x.element_count() == 0) return ffi::Error::Success();
  const int64_t width = x.dimensions().back(), rows = x.element_count() / width;
  const auto launch = x.element_type() == ffi::F32 ? LaunchBackward<float> : LaunchBackward<__nv_bfloat16>;
  launch(stream, rows, width, x, scale, inverse.typed_data(), dy, *dx);
  return Launched();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(RmsNormForward, Forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("epsilon"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(RmsNormBackward, Backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
