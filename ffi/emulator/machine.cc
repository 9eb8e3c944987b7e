#include "emulator/machine.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstring>
#include <map>
#include <mutex>

#include "emulator/cluster.h"
#include "emulator/compile.h"
#include "emulator/monitor.h"
#include "emulator/schedule.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Function;
using ptx::Mod;
using ptx::Op;
using ptx::Space;

constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 38;
constexpr uint64_t kMaxClusterBytes = uint64_t{1} << 30;
constexpr int64_t kMaxCtaThreads = 1024;
constexpr int64_t kMaxClusterCtas = 16;
constexpr int64_t kMaxTasks = 256;

// XLA's threads flush subnormals to zero; PTX does so only where it says .ftz.
class IeeeArithmetic {
 public:
  IeeeArithmetic() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~IeeeArithmetic() { std::fesetenv(&saved_); }
  IeeeArithmetic(const IeeeArithmetic&) = delete;
  IeeeArithmetic& operator=(const IeeeArithmetic&) = delete;

 private:
  std::fenv_t saved_;
};

Result<const Function*> FindEntry(const ptx::Module& module, std::string_view name) {
  if (const Function* entry = module.FindEntry(name)) {
    if (entry->error.ok()) return entry;
    return Status(entry->error.code(),
                  "kernel `" + std::string(name) + "`: " + entry->error.message());
  }
  std::string known;
  for (const Function& function : module.functions) {
    if (function.is_entry)
      known += (known.empty() ? "`" : ", `") + std::string(function.name) + "`";
  }
  return InvalidArgument("the PTX has no kernel `" + std::string(name) + "`; it has " +
                         (known.empty() ? "none" : known));
}

Status CheckGeometry(const Function& entry, const Geometry& geometry) {
  std::string name = "kernel `" + std::string(entry.name) + "`: ";
  int64_t threads = 1, ctas = 1;
  for (int axis = 0; axis < 3; ++axis) {
    int64_t block = geometry.block[axis], cluster = geometry.cluster[axis],
            grid = geometry.grid[axis];
    int64_t most = axis == 0 ? INT32_MAX : 65535;
    if (block < 1 || cluster < 1 || grid < 0 || grid > most) {
      return InvalidArgument(name + "grid, block or cluster has a size that is out of range");
    }
    if (block > kMaxCtaThreads || cluster > kMaxClusterCtas || grid % cluster != 0) {
      return InvalidArgument(
          name +
          "a block has at most 1024 threads, a cluster at most 16 CTAs, and the grid "
          "must be a multiple of the cluster");
    }
    threads *= block;
    ctas *= cluster;
  }
  if (threads > kMaxCtaThreads || ctas > kMaxClusterCtas) {
    return InvalidArgument(name +
                           "a block has at most 1024 threads and a cluster at most 16 CTAs; got " +
                           std::to_string(threads) + " and " + std::to_string(ctas));
  }
  if (entry.required_threads != 0 && entry.required_threads != threads) {
    return InvalidArgument(name + ".reqntid asks for " + std::to_string(entry.required_threads) +
                           " threads, the block has " + std::to_string(threads));
  }
  if (entry.max_threads != 0 && threads > entry.max_threads) {
    return InvalidArgument(name + ".maxntid allows " + std::to_string(entry.max_threads) +
                           " threads, the block has " + std::to_string(threads));
  }
  if (entry.required_ctas != 0 && entry.required_ctas != ctas) {
    return InvalidArgument(name + ".reqnctapercluster asks for clusters of " +
                           std::to_string(entry.required_ctas) + " CTAs, the launch has " +
                           std::to_string(ctas));
  }
  if (geometry.smem_bytes < 0 || static_cast<uint64_t>(geometry.smem_bytes) > kMaxSharedBytes) {
    return ResourceExhausted(name + std::to_string(geometry.smem_bytes) +
                             " bytes of dynamic shared memory; at most " +
                             std::to_string(kMaxSharedBytes));
  }
  return {};
}

