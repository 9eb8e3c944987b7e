// The FFI stages of the target `jax_ptx_launch`, as XLA calls them.
#pragma once

#include "xla/ffi/api/c_api.h"

namespace jax_ptx {

extern "C" {
XLA_FFI_Error* JaxPtxCpuInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxPtxCpuExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxPtxCudaInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxPtxCudaInitialize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxPtxCudaExecute(XLA_FFI_CallFrame* frame);
}

}  // namespace jax_ptx
