// The instruction forms that are decoded, as data. The syntax of a row is explained in program.h.
#include <unordered_map>

#include "ptx/program.h"

namespace jax_ptx::ptx {
namespace {

struct Set {
  std::string_view name, types;
};

constexpr Set kSets[] = {
    {"$int", "u16|u32|u64|s16|s32|s64"},
    {"$int32", "u32|u64|s32|s64"},
    {"$bits", "b16|b32|b64"},
    {"$half", "f16|f16x2|bf16|bf16x2"},
    {"$value", "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"},
    {"$memory", "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64|b128"},
    {"$number", "u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f32|f64"},
    {"$compared", "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64|f16|f16x2|bf16|bf16x2"},
    {"$round", "rn|rz|rm|rp"},
    {"$compare", "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan"},
    {"$space", "global|shared::cta|shared::cluster|shared|local|const"},
    {"$order", "weak|volatile|relaxed|acquire|release|acq_rel|mmio|sc"},
    {"$scope", "cta|cluster|gpu|sys"},
    {"$cache", "ca|cg|cs|lu|cv|wb|wt"},
    {"$evict1",
     "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"},
    {"$evict2", "L2::evict_normal|L2::evict_first|L2::evict_last"},
    {"$policy", "L2::evict_normal|L2::evict_first|L2::evict_last|L2::evict_unchanged"},
    {"$prefetch", "L2::64B|L2::128B|L2::256B"},
    {"$anyshared", "shared::cta|shared::cluster|shared"},
};

constexpr Form kForms[] = {
    // Integer and float arithmetic (ISA 9.7.1, 9.7.3 to 9.7.5).
    {"add", Op::kAdd, "$int", ">T T T"},
    {"add", Op::kAdd, "u16x2|s16x2", ">T T T"},
    {"add", Op::kAdd, "sat s32", ">T T T"},
    {"add", Op::kAdd, "$round? ftz? sat? f32", ">T T T"},
    {"add", Op::kAdd, "$round? f64", ">T T T"},
    {"add", Op::kAdd, "$round? ftz? f32x2", ">T T T"},
    {"add", Op::kAdd, "rn? ftz? sat? f16|f16x2", ">T T T"},
    {"add", Op::kAdd, "rn? bf16|bf16x2", ">T T T"},
    {"add", Op::kAddc, "cc $int32", ">T T T"},
    {"addc", Op::kAddc, "cc? $int32", ">T T T"},
    {"sub", Op::kSub, "$int", ">T T T"},
    {"sub", Op::kSub, "sat s32", ">T T T"},
    {"sub", Op::kSub, "$round? ftz? sat? f32", ">T T T"},
    {"sub", Op::kSub, "$round? f64", ">T T T"},
    {"sub", Op::kSub, "$round? ftz? f32x2", ">T T T"},
    {"sub", Op::kSub, "rn? ftz? sat? f16|f16x2", ">T T T"},
    {"sub", Op::kSub, "rn? bf16|bf16x2", ">T T T"},
    {"sub", Op::kSubc, "cc $int32", ">T T T"},
    {"subc", Op::kSubc, "cc? $int32", ">T T T"},
    {"mul", Op::kMul, "hi|lo $int", ">T T T"},
    {"mul", Op::kMul, "wide u16|u32|s16|s32", ">W T T"},
    {"mul", Op::kMul, "$round? ftz? sat? f32", ">T T T"},
    {"mul", Op::kMul, "$round? f64", ">T T T"},
    {"mul", Op::kMul, "$round? ftz? f32x2", ">T T T"},
    {"mul", Op::kMul, "rn? ftz? sat? f16|f16x2", ">T T T"},
    {"mul", Op::kMul, "rn? bf16|bf16x2", ">T T T"},
    {"mul24", Op::kMul24, "hi|lo u32|s32", ">T T T"},
    {"mad", Op::kMad, "hi|lo $int", ">T T T T"},
    {"mad", Op::kMad, "hi sat s32", ">T T T T"},
    {"mad", Op::kMad, "wide u16|u32|s16|s32", ">W T T W"},
    {"mad", Op::kFma, "$round ftz? sat? f32", ">T T T T"},
    {"mad", Op::kFma, "$round f64", ">T T T T"},
    {"mad", Op::kAddc, "hi|lo cc $int32", ">T T T T"},
    {"madc", Op::kAddc, "hi|lo cc? $int32", ">T T T T"},
    {"mad24", Op::kMad24, "hi|lo u32|s32", ">T T T T"},
    {"mad24", Op::kMad24, "hi sat s32", ">T T T T"},
    {"fma", Op::kFma, "$round ftz? sat? f32", ">T T T T"},
    {"fma", Op::kFma, "$round f64", ">T T T T"},
    {"fma", Op::kFma, "$round ftz? f32x2", ">T T T T"},
    {"fma", Op::kFma, "rn ftz? sat? relu? f16|f16x2", ">T T T T"},
    {"fma", Op::kFma, "rn relu? bf16|bf16x2", ">T T T T"},
    {"sad", Op::kSad, "$int", ">T T T T"},
    {"div", Op::kDiv, "$int", ">T T T"},
    {"div", Op::kDiv, "approx|full ftz? f32", ">T T T"},
    {"div", Op::kDiv, "$round ftz? f32", ">T T T"},
    {"div", Op::kDiv, "$round f64", ">T T T"},
    {"rem", Op::kRem, "$int", ">T T T"},
    {"abs", Op::kAbs, "s16|s32|s64", ">T T"},
    {"abs", Op::kAbs, "ftz? f32|f16|f16x2", ">T T"},
    {"abs", Op::kAbs, "f64|bf16|bf16x2", ">T T"},
    {"neg", Op::kNeg, "s16|s32|s64", ">T T"},
    {"neg", Op::kNeg, "ftz? f32|f16|f16x2", ">T T"},
    {"neg", Op::kNeg, "f64|bf16|bf16x2", ">T T"},
    {"min", Op::kMin, "$int", ">T T T"},
    {"min", Op::kMin, "relu? s32|s16x2|u16x2", ">T T T"},
    {"min", Op::kMin, "ftz? NaN? f32|$half", ">T T T"},
    {"min", Op::kMin, "ftz? NaN? xorsign abs f32|$half", ">T T T"},
    {"min", Op::kMin, "f64", ">T T T"},
    {"max", Op::kMax, "$int", ">T T T"},
    {"max", Op::kMax, "relu? s32|s16x2|u16x2", ">T T T"},
    {"max", Op::kMax, "ftz? NaN? f32|$half", ">T T T"},
    {"max", Op::kMax, "ftz? NaN? xorsign abs f32|$half", ">T T T"},
    {"max", Op::kMax, "f64", ">T T T"},
    {"rcp", Op::kRcp, "approx ftz? f32|f64", ">T T"},
    {"rcp", Op::kRcp, "$round ftz? f32", ">T T"},
    {"rcp", Op::kRcp, "$round f64", ">T T"},
    {"sqrt", Op::kSqrt, "approx ftz? f32", ">T T"},
    {"sqrt", Op::kSqrt, "$round ftz? f32", ">T T"},
    {"sqrt", Op::kSqrt, "$round f64", ">T T"},
    {"rsqrt", Op::kRsqrt, "approx ftz? f32|f64", ">T T"},
    {"sin", Op::kSin, "approx ftz? f32", ">T T"},
    {"cos", Op::kCos, "approx ftz? f32", ">T T"},
    {"lg2", Op::kLg2, "approx ftz? f32", ">T T"},
    {"ex2", Op::kEx2, "approx ftz? f32|$half", ">T T"},
    {"tanh", Op::kTanh, "approx f32|$half", ">T T"},
    {"copysign", Op::kCopysign, "f32|f64", ">T T T"},
    {"testp", Op::kTestp, "finite|infinite|number|notanumber|normal|subnormal f32|f64", ">p T"},
    {"popc", Op::kPopc, "b32|b64", ">u32 T"},
    {"clz", Op::kClz, "b32|b64", ">u32 T"},
    {"bfind", Op::kBfind, "shiftamt? $int32", ">u32 T"},
    {"brev", Op::kBrev, "b32|b64", ">T T"},
    {"bfe", Op::kBfe, "$int32", ">T T u32 u32"},
    {"bfi", Op::kBfi, "b32|b64", ">T T T u32 u32"},
    {"bmsk", Op::kBmsk, "clamp|wrap b32", ">u32 u32 u32"},
    {"szext", Op::kSzext, "clamp|wrap u32|s32", ">T T u32"},
    {"fns", Op::kFns, "b32", ">T b32 b32 b32"},
    {"dp2a", Op::kDp2a, "lo|hi u32|s32 u32|s32", ">s32 T U s32"},
    {"dp4a", Op::kDp4a, "u32|s32 u32|s32", ">s32 T U s32"},
    // Comparison and selection (9.7.6, 9.7.7).
    {"setp", Op::kSetp, "$compare ftz? $compared", ">p|p T T"},
    {"setp", Op::kSetp, "$compare and|or|xor ftz? $compared", ">p|p T T p"},
    {"set", Op::kSet, "$compare ftz? u16|u32|s16|s32|f16|bf16|f32 $compared", ">T U U"},
    {"set", Op::kSet, "$compare and|or|xor ftz? u16|u32|s16|s32|f16|bf16|f32 $compared",
     ">T U U p"},
    {"selp", Op::kSelp, "$value", ">T T T p"},
    {"slct", Op::kSlct, "ftz? $value s32|f32", ">T T T U"},
    // Logic and shifts (9.7.8).
    {"and", Op::kAnd, "$bits", ">T T T"},
    {"and", Op::kAnd, "pred", ">p p p"},
    {"or", Op::kOr, "$bits", ">T T T"},
    {"or", Op::kOr, "pred", ">p p p"},
    {"xor", Op::kXor, "$bits", ">T T T"},
    {"xor", Op::kXor, "pred", ">p p p"},
    {"not", Op::kNot, "$bits", ">T T"},
    {"not", Op::kNot, "pred", ">p p"},
    {"cnot", Op::kCnot, "$bits", ">T T"},
    {"lop3", Op::kLop3, "b32", ">T T T T n"},
    {"lop3", Op::kLop3, "or|and b32", ">T||p T T T n p"},
    {"shl", Op::kShl, "$bits", ">T T u32"},
    {"shr", Op::kShr, "b16|b32|b64|$int", ">T T u32"},
    {"shf", Op::kShf, "l|r clamp|wrap b32", ">T T T u32"},
    {"prmt", Op::kPrmt, "b32", ">T T T b32"},
    {"prmt", Op::kPrmt, "b32 f4e|b4e|rc8|ecl|ecr|rc16", ">T T T b32"},
    // Data movement and conversion (9.7.9).
    {"mov", Op::kMov, "pred", ">p p"},
    {"mov", Op::kMov, "$value|b128", ">T* T*"},
    {"cvt", Op::kCvt, "rn|rz|rm|rp|rni|rzi|rmi|rpi? ftz? sat? $number $number", ">R S"},
    {"cvt", Op::kCvt, "rn|rz relu? satfinite? f16|bf16 f32", ">R S"},
    {"cvt", Op::kCvt, "rn|rz|rna relu? satfinite? tf32 f32", ">T U"},
    {"cvt", Op::kCvt, "rn|rz relu? satfinite? f16x2|bf16x2 f32", ">R S S"},
    {"cvt", Op::kCvt, "rn satfinite relu? e4m3x2|e5m2x2 f32", ">T U U"},
    {"cvt", Op::kCvt, "rn satfinite relu? e4m3x2|e5m2x2 f16x2", ">T U"},
    {"cvt", Op::kCvt, "rn relu? f16x2 e4m3x2|e5m2x2", ">T U"},
    {"cvta", Op::kCvta, "to? global|shared::cta|shared::cluster|shared|local|const|param u32|u64",
     ">T T"},
    {"isspacep", Op::kIsspacep, "global|shared::cta|shared::cluster|shared|local|const|param",
     ">p u64"},
    {"isspacep", Op::kIsspacep, "global|shared::cta|shared::cluster|shared|local|const|param",
     ">p u32"},
    {"ld", Op::kLd,
     "weak|volatile|relaxed|acquire|mmio? $scope? $space? $cache? nc? $evict1? $evict2? "
     "L2::cache_hint? "
     "$prefetch? v2|v4|v8? $memory",
     ">R* m b64?"},
    {"ld", Op::kLd,
     "weak? global $evict1? $evict2? nc L2::cache_hint? $prefetch? v2|v4|v8? $memory",
     ">R* m b64?"},
    {"ld", Op::kLd, "mmio relaxed $scope $space? $memory", ">R* m"},
    {"ld", Op::kLd, "weak? param|param::entry|param::func $cache? v2|v4? $memory", ">R* m"},
    {"ldu", Op::kLd, "global? v2|v4? $memory", ">R* m"},
    {"st", Op::kSt,
     "weak|volatile|relaxed|release|mmio? $scope? $space? $cache? $evict1? $evict2? "
     "L2::cache_hint? "
     "v2|v4|v8? $memory",
     "m R* b64?"},
    {"st", Op::kSt, "weak? param|param::func v2|v4? $memory", "m R*"},
    {"st", Op::kSt, "mmio relaxed $scope $space? $memory", "m R*"},
    {"st", Op::kStAsync,
     "async weak? shared::cluster? mbarrier::complete_tx::bytes v2|v4? "
     "b32|b64|u32|u64|s32|s64|f32|f64",
     "m T* m"},
    {"prefetch", Op::kNop, "global|local? L1|L2", "m"},
    {"prefetch", Op::kNop, "global $evict2", "m"},
    {"prefetchu", Op::kNop, "L1", "m"},
    {"applypriority", Op::kNop, "global? $evict2", "m n"},
    {"discard", Op::kNop, "global? L2", "m n"},
    {"createpolicy", Op::kCreatepolicy, "fractional $policy $policy? b64", ">T f32?"},
    {"mapa", Op::kMapa, "shared::cluster? u32|u64", ">T T u32"},
    {"getctarank", Op::kGetctarank, "shared::cluster? u32|u64", ">u32 T"},
    {"ldmatrix", Op::kLdmatrix, "sync aligned m8n8 x1 trans? $anyshared? b16", ">{1 b32} m"},
    {"ldmatrix", Op::kLdmatrix, "sync aligned m8n8 x2 trans? $anyshared? b16", ">{2 b32} m"},
    {"ldmatrix", Op::kLdmatrix, "sync aligned m8n8 x4 trans? $anyshared? b16", ">{4 b32} m"},
    {"movmatrix", Op::kMovmatrix, "sync aligned m8n8 trans b16", ">b32 b32!"},
    {"stmatrix", Op::kStmatrix, "sync aligned m8n8 x1 trans? $anyshared? b16", "m {1 b32}"},
    {"stmatrix", Op::kStmatrix, "sync aligned m8n8 x2 trans? $anyshared? b16", "m {2 b32}"},
    {"stmatrix", Op::kStmatrix, "sync aligned m8n8 x4 trans? $anyshared? b16", "m {4 b32}"},
    {"mma", Op::kMma, "sync aligned m16n8k16 row col f32 f16|bf16 f16|bf16 f32",
     ">{4 f32} {4 b32} {2 b32} {4 f32}"},
    {"mma", Op::kMma, "sync aligned m16n8k16 row col f16 f16 f16 f16",
     ">{2 b32} {4 b32} {2 b32} {2 b32}"},
    {"mma", Op::kMma, "sync aligned m16n8k8 row col f16 f16 f16 f16",
     ">{2 b32} {2 b32} {1 b32} {2 b32}"},
    {"mma", Op::kMma, "sync aligned m16n8k8 row col f32 f16|bf16 f16|bf16 f32",
     ">{4 f32} {2 b32} {1 b32} {4 f32}"},
    {"mma", Op::kMma, "sync aligned m16n8k8 row col f32 tf32 tf32 f32",
     ">{4 f32} {4 b32} {2 b32} {4 f32}"},
    // Asynchronous copies (9.7.9.25).
    {"cp", Op::kCpAsync, "async ca|cg $anyshared global $prefetch?", "m m n u32?"},
    {"cp", Op::kCpAsync, "async ca|cg $anyshared global $prefetch?", "m m n p"},
    {"cp", Op::kCpAsync, "async ca|cg $anyshared global L2::cache_hint $prefetch?", "m m n b64"},
    {"cp", Op::kCpAsync, "async ca|cg $anyshared global L2::cache_hint $prefetch?",
     "m m n u32 b64"},
    {"cp", Op::kCpAsync, "async ca|cg $anyshared global L2::cache_hint $prefetch?", "m m n p b64"},
    {"cp", Op::kCpAsyncGroup, "async commit_group", ""},
    {"cp", Op::kCpAsyncGroup, "async wait_group", "n"},
    {"cp", Op::kCpAsyncGroup, "async wait_all", ""},
    {"cp", Op::kCpAsyncMbarrier, "async mbarrier arrive noinc? $anyshared? b64", "m"},
    {"cp", Op::kCpAsyncBulk,
     "async bulk shared::cluster|shared::cta global mbarrier::complete_tx::bytes L2::cache_hint?",
     "m m u32 m b64?"},
    {"cp", Op::kCpAsyncBulk,
     "async bulk shared::cluster global mbarrier::complete_tx::bytes multicast::cluster "
     "L2::cache_hint?",
     "m m u32 m u16 b64?"},
    {"cp", Op::kCpAsyncBulk, "async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes",
     "m m u32 m"},
    {"cp", Op::kCpAsyncBulk, "async bulk global shared::cta bulk_group L2::cache_hint?",
     "m m u32 b64?"},
    {"cp", Op::kNop, "async bulk prefetch L2 global L2::cache_hint?", "m u32 b64?"},
    {"cp", Op::kCpAsyncBulkGroup, "async bulk commit_group", ""},
    {"cp", Op::kCpAsyncBulkGroup, "async bulk wait_group read?", "n"},
    // Atomics (9.7.13.5 to 9.7.13.8).
    {"atom", Op::kAtom,
     "relaxed|acquire|release|acq_rel? $scope? global|$anyshared? exch L2::cache_hint? b32|b64",
     ">T m T b64?"},
    {"atom", Op::kAtom,
     "relaxed|acquire|release|acq_rel? $scope? global|$anyshared? cas L2::cache_hint? b16|b32|b64",
     ">T m T T b64?"},
    {"atom", Op::kAtom,
     "relaxed|acquire|release|acq_rel? $scope? global|$anyshared? and|or|xor L2::cache_hint? "
     "b32|b64",
     ">T m T b64?"},
    {"atom", Op::kAtom,
     "relaxed|acquire|release|acq_rel? $scope? global|$anyshared? add L2::cache_hint? "
     "u32|s32|u64|f32|f64",
     ">T m T b64?"},
    {"atom", Op::kAtom,
     "relaxed|acquire|release|acq_rel? $scope? global|$anyshared? add noftz L2::cache_hint? $half",
     ">T m T b64?"},
    {"atom", Op::kAtom,
     "relaxed|acquire|release|acq_rel? $scope? global|$anyshared? inc|dec L2::cache_hint? u32",
     ">T m T b64?"},
    {"atom", Op::kAtom,
     "relaxed|acquire|release|acq_rel? $scope? global|$anyshared? min|max L2::cache_hint? "
     "u32|s32|u64|s64",
     ">T m T b64?"},
    {"red", Op::kRed,
     "relaxed|release? $scope? global|$anyshared? and|or|xor L2::cache_hint? b32|b64", "m T b64?"},
    {"red", Op::kRed,
     "relaxed|release? $scope? global|$anyshared? add L2::cache_hint? u32|s32|u64|f32|f64",
     "m T b64?"},
    {"red", Op::kRed, "relaxed|release? $scope? global|$anyshared? add noftz L2::cache_hint? $half",
     "m T b64?"},
    {"red", Op::kRed, "relaxed|release? $scope? global|$anyshared? inc|dec L2::cache_hint? u32",
     "m T b64?"},
    {"red", Op::kRed,
     "relaxed|release? $scope? global|$anyshared? min|max L2::cache_hint? u32|s32|u64|s64",
     "m T b64?"},
    // Exchange between lanes (9.7.9.5 and on).
    {"shfl", Op::kShfl, "sync up|down|bfly|idx b32", ">T|p T u32 u32 u32"},
    {"vote", Op::kVote, "sync any|all|uni pred", ">p p u32"},
    {"vote", Op::kVote, "sync ballot b32", ">T p u32"},
    {"match", Op::kMatch, "any sync b32|b64", ">u32 T u32"},
    {"match", Op::kMatch, "all sync b32|b64", ">u32|p T u32"},
    {"redux", Op::kRedux, "sync add|min|max u32|s32", ">T T u32"},
    {"redux", Op::kRedux, "sync and|or|xor b32", ">u32 u32 u32"},
    {"redux", Op::kRedux, "sync min|max abs? NaN? f32", ">T T u32"},
    {"activemask", Op::kActivemask, "b32", ">T"},
    {"elect", Op::kElect, "sync", ">b32||p u32"},
    // Barriers and fences (9.7.13).
    {"bar", Op::kBarWarp, "warp sync", "u32"},
    {"bar", Op::kBar, "cta? sync", "u32 u32?"},
    {"bar", Op::kBar, "cta? arrive", "u32 u32"},
    {"bar", Op::kBar, "cta? red popc u32", ">T u32 p"},
    {"bar", Op::kBar, "cta? red popc u32", ">T u32 u32 p"},
    {"bar", Op::kBar, "cta? red and|or pred", ">p u32 p"},
    {"bar", Op::kBar, "cta? red and|or pred", ">p u32 u32 p"},
    {"barrier", Op::kBarrierCluster, "cluster arrive release|relaxed? aligned?", ""},
    {"barrier", Op::kBarrierCluster, "cluster wait acquire? aligned?", ""},
    {"barrier", Op::kBar, "cta? sync aligned?", "u32 u32?"},
    {"barrier", Op::kBar, "cta? arrive aligned?", "u32 u32"},
    {"barrier", Op::kBar, "cta? red popc aligned? u32", ">T u32 p"},
    {"barrier", Op::kBar, "cta? red popc aligned? u32", ">T u32 u32 p"},
    {"barrier", Op::kBar, "cta? red and|or aligned? pred", ">p u32 p"},
    {"barrier", Op::kBar, "cta? red and|or aligned? pred", ">p u32 u32 p"},
    {"membar", Op::kNop, "cta|gl|sys", ""},
    {"fence", Op::kNop, "sc|acq_rel|acquire|release? $scope", ""},
    {"fence", Op::kNop, "mbarrier_init release cluster", ""},
    {"fence", Op::kNop, "proxy alias|async", ""},
    {"fence", Op::kNop, "proxy async global|shared::cta|shared::cluster", ""},
    {"griddepcontrol", Op::kNop, "launch_dependents|wait", ""},
    {"membar", Op::kNop, "proxy alias", ""},
    {"setmaxnreg", Op::kNop, "inc|dec sync aligned u32", "n"},
    {"pmevent", Op::kNop, "", "n"},
    {"nanosleep", Op::kNop, "u32", "T"},
    {"mbarrier", Op::kMbarrier, "init $anyshared? b64", "m u32"},
    {"mbarrier", Op::kMbarrier, "inval $anyshared? b64", "m"},
    {"mbarrier", Op::kMbarrier, "expect_tx relaxed? $scope? $anyshared? b64", "m u32"},
    {"mbarrier", Op::kMbarrier, "complete_tx relaxed? $scope? $anyshared? b64", "m u32"},
    {"mbarrier", Op::kMbarrier, "pending_count b64", ">u32 u64!"},
    {"mbarrier", Op::kMbarrierArrive,
     "arrive|arrive_drop release|relaxed? $scope? shared|shared::cta? b64", ">u64 m u32?"},
    {"mbarrier", Op::kMbarrierArrive,
     "arrive|arrive_drop release|relaxed? $scope? shared::cluster b64", ">_ m u32?"},
    {"mbarrier", Op::kMbarrierArrive,
     "arrive|arrive_drop expect_tx release|relaxed? $scope? shared|shared::cta? b64", ">u64 m u32"},
    {"mbarrier", Op::kMbarrierArrive,
     "arrive|arrive_drop expect_tx release|relaxed? $scope? shared::cluster b64", ">_ m u32"},
    {"mbarrier", Op::kMbarrierArrive,
     "arrive|arrive_drop noComplete release? cta? shared|shared::cta? b64", ">u64 m u32"},
    {"mbarrier", Op::kMbarrierWait, "test_wait acquire|relaxed? $scope? shared|shared::cta? b64",
     ">p m u64!"},
    {"mbarrier", Op::kMbarrierWait,
     "test_wait parity acquire|relaxed? $scope? shared|shared::cta? b64", ">p m u32"},
    {"mbarrier", Op::kMbarrierWait, "try_wait acquire|relaxed? $scope? shared|shared::cta? b64",
     ">p m u64! u32?"},
    {"mbarrier", Op::kMbarrierWait,
     "try_wait parity acquire|relaxed? $scope? shared|shared::cta? b64", ">p m u32 u32?"},
    // Control flow (9.7.12).
    {"bra", Op::kBra, "uni?", "l"},
    {"call", Op::kCall, "uni?", ""},
    {"brx", Op::kBrx, "idx uni?", "u32"},
    {"ret", Op::kRet, "uni?", ""},
    {"exit", Op::kExit, "", ""},
    {"trap", Op::kTrap, "", ""},
    {"brkpt", Op::kTrap, "", ""},
};

bool SlotAccepts(std::string_view slot, std::string_view modifier) {
  while (!slot.empty()) {
    std::string_view choice = TakeWord(&slot, '|');
    if (choice == modifier) return true;
    if (choice.empty() || choice[0] != '$') continue;
    for (const Set& set : kSets) {
      if (set.name == choice && SlotAccepts(set.types, modifier)) return true;
    }
  }
  return false;
}

}  // namespace

std::string_view TakeWord(std::string_view* list, char separator) {
  size_t end = list->find(separator);
  std::string_view word = list->substr(0, end);
  *list = end == std::string_view::npos ? std::string_view() : list->substr(end + 1);
  return word;
}

// Slots are taken greedily: no form has an optional slot whose words also start the next one.
bool Matches(const Form& form, const std::vector<std::string_view>& modifiers) {
  std::string_view slots = form.modifiers;
  size_t next = 0;
  while (!slots.empty()) {
    std::string_view slot = TakeWord(&slots, ' ');
    bool optional = slot.back() == '?';
    if (optional) slot.remove_suffix(1);
    if (next < modifiers.size() && SlotAccepts(slot, modifiers[next])) {
      ++next;
    } else if (!optional) {
      return false;
    }
  }
  return next == modifiers.size();
}

FormRange FindForms(std::string_view opcode) {
  // Rows of one opcode stand together, so a range is enough.
  static const std::unordered_map<std::string_view, FormRange> index = [] {
    std::unordered_map<std::string_view, FormRange> ranges;
    for (const Form& form : kForms) {
      ranges.emplace(form.opcode, FormRange{&form, &form}).first->second.last = &form + 1;
    }
    return ranges;
  }();
  auto found = index.find(opcode);
  return found == index.end() ? FormRange{nullptr, nullptr} : found->second;
}

}  // namespace jax_ptx::ptx