bool Overlap(const Buffer& a, const Buffer& b) {
  return a.address < b.address + b.bytes && b.address < a.address + a.bytes;
}

// Tensors at their virtual addresses, and the parameter space that names them.
Status LayOutTensors(const Function& entry, const std::vector<Buffer>& tensors,
                     const std::vector<Scalar>& scalars, std::vector<Region>* regions,
                     std::vector<uint8_t>* parameters) {
  size_t given = tensors.size() + scalars.size(), next_tensor = 0;
  std::string name = "kernel `" + std::string(entry.name) + "`: ";
  if (given != entry.parameters.size()) {
    return InvalidArgument(name + "it has " + std::to_string(entry.parameters.size()) +
                           " parameters, the launch has " + std::to_string(tensors.size()) +
                           " tensors and " + std::to_string(scalars.size()) +
                           " run-time dimensions or scalars");
  }
  if (tensors.size() >= kFirstVariableSlot - kFirstTensorSlot)
    return ResourceExhausted(name + "too many tensors");
  for (size_t i = 0; i < given; ++i) {
    const ptx::Parameter& parameter = entry.parameters[i];
    std::string described =
        "parameter " + std::to_string(i) + " (`" + std::string(parameter.name) + "`)";
    size_t end = size_t{parameter.offset} + parameter.bytes;
    if (parameters->size() < end) parameters->resize(end);
    uint8_t* place = parameters->data() + parameter.offset;
    auto scalar = std::find_if(scalars.begin(), scalars.end(),
                               [&](const Scalar& other) { return other.position == i; });
    size_t bytes = scalar == scalars.end() ? 8 : scalar->bytes.size();
    if (parameter.bytes != bytes) {
      return InvalidArgument(
          name + described + " has " + std::to_string(parameter.bytes) + " bytes" +
          (scalar == scalars.end()
               ? "; tensors and run-time dimensions are .u64"
               : ", the value given for it " + std::to_string(scalar->bytes.size())));
    }
    if (scalar != scalars.end()) {
      std::memcpy(place, scalar->bytes.data(), bytes);
      continue;
    }
    if (next_tensor == tensors.size())
      return InvalidArgument(name + "two scalars have the same position");
    const Buffer& tensor = tensors[next_tensor];
    if (tensor.bytes > kMaxTensorBytes)
      return ResourceExhausted(name + "a tensor of more than 2^38 bytes");
    Region region;
    // The low bits of the host's address stay, so that a misaligned view is misaligned here too.
    region.begin =
        (kFirstTensorSlot + next_tensor) << kSlotBits | kSlotMiddle | (tensor.address & 15);
    region.end = region.begin + tensor.bytes;
    region.host = reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(tensor.address));
    region.is_writable = tensor.is_result;
    region.is_poisoned = tensor.is_result && !tensor.is_aliased;
    for (const Buffer& other : tensors) {
      region.is_writable |= other.is_result && other.is_aliased && Overlap(tensor, other);
    }
    region.name = described;
    std::memcpy(place, &region.begin, 8);
    regions->push_back(std::move(region));
    ++next_tensor;
  }
  return {};
}

// .global and .const variables: memory of this run, with initialisers.
void MakeVariables(const Program& program, std::vector<std::vector<uint64_t>>* memory,
                   std::vector<Region>* regions) {
  std::map<uint32_t, size_t> slots;
  for (size_t slot = 0; slot < program.globals.size(); ++slot) slots[program.globals[slot]] = slot;
  for (size_t slot = 0; slot < program.globals.size(); ++slot) {
    const ptx::Variable& variable = program.module->variables[program.globals[slot]];
    auto& words = memory->emplace_back((variable.bytes + 7) / 8);
    auto* bytes = reinterpret_cast<uint8_t*>(words.data());
    if (!variable.contents.empty())
      std::memcpy(bytes, variable.contents.data(), variable.contents.size());
    for (const auto& relocation : variable.relocations) {
      auto target = slots.find(relocation.variable);
      if (target == slots.end() || relocation.offset + 8 > variable.bytes) continue;
      uint64_t value;
      std::memcpy(&value, bytes + relocation.offset, 8);
      value += VariableSlot(target->second);
      std::memcpy(bytes + relocation.offset, &value, 8);
    }
    Region region;
    region.begin = VariableSlot(slot);
    region.end = region.begin + variable.bytes;
    region.host = bytes;
    region.is_writable = variable.space == Space::kGlobal;
    region.name = "variable `" + std::string(variable.name) + "`";
    regions->push_back(std::move(region));
  }
}

