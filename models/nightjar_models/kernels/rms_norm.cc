// RMSNorm over the last dimension on the CPU, for XLA's foreign function interface (xla/ffi/api/ffi.h).
//
// y = x * r * scale with r = 1 / sqrt(mean(x^2) + epsilon), one pass over a row that stays in the cache. The backward
// kernel gives dx; the gradient of the scale is a sum over rows, which XLA computes (and reduces over devices) itself.
//   dx = r * (g - x * r^2 * mean(g * x))   with g = dy * scale
// Sums are in float whatever the type of the arguments.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

struct BF16 {
  uint16_t bits;
};

inline float Load(float x) { return x; }
inline float Load(BF16 x) {
  const uint32_t wide = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

inline void Store(float value, float* to) { *to = value; }
inline void Store(float value, BF16* to) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof wide);
  if ((wide & 0x7fffffff) > 0x7f800000) {
    to->bits = static_cast<uint16_t>((wide >> 16) | 0x40);  // a NaN stays one
  } else {
    to->bits = static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);  // to nearest, ties to even
  }
}

template <typename T>
void ForwardRows(int64_t rows, int64_t width, float epsilon, const T* x, const T* scale, T* y, float* inverse) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    float sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += Load(x[i]) * Load(x[i]);
    const float r = 1 / std::sqrt(sum / width + epsilon);
    for (int64_t i = 0; i < width; ++i) Store(Load(x[i]) * r * Load(scale[i]), &y[i]);
    inverse[row] = r;
  }
}

template <typename T>
void BackwardRows(int64_t rows, int64_t width, const T* x, const T* scale, const float* inverse, const T* dy, T* dx) {
  for (int64_t row = 0; row < rows; ++row, x += width, dy += width, dx += width) {
    float sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += Load(dy[i]) * Load(scale[i]) * Load(x[i]);
    const float r = inverse[row], pull = sum / width * r * r;
    for (int64_t i = 0; i < width; ++i) Store(r * (Load(dy[i]) * Load(scale[i]) - Load(x[i]) * pull), &dx[i]);
  }
}

ffi::Error CheckShapes(const ffi::AnyBuffer& x, const ffi::AnyBuffer& scale) {
  if (x.dimensions().size() == 0 || scale.dimensions().size() != 1 || x.dimensions().back() != scale.dimensions()[0]) {
    return ffi::Error::InvalidArgument("rms_norm: expected x [..., D] and scale [D]");
  }
  if (x.element_type() != scale.element_type()) {
    return ffi::Error::InvalidArgument("rms_norm: expected x and scale of one type");
  }
  return ffi::Error::Success();
}

ffi::Error Forward(ffi::AnyBuffer x, ffi::AnyBuffer scale, ffi::Result<ffi::AnyBuffer> y,
                   ffi::ResultBuffer<ffi::F32> inverse, float epsilon) {
  if (auto error = CheckShapes(x, scale); error.failure()) return error;
  const int64_t width = x.dimensions().back(), rows = width ? x.element_count() / width : 0;
  switch (x.element_type()) {
    case ffi::F32:
      ForwardRows(rows, width, epsilon, x.typed_data<float>(), scale.typed_data<float>(), y->typed_data<float>(),
                  inverse->typed_data());
      return ffi::Error::Success();
    case ffi::BF16:
      ForwardRows(rows, width, epsilon, static_cast<const BF16*>(x.untyped_data()),
                  static_cast<const BF16*>(scale.untyped_data()), static_cast<BF16*>(y->untyped_data()),
                  inverse->typed_data());
      return ffi::Error::Success();
    default:
      return ffi::Error::InvalidArgument("rms_norm: expected float32 or bfloat16");
  }
}

ffi::Error Backward(ffi::AnyBuffer x, ffi::AnyBuffer scale, ffi::Buffer<ffi::F32> inverse, ffi::AnyBuffer dy,
                    ffi::Result<ffi::AnyBuffer> dx) {
  if (auto error = CheckShapes(x, scale); error.failure()) return error;
  const int64_t width = x.dimensions().back(), rows = width ? x.element_count() / width : 0;
  switch (x.element_type()) {
    case ffi::F32:
      BackwardRows(rows, width, x.typed_data<float>(), scale.typed_data<float>(), inverse.typed_data(),
                   dy.typed_data<float>(), dx->typed_data<float>());
      return ffi::Error::Success();
    case ffi::BF16:
      BackwardRows(rows, width, static_cast<const BF16*>(x.untyped_data()),
                   static_cast<const BF16*>(scale.untyped_data()), inverse.typed_data(),
                   static_cast<const BF16*>(dy.untyped_data()), static_cast<BF16*>(dx->untyped_data()));
      return ffi::Error::Success();
    default:
      return ffi::Error::InvalidArgument("rms_norm: expected float32 or bfloat16");
  }
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(RmsNormForward, Forward,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("epsilon"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(RmsNormBackward, Backward,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
