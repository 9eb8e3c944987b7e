// A fuzzer's target (libFuzzer): a text goes through the lexer, the parser and the machine, under
// the address and undefined-behaviour sanitizers. Any Status is right; a crash, a hang or memory
// without bounds is not.
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/machine.h"
#include "ptx/program.h"
#include "ptx/signature.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using jax_ptx::Buffer;
using jax_ptx::Geometry;

constexpr size_t kMaxParameters = 8;
constexpr uint64_t kStepLimit = 4000;

void RunEntry(const jax_ptx::ptx::Module& module, const jax_ptx::ptx::Function& entry) {
  size_t count = entry.parameters.size();
  if (count > kMaxParameters) return;
  alignas(16) static uint8_t memory[kMaxParameters][1024];
  std::memset(memory, 1, sizeof memory);
  std::vector<Buffer> tensors;
  for (size_t i = 0; i < count; ++i) {
    Buffer tensor;
    tensor.address = reinterpret_cast<uintptr_t>(memory[i]);
    tensor.bytes = sizeof memory[i];
    tensor.is_result = 2 * i >= count;
    tensors.push_back(tensor);
  }
  // A warp, a part of one, and more than one CTA; a cluster where the text speaks of them.
  bool has_clusters = module.text.find("cluster") != std::string::npos;
  int64_t threads = entry.required_threads != 0 ? entry.required_threads : 40;
  Geometry geometry{{2, 1, 1}, {threads, 1, 1}, {has_clusters ? 2 : 1, 1, 1}, 256};
  jax_ptx::emulator::Programs programs;
  jax_ptx::emulator::Observation observation;
  observation.race_check = true;
  for (auto* observed : {static_cast<decltype(&observation)>(nullptr), &observation}) {
    jax_ptx::emulator::Options options;
    options.step_limit = kStepLimit;
    options.observation = observed;
    (void)jax_ptx::emulator::Run(module, programs, entry.name, geometry, tensors, {}, options,
                                 [](int64_t n, const std::function<void(int64_t)>& task) {
                                   for (int64_t i = 0; i < n; ++i) task(i);
                                 });
  }
}

using Lines = std::vector<std::string_view>;

Lines Split(const uint8_t* data, size_t size) {
  Lines lines;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  while (!text.empty()) {
    size_t end = text.find('\n');
    lines.push_back(text.substr(0, end == std::string_view::npos ? end : end + 1));
    text.remove_prefix(lines.back().size());
  }
  return lines;
}

size_t Join(const Lines& lines, uint8_t* out, size_t max_size) {
  std::string text;
  for (std::string_view line : lines) text += line;
  size_t size = std::min(text.size(), max_size);
  std::memcpy(out, text.data(), size);
  return size;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)jax_ptx::ptx::CountParameters(text, "k");
  auto module = jax_ptx::ptx::Parse(text);
  if (!module.ok()) return 0;
  for (const auto& entry : (*module)->functions) {
    if (entry.is_entry && entry.is_defined) RunEntry(**module, entry);
  }
  return 0;
}

// PTX is lines: half of the mutations delete, repeat or move one, the others are bytes.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  std::minstd_rand random(seed);
  Lines lines = Split(data, size);
  if (lines.empty() || random() % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  size_t from = random() % lines.size(), to = random() % lines.size();
  std::string_view line = lines[from];
  switch (random() % 3) {
    case 0:
      lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(from));
      break;
    case 1:
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(to), line);
      break;
    default:
      std::swap(lines[from], lines[to]);
  }
  return Join(lines, data, max_size);
}

// Some lines of one text go into the other.
extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data1, size_t size1,
                                            const uint8_t* data2, size_t size2, uint8_t* out,
                                            size_t max_size, unsigned seed) {
  std::minstd_rand random(seed);
  Lines lines = Split(data1, size1), others = Split(data2, size2);
  if (others.empty()) return 0;
  size_t first = random() % others.size(), count = 1 + random() % 3;
  for (size_t i = first; i < std::min(first + count, others.size()); ++i) {
    size_t at = random() % (lines.size() + 1);
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at), others[i]);
  }
  return Join(lines, out, max_size);
}