// Atomics on global memory whose order shows (what they return, how floats add up): then CTAs go
// one by one, in order, so that the result does not depend on the number of threads.
bool NeedsOrder(const Program& program) {
  return std::any_of(program.steps.begin(), program.steps.end(), [](const Step& step) {
    const ptx::Instruction& i = *step.source;
    bool is_sum = i.op == Op::kRed || i.op == Op::kCpReduceBulk;
    bool is_global = i.space != Space::kShared || i.Has(Mod::kGlobal);
    return is_global && (i.op == Op::kAtom || (is_sum && ptx::IsFloat(i.type[0])));
  });
}

// What the kernel may change, besides results that start without a value.
using Contents = std::vector<std::pair<const Region*, std::vector<uint8_t>>>;
Contents Save(const Launch& launch) {
  Contents contents;
  for (const auto* regions : {&launch.tensors, &launch.variables}) {
    for (const Region& region : *regions) {
      if (!region.is_writable) continue;
      contents.push_back({&region, {region.host, region.host + (region.end - region.begin)}});
    }
  }
  return contents;
}

Finding RunClusters(const Launch& launch, int64_t clusters, bool is_reversed,
                    const Options& options, const ParallelFor& parallel_for) {
  // Tasks take clusters in order, so every cluster before the first failing one has run
  // to its end.
  std::atomic<int64_t> next{0}, failed{clusters};
  std::mutex mutex;
  Finding fault;
  std::unique_ptr<Monitor> monitor;
  if (options.observation != nullptr)
    monitor = std::make_unique<Monitor>(launch, options.observation);
  bool is_ordered = monitor != nullptr || NeedsOrder(*launch.program);
  int64_t tasks = is_ordered ? 1 : std::min(clusters, kMaxTasks);
  auto task = [&](int64_t) {
    IeeeArithmetic arithmetic;
    std::unique_ptr<ClusterMemory> memory;
    for (;;) {
      int64_t index = next.fetch_add(1);
      if (index >= clusters || index > failed.load()) return;
      if (memory == nullptr) memory = std::make_unique<ClusterMemory>(launch);
      Cluster& cluster =
          memory->Start(is_reversed ? clusters - 1 - index : index, options.step_limit);
      cluster.later = clusters - 1 - index;
      if (monitor != nullptr) monitor->Start(cluster);
      RunCluster(cluster, options.turns, options.step_limit, tasks == 1);
      if (!cluster.fault.set()) continue;
      std::lock_guard<std::mutex> lock(mutex);
      if (index < failed.load()) {
        failed.store(index);
        fault = cluster.fault;
      }
    }
  };
  if (tasks == 1) {
    task(0);
  } else {
    parallel_for(tasks, task);
  }
  if (monitor != nullptr) monitor->Finish(fault);
  return fault;
}

}  // namespace

Status Check(const ptx::Module& module, std::string_view entry_name) {
  Result<const Function*> entry = FindEntry(module, entry_name);
  if (!entry.ok()) return entry.status();
  return Compile(module, **entry, {}).status();
}

Result<uint64_t> WarpBytes(const ptx::Module& module, std::string_view entry_name) {
  Result<const Function*> entry = FindEntry(module, entry_name);
  if (!entry.ok()) return entry.status();
  auto program = Compile(module, **entry, {});
  if (!program.ok()) return program.status();
  return ClusterMemory::BytesForWarp(**program);
}

