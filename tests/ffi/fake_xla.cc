// Call frames as XLA makes them, for the handlers of the "CUDA" platform: a copy of 64 bytes, whose
// text, entry and key are given. Attributes lie in an order by name, each in memory of its own.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace {

struct Attribute {
  XLA_FFI_AttrType type;
  std::string text;
  std::vector<int64_t> numbers;
  XLA_FFI_ByteSpan span{};
  XLA_FFI_Scalar scalar{};
  XLA_FFI_Array array{};

  void* Data() {
    span = {text.data(), text.size()};
    scalar = {XLA_FFI_DataType_S64, numbers.data()};
    array = {XLA_FFI_DataType_S64, numbers.size(), numbers.data()};
    switch (type) {
      case XLA_FFI_AttrType_STRING:
        return &span;
      case XLA_FFI_AttrType_SCALAR:
        return &scalar;
      default:
        return &array;
    }
  }
};

Attribute Text(std::string text) { return {XLA_FFI_AttrType_STRING, std::move(text), {}}; }
Attribute Number(int64_t number) { return {XLA_FFI_AttrType_SCALAR, "", {number}}; }
Attribute Numbers(std::vector<int64_t> numbers) {
  return {XLA_FFI_AttrType_ARRAY, "", std::move(numbers)};
}

struct Frame {
  std::map<std::string, Attribute> attributes;
  std::vector<XLA_FFI_AttrType> types;
  std::vector<XLA_FFI_ByteSpan> names;
  std::vector<XLA_FFI_ByteSpan*> name_places;
  std::vector<void*> places;

  int64_t shape[1] = {16};
  XLA_FFI_Buffer x{XLA_FFI_Buffer_STRUCT_SIZE,    nullptr, XLA_FFI_DataType_F32,
                   reinterpret_cast<void*>(4096), 1,       shape};
  XLA_FFI_Buffer y{XLA_FFI_Buffer_STRUCT_SIZE,    nullptr, XLA_FFI_DataType_F32,
                   reinterpret_cast<void*>(8192), 1,       shape};
  XLA_FFI_ArgType operand_type = XLA_FFI_ArgType_BUFFER;
  XLA_FFI_RetType result_type = XLA_FFI_RetType_BUFFER;
  void *operand = &x, *result = &y;
};

// The frame's attributes anew, at the addresses where they were.
void Fill(Frame* frame) {
  frame->types.clear();
  frame->names.clear();
  frame->name_places.clear();
  frame->places.clear();
  frame->names.reserve(frame->attributes.size());
  for (auto& [name, attribute] : frame->attributes) {
    frame->types.push_back(attribute.type);
    frame->names.push_back({name.data(), name.size()});
    frame->name_places.push_back(&frame->names.back());
    frame->places.push_back(attribute.Data());
  }
}

std::string error;  // the last one's message
int device = 0, device_calls = 0;

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) {
  error = args->message;
  return reinterpret_cast<XLA_FFI_Error*>(&error);
}
XLA_FFI_Error* GetStream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = reinterpret_cast<void*>(7);
  return nullptr;
}
XLA_FFI_Error* GetDevice(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  ++device_calls;
  args->device_ordinal = device;
  return nullptr;
}

}  // namespace

extern "C" {

Frame* frame_new() { return new Frame; }
void frame_delete(Frame* frame) { delete frame; }

void frame_set(Frame* frame, const char* ptx, const char* entry, int64_t key) {
  frame->attributes = {{"ptx", Text(ptx)},
                       {"entry", Text(entry)},
                       {"key", Number(key)},
                       {"grid", Numbers({4, 1, 1})},
                       {"block", Numbers({128, 1, 1})},
                       {"cluster", Numbers({1, 1, 1})},
                       {"smem_bytes", Number(0)},
                       {"rows_per_cta", Number(0)},
                       {"unit_bytes", Numbers({64, 64})},
                       {"dims", Numbers({0, 0})},
                       {"global_dims", Numbers({})},
                       {"batch", Numbers({})},
                       {"batch_mask", Numbers({})}};
  Fill(frame);
}

// Makes one attribute a number, whatever it was, or takes it away.
void frame_spoil(Frame* frame, const char* name) {
  frame->attributes[name] = Number(1);
  Fill(frame);
}
void frame_drop(Frame* frame, const char* name) {
  frame->attributes.erase(name);
  Fill(frame);
}

const void* frame_address(const Frame* frame) { return frame->places.data(); }
int frame_device_calls() { return device_calls; }

// Calls a stage's handler: its error's message, or "ok".
const char* frame_call(Frame* frame, XLA_FFI_Handler* handler, int stage, int ordinal) {
  static XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.XLA_FFI_Error_Create = CreateError;
  api.XLA_FFI_Stream_Get = GetStream;
  api.XLA_FFI_DeviceOrdinal_Get = GetDevice;
  device = ordinal;

  XLA_FFI_CallFrame call{};
  call.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  call.api = &api;
  call.stage = static_cast<XLA_FFI_ExecutionStage>(stage);
  call.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, 1, &frame->operand_type, &frame->operand};
  call.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, 1, &frame->result_type, &frame->result};
  call.attrs = {XLA_FFI_Attrs_STRUCT_SIZE,
                nullptr,
                static_cast<int64_t>(frame->types.size()),
                frame->types.data(),
                frame->name_places.data(),
                frame->places.data()};
  return handler(&call) == nullptr ? "ok" : error.c_str();
}

// What a handler says about itself when it is registered: its version of the FFI and its traits.
const char* frame_metadata(XLA_FFI_Handler* handler) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame call{};
  call.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  call.extension_start = &extension.extension_base;
  static std::string answer;
  if (handler(&call) != nullptr) return "refused";
  answer = std::to_string(metadata.api_version.major_version) + "." +
           std::to_string(metadata.api_version.minor_version) + " " +
           std::to_string(metadata.traits);
  return answer.c_str();
}

}  // extern "C"
