// PyTorch's tensors, read by DLPack's C exchange API: a launch takes less of the host's time than a
// question to each of them by a call of Python's.
#pragma once

#include <dlpack.h>
#include <nanobind/nanobind.h>

#include "inline_vector.h"
#include "launch.h"
#include "launcher.h"

namespace jax_ptx {

class Tensors {
 public:
  Tensors(nanobind::object exchange, nanobind::object is_neg, nanobind::object empty,
          nanobind::object empty_at_once);
  Tensors(const Tensors&) = delete;

  // False for what is a tensor in name alone, as one of torch.func's or a sparse one.
  bool Read(nanobind::handle tensor, DLTensor* read) const;

  // Whether a kernel reads it as it is, and it has something to read on a GPU.
  bool Fits(nanobind::handle tensor, const DLTensor& read, uint64_t alignment) const;

  // A new contiguous tensor on a GPU.
  nanobind::object New(const int64_t* shape, int32_t ndim, nanobind::handle dtype,
                       int device) const;

  // Adds a result to the buffers, unless it is not on the GPU or not contiguous.
  bool AddResult(nanobind::handle tensor, int device, Buffers* buffers) const;

  // On the GPU's current stream.
  void Enqueue(Launcher& launcher, const Buffers& buffers, int device) const;

 private:
  const nanobind::object exchange_, is_neg_, empty_, empty_at_once_;
  const nanobind::tuple names_;
  const DLPackExchangeAPI* const api_;
};

Buffer ToBuffer(const DLTensor& tensor, bool is_result);

}  // namespace jax_ptx