Status Run(const ptx::Module& module, Programs& programs, std::string_view entry_name,
           const Geometry& geometry, const std::vector<Buffer>& tensors,
           const std::vector<Scalar>& scalars, const Options& options,
           const ParallelFor& parallel_for) {
  Result<const Function*> entry = FindEntry(module, entry_name);
  if (!entry.ok()) return entry.status();
  JAX_PTX_RETURN_IF_ERROR(CheckGeometry(**entry, geometry));
  Launch launch;
  launch.geometry = geometry;
  std::vector<uint8_t> parameters;
  JAX_PTX_RETURN_IF_ERROR(LayOutTensors(**entry, tensors, scalars, &launch.tensors, &parameters));
  Result<std::shared_ptr<const Program>> program = programs.Find(module, **entry, parameters);
  if (!program.ok()) return program.status();
  launch.program = program->get();
  launch.threads = static_cast<uint32_t>(geometry.block[0] * geometry.block[1] * geometry.block[2]);
  uint64_t shared =
      launch.program->static_shared_bytes + static_cast<uint64_t>(geometry.smem_bytes);
  uint64_t own_bytes = shared - launch.program->reserved_shared_bytes;
  if (own_bytes > kMaxSharedBytes) {
    return ResourceExhausted(
        "kernel `" + std::string(entry_name) + "`: " + std::to_string(own_bytes) +
        " bytes of shared memory, static and dynamic; at most " + std::to_string(kMaxSharedBytes));
  }
  launch.shared_bytes = static_cast<uint32_t>(shared);
  uint64_t bytes = ClusterMemory::BytesFor(launch);
  if (bytes > kMaxClusterBytes) {
    return ResourceExhausted("kernel `" + std::string(entry_name) +
                             "`: the registers and local memory of a cluster take " +
                             std::to_string(bytes) + " bytes; at most " +
                             std::to_string(kMaxClusterBytes));
  }
  std::vector<std::vector<uint64_t>> variables;
  MakeVariables(*launch.program, &variables, &launch.variables);
  Region own;
  own.begin = launch.program->parameters;
  own.end = own.begin + parameters.size();
  own.host = parameters.data();
  own.name = "the parameters";
  launch.variables.push_back(std::move(own));
  for (const Buffer& tensor : tensors) {
    if (!tensor.is_result || tensor.is_aliased || tensor.bytes == 0) continue;
    std::memset(reinterpret_cast<void*>(static_cast<uintptr_t>(tensor.address)), 0xFF,
                tensor.bytes);
  }

  int64_t clusters = 1;
  for (int axis = 0; axis < 3; ++axis) {
    launch.clusters[axis] = geometry.grid[axis] / geometry.cluster[axis];
    clusters *= launch.clusters[axis];
  }
  if (clusters == 0) return {};

  // The last CTA first; but should one wait for a smaller number, as those of a chained scan may
  // (by atomics, until its step limit), all is done again with the CTAs in order.
  bool is_reversed = options.turns.schedule == Schedule::kAdversarial && clusters > 1;
  Contents before;
  Observation asked;
  if (is_reversed) {
    before = Save(launch);
    if (options.observation != nullptr) asked = *options.observation;
  }
  Finding fault = RunClusters(launch, clusters, is_reversed, options, parallel_for);
  bool waits = fault.kind == Kind::kWaitsForCta || fault.kind == Kind::kStepLimit;
  if (is_reversed && waits) {
    for (auto& [region, bytes] : before) std::memcpy(region->host, bytes.data(), bytes.size());
    if (options.observation != nullptr) *options.observation = asked;
    fault = RunClusters(launch, clusters, false, options, parallel_for);
  }
  return fault.set() ? Status(fault.code, fault.message) : Status();
}

}  // namespace jax_ptx::emulator
