#include "python.h"

#include <nanobind/stl/pair.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "parallel.h"

namespace nb = nanobind;

namespace jax_ptx {

void RaiseIfError(const Status& status) {
  if (status.ok()) return;
  PyObject* type = PyExc_RuntimeError;
  if (status.code() == Code::kInvalidArgument) type = PyExc_ValueError;
  if (status.code() == Code::kUnimplemented) type = PyExc_NotImplementedError;
  PyErr_SetString(type, status.message().c_str());
  throw nb::python_error();
}

namespace {

int64_t Integer(const nb::handle value) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  const long long integer = PyLong_AsLongLong(index.ptr());
  if (integer == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return integer;
}

}  // namespace

DictRecord::DictRecord(nb::dict attributes) : attributes_(std::move(attributes)) {
  record.ptx = String("ptx");
  record.entry = String("entry");
  record.key = Integer(Get("key"));
  record.grid = Integers("grid");
  record.block = Integers("block");
  record.cluster = Integers("cluster");
  record.smem_bytes = Integer(Get("smem_bytes"));
  record.rows_per_cta = Integer(Get("rows_per_cta"));
  record.unit_bytes = Integers("unit_bytes");
  record.dims = Integers("dims");
  record.global_dims = Integers("global_dims");
  record.batch = Integers("batch");
  record.batch_mask = Integers("batch_mask");
}

nb::object DictRecord::Get(const char* name) {
  if (!attributes_.contains(name)) {
    throw nb::value_error((std::string("attributes: '") + name + "' is missing").c_str());
  }
  return attributes_[name];
}

std::string_view DictRecord::String(const char* name) {
  const nb::object value = Get(name);
  Py_ssize_t size = 0;
  if (!nb::isinstance<nb::str>(value)) {
    throw nb::type_error((std::string("attributes: '") + name + "' must be a str").c_str());
  }
  const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text == nullptr) throw nb::python_error();
  kept_.push_back(value);
  return {text, static_cast<size_t>(size)};
}

Int64s DictRecord::Integers(const char* name) {
  std::vector<int64_t>& values = values_[n_values_++];
  for (const nb::handle value : nb::iter(Get(name))) values.push_back(Integer(value));
  return {values.data(), values.size()};
}

void CheckResultCount(size_t buffers, int64_t n_results) {
  if (n_results < 0 || static_cast<size_t>(n_results) > buffers) {
    throw nb::value_error(("n_results must be between 0 and the number of buffers, " +
                           std::to_string(buffers) + ", got " + std::to_string(n_results))
                              .c_str());
  }
}

Buffer FromArray(const nb::handle array, size_t index, bool is_result) {
  const std::string name = "buffers[" + std::to_string(index) + "]";
  if (!nb::hasattr(array, "__array_interface__")) {
    throw nb::type_error((name + " must be a numpy array").c_str());
  }
  const nb::dict interface = nb::cast<nb::dict>(array.attr("__array_interface__"));
  const auto [address, read_only] = nb::cast<std::pair<uint64_t, bool>>(interface["data"]);
  if (!nb::cast<bool>(array.attr("flags").attr("c_contiguous"))) {
    throw nb::value_error(
        (name + " must be C-contiguous; pass numpy.ascontiguousarray(x)").c_str());
  }
  if (is_result && read_only) {
    throw nb::value_error((name + " is a result, and must be writable").c_str());
  }
  return {address, nb::cast<uint64_t>(array.attr("nbytes")), is_result};
}

void ParallelForOnThreads(int64_t n, const std::function<void(int64_t)>& task) {
  std::vector<std::thread> threads;
  RunShared(n, task, static_cast<int64_t>(std::thread::hardware_concurrency()) - 1,
            [&threads](auto helper) {
              try {
                threads.emplace_back(std::move(helper));
              } catch (const std::system_error&) {
                // No more threads to be had: those that are there, and the caller, do the work.
              }
            });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace jax_ptx
