// The scalar types, modifiers, opcodes and special registers of the PTX that this library decodes.
#pragma once

#include <cstdint>
#include <string_view>

namespace jax_ptx::ptx {

// Fundamental and packed types: enumerator, spelling, bits, kind (b bits, u unsigned, s signed, f
// float).
// clang-format off
#define JAX_PTX_TYPES(X) \
  X(kPred, "pred", 1, 'p') X(kB8, "b8", 8, 'b') X(kB16, "b16", 16, 'b') X(kB32, "b32", 32, 'b') \
  X(kB64, "b64", 64, 'b') X(kB128, "b128", 128, 'b') X(kU8, "u8", 8, 'u') \
  X(kU16, "u16", 16, 'u') X(kU32, "u32", 32, 'u') X(kU64, "u64", 64, 'u') \
  X(kU16x2, "u16x2", 32, 'u') X(kS8, "s8", 8, 's') X(kS16, "s16", 16, 's') \
  X(kS32, "s32", 32, 's') X(kS64, "s64", 64, 's') X(kS16x2, "s16x2", 32, 's') \
  X(kF16, "f16", 16, 'f') X(kF16x2, "f16x2", 32, 'f') X(kBF16, "bf16", 16, 'f') \
  X(kBF16x2, "bf16x2", 32, 'f') X(kTF32, "tf32", 32, 'f') X(kF32, "f32", 32, 'f') \
  X(kF32x2, "f32x2", 64, 'f') X(kF64, "f64", 64, 'f') X(kE4M3x2, "e4m3x2", 16, 'f') \
  X(kE5M2x2, "e5m2x2", 16, 'f') X(kE2M3x2, "e2m3x2", 16, 'f') X(kE3M2x2, "e3m2x2", 16, 'f') \
  X(kE2M1x2, "e2m1x2", 8, 'f') X(kUE8M0x2, "ue8m0x2", 16, 'f') X(kE4M3, "e4m3", 8, 'f') \
  X(kE5M2, "e5m2", 8, 'f') X(kU4, "u4", 4, 'u') X(kS4, "s4", 4, 's') X(kB1, "b1", 1, 'b')
// clang-format on

enum class Type : uint8_t {
  kNone,
#define X(id, text, bits, kind) id,
  JAX_PTX_TYPES(X)
#undef X
};

struct TypeInfo {
  std::string_view name;
  uint8_t bits;
  char kind;
};

const TypeInfo& Info(Type type);
Type FindType(std::string_view name);  // kNone when there is none

inline unsigned Bits(Type type) { return Info(type).bits; }
inline unsigned Bytes(Type type) { return Info(type).bits / 8; }
inline bool IsFloat(Type type) { return Info(type).kind == 'f'; }
inline bool IsSigned(Type type) { return Info(type).kind == 's'; }

// Whether registers and variables may be declared with the type; the others are types of
// instructions alone.
bool IsDeclarable(Type type);
// Whether a register that is declared as `declared` may stand where an instruction asks for
// `asked`: untyped bits go with everything of their size, integers with integers whatever their
// sign, floats and packed values with their own type only (PTX ISA 9.6, operand type checking).
bool Agrees(Type asked, Type declared);

// Modifiers that are not types: enumerator and spelling.
// clang-format off
#define JAX_PTX_MODIFIERS(X) \
  X(kRn, "rn") X(kRz, "rz") X(kRm, "rm") X(kRp, "rp") X(kRna, "rna") X(kRni, "rni") \
  X(kRzi, "rzi") X(kRmi, "rmi") X(kRpi, "rpi") X(kFtz, "ftz") X(kSat, "sat") \
  X(kSatfinite, "satfinite") X(kRelu, "relu") X(kApprox, "approx") X(kFull, "full") \
  X(kNanMode, "NaN") X(kXorsign, "xorsign") X(kAbs, "abs") X(kHi, "hi") X(kLo, "lo") \
  X(kWide, "wide") X(kCc, "cc") X(kShiftamt, "shiftamt") X(kEq, "eq") X(kNe, "ne") X(kLt, "lt") \
  X(kLe, "le") X(kGt, "gt") X(kGe, "ge") X(kLs, "ls") X(kHs, "hs") X(kEqu, "equ") \
  X(kNeu, "neu") X(kLtu, "ltu") X(kLeu, "leu") X(kGtu, "gtu") X(kGeu, "geu") X(kNum, "num") \
  X(kNan, "nan") X(kAnd, "and") X(kOr, "or") X(kXor, "xor") X(kPopc, "popc") \
  X(kFinite, "finite") X(kInfinite, "infinite") X(kNumber, "number") \
  X(kNotanumber, "notanumber") X(kNormal, "normal") X(kSubnormal, "subnormal") \
  X(kClamp, "clamp") X(kWrap, "wrap") X(kL, "l") X(kR, "r") X(kF4e, "f4e") X(kB4e, "b4e") \
  X(kRc8, "rc8") X(kEcl, "ecl") X(kEcr, "ecr") X(kRc16, "rc16") X(kTo, "to") \
  X(kGlobal, "global") X(kShared, "shared") X(kSharedCta, "shared::cta") \
  X(kSharedCluster, "shared::cluster") X(kLocal, "local") X(kConst, "const") X(kParam, "param") \
  X(kParamEntry, "param::entry") X(kParamFunc, "param::func") X(kNc, "nc") X(kWeak, "weak") \
  X(kRelaxed, "relaxed") X(kAcquire, "acquire") X(kRelease, "release") X(kAcqRel, "acq_rel") \
  X(kSc, "sc") X(kVolatile, "volatile") X(kMmio, "mmio") X(kCta, "cta") X(kCluster, "cluster") \
  X(kGpu, "gpu") X(kSys, "sys") X(kGl, "gl") X(kCa, "ca") X(kCg, "cg") X(kCs, "cs") \
  X(kLu, "lu") X(kCv, "cv") X(kWb, "wb") X(kWt, "wt") X(kEvictNormalL1, "L1::evict_normal") \
  X(kEvictUnchangedL1, "L1::evict_unchanged") X(kEvictFirstL1, "L1::evict_first") \
  X(kEvictLastL1, "L1::evict_last") X(kNoAllocateL1, "L1::no_allocate") \
  X(kEvictNormalL2, "L2::evict_normal") \
  X(kEvictFirstL2, "L2::evict_first") \
  X(kEvictLastL2, "L2::evict_last") X(kCacheHintL2, "L2::cache_hint") \
  X(kPrefetch64, "L2::64B") X(kPrefetch128, "L2::128B") X(kPrefetch256, "L2::256B") \
  X(kPrefetchL1, "L1") X(kPrefetchL2, "L2") X(kV2, "v2") X(kV4, "v4") X(kV8, "v8") \
  X(kUni, "uni") X(kSync, "sync") X(kArrive, "arrive") X(kRed, "red") \
  X(kWait, "wait") X(kWarp, "warp") X(kAligned, "aligned") X(kUp, "up") X(kDown, "down") \
  X(kBfly, "bfly") X(kIdx, "idx") X(kAny, "any") X(kAll, "all") \
  X(kBallot, "ballot") X(kExch, "exch") X(kCas, "cas") X(kAdd, "add") X(kInc, "inc") \
  X(kDec, "dec") X(kMin, "min") X(kMax, "max") X(kNoftz, "noftz") \
  X(kLaunchDependents, "launch_dependents") X(kProxy, "proxy") X(kAsync, "async") \
  X(kAlias, "alias") X(kInit, "init") X(kMbarrierInit, "mbarrier_init") X(kInval, "inval") \
  X(kExpectTx, "expect_tx") X(kCompleteTx, "complete_tx") X(kArriveDrop, "arrive_drop") \
  X(kNoComplete, "noComplete") X(kTestWait, "test_wait") X(kTryWait, "try_wait") \
  X(kParity, "parity") X(kPendingCount, "pending_count") X(kCommitGroup, "commit_group") \
  X(kWaitGroup, "wait_group") X(kWaitAll, "wait_all") X(kNoinc, "noinc") \
  X(kMbarrier, "mbarrier") X(kBulk, "bulk") X(kBulkGroup, "bulk_group") X(kRead, "read") \
  X(kMbarrierCompleteTx, "mbarrier::complete_tx::bytes") X(kMulticast, "multicast::cluster") \
  X(kM8n8, "m8n8") X(kX1, "x1") X(kX2, "x2") X(kX4, "x4") X(kTrans, "trans") \
  X(kM8n8k4, "m8n8k4") X(kM8n8k16, "m8n8k16") X(kM8n8k32, "m8n8k32") X(kM8n8k128, "m8n8k128") \
  X(kM16n8k4, "m16n8k4") X(kM16n8k8, "m16n8k8") X(kM16n8k16, "m16n8k16") \
  X(kM16n8k32, "m16n8k32") X(kM16n8k64, "m16n8k64") X(kM16n8k128, "m16n8k128") \
  X(kM16n8k256, "m16n8k256") X(kM16n16k16, "m16n16k16") X(kM32n8k16, "m32n8k16") \
  X(kM8n32k16, "m8n32k16") X(kM16n16k8, "m16n16k8") X(kRow, "row") X(kCol, "col") \
  X(kLoad, "load") X(kStore, "store") X(kA, "a") X(kB, "b") X(kC, "c") X(kD, "d") \
  X(kPack, "pack") X(kReduce, "reduce") X(kCpMask, "cp_mask") X(kRange, "range") \
  X(kLaneid, "laneid")
// clang-format on

enum class Mod : uint8_t {
#define X(id, text) id,
  JAX_PTX_MODIFIERS(X)
#undef X
      kCount
};

std::string_view Name(Mod modifier);
bool FindModifier(std::string_view name, Mod* modifier);

// clang-format off
#define JAX_PTX_SPECIALS(X) \
  X(kTidX, "%tid.x") X(kTidY, "%tid.y") X(kTidZ, "%tid.z") X(kNtidX, "%ntid.x") \
  X(kNtidY, "%ntid.y") X(kNtidZ, "%ntid.z") X(kCtaidX, "%ctaid.x") X(kCtaidY, "%ctaid.y") \
  X(kCtaidZ, "%ctaid.z") X(kNctaidX, "%nctaid.x") X(kNctaidY, "%nctaid.y") \
  X(kNctaidZ, "%nctaid.z") X(kClusteridX, "%clusterid.x") X(kClusteridY, "%clusterid.y") \
  X(kClusteridZ, "%clusterid.z") X(kNclusteridX, "%nclusterid.x") \
  X(kNclusteridY, "%nclusterid.y") X(kNclusteridZ, "%nclusterid.z") \
  X(kClusterCtaidX, "%cluster_ctaid.x") X(kClusterCtaidY, "%cluster_ctaid.y") \
  X(kClusterCtaidZ, "%cluster_ctaid.z") X(kClusterNctaidX, "%cluster_nctaid.x") \
  X(kClusterNctaidY, "%cluster_nctaid.y") X(kClusterNctaidZ, "%cluster_nctaid.z") \
  X(kClusterCtarank, "%cluster_ctarank") X(kClusterNctarank, "%cluster_nctarank") \
  X(kIsExplicitCluster, "%is_explicit_cluster") X(kLaneid, "%laneid") X(kWarpid, "%warpid") \
  X(kNwarpid, "%nwarpid") X(kSmid, "%smid") X(kNsmid, "%nsmid") X(kGridid, "%gridid") \
  X(kLanemaskEq, "%lanemask_eq") X(kLanemaskLe, "%lanemask_le") X(kLanemaskLt, "%lanemask_lt") \
  X(kLanemaskGe, "%lanemask_ge") X(kLanemaskGt, "%lanemask_gt") \
  X(kDynamicSmemSize, "%dynamic_smem_size") X(kTotalSmemSize, "%total_smem_size") \
  X(kAggrSmemSize, "%aggr_smem_size") X(kReservedSmemBegin, "%reserved_smem_offset_begin") \
  X(kReservedSmemEnd, "%reserved_smem_offset_end") \
  X(kReservedSmemCap, "%reserved_smem_offset_cap") \
  X(kReservedSmem0, "%reserved_smem_offset_0") X(kReservedSmem1, "%reserved_smem_offset_1") \
  X(kEnvreg1, "%envreg1") X(kEnvreg2, "%envreg2") X(kClock, "%clock") X(kClockHi, "%clock_hi") \
  X(kClock64, "%clock64") X(kGlobaltimer, "%globaltimer") X(kGlobaltimerLo, "%globaltimer_lo") \
  X(kGlobaltimerHi, "%globaltimer_hi")
// clang-format on

enum class Special : uint8_t {
#define X(id, text) id,
  JAX_PTX_SPECIALS(X)
#undef X
      kCount
};

bool FindSpecial(std::string_view name, Special* special);
unsigned Bits(Special special);

}  // namespace jax_ptx::ptx
