#include "emulator/undefined.h"

#include <string>

#include "emulator/compile.h"
#include "emulator/handlers.h"
#include "emulator/lanes.h"
#include "emulator/memory.h"
#include "emulator/report.h"

namespace jax_ptx::emulator {
namespace {

using ptx::Instruction;
using ptx::Mod;
using ptx::Op;
using ptx::Space;
using ptx::Type;

constexpr uint64_t kAllBits = ~uint64_t{0};

using Values = std::array<UndefinedValue, kLanes>;

// The registers that are a step's arguments, see Step.
class Arguments {
 public:
  explicit Arguments(const Step& s) : list_(s.writes + s.write_count) {}
  uint32_t destinations() const { return list_[0]; }
  uint32_t count() const { return list_[1]; }
  uint32_t number(uint32_t arg) const {
    uint32_t number = list_[2 + arg];
    return number == kNone ? kNone : number & ~kWideArgument;
  }
  bool is_wide(uint32_t arg) const { return (list_[2 + arg] & kWideArgument) != 0; }

 private:
  const uint32_t* list_;
};

uint32_t UndefinedLanes(const Warp& w, uint32_t number, uint32_t mask) {
  return number == kNone ? 0 : mask & ~w.defined[number];
}

// A register that nothing has written is the origin of its own value, from its first read on.
UndefinedValue ValueOf(Warp& w, const Step& s, uint32_t number, int lane) {
  if (UndefinedLanes(w, number, 1u << lane) == 0) return {};
  UndefinedValue& value = w.undefined[number][lane];
  if (value.bits == 0) value = {kAllBits, number, s.source->line};
  return value;
}

void Set(Warp& w, uint32_t number, uint32_t mask, const Values& values) {
  for (; mask != 0; mask &= mask - 1) {
    int lane = __builtin_ctz(mask);
    w.defined[number] |= 1u << lane;
    if (values[lane].bits == 0) continue;
    w.defined[number] &= ~(1u << lane);
    w.undefined[number][lane] = values[lane];
  }
}

void ReportUse(Warp& w, const Step& s, int lane, const std::string& use, uint32_t number) {
  const auto& names = w.cta->cluster->launch->program->names;
  UndefinedValue value = ValueOf(w, s, number, lane);
  std::string text = use + (names[number].empty() ? "a value" : std::string(names[number]));
  text += value.origin == number
              ? ", which this thread has never written"
              : ", which comes from " + std::string(names[value.origin]) + ", read at PTX line " +
                    std::to_string(value.line) + " before it was written";
  Report(w, s, lane, text, Kind::kUninitialised);
}

// Steps that compile.cc adds for a 64-bit register with a narrower value.
bool IsConversion(const Step& s) {
  return s.run == Narrow || s.run == Widen || s.run == WidenSigned;
}

// Of the lanes in which the argument is not defined, those in which that decides something.
uint32_t DecisiveLanes(Warp& w, const Step& s, uint32_t arg, uint32_t number, uint32_t lanes) {
  const Instruction& i = *s.source;
  if (IsConversion(s)) return 0;
  switch (i.op) {
    case Op::kSt: {
      if (arg == 0 || arg > i.vector) return lanes;  // the address, a cache policy
      if (s.space == Space::kLocal || s.space == Space::kParam) return 0;
      uint64_t stored = kAllBits >> (64 - ptx::Bits(i.type[0]));
      return CollectLanes(lanes, [&](int l) {
        bool is_local = s.space == Space::kNone && AddressOf(w, s, 0, l) >> kSlotBits == kLocalSlot;
        return !is_local && (ValueOf(w, s, number, l).bits & stored) != 0;
      });
    }
    case Op::kShfl:
      return arg >= 3 ? lanes : 0;  // which lane, and the member mask
    case Op::kRedux:
      return arg >= 2 ? lanes : 0;
    case Op::kAtom:
    case Op::kBar:
    case Op::kBarWarp:
    case Op::kBarrierCluster:
    case Op::kBrx:
    case Op::kCpAsync:
    case Op::kCpAsyncBulk:
    case Op::kCpAsyncBulkGroup:
    case Op::kCpAsyncGroup:
    case Op::kCpAsyncMbarrier:
    case Op::kCpReduceBulk:
    case Op::kElect:
    case Op::kFence:
    case Op::kLd:
    case Op::kLdmatrix:
    case Op::kMatch:
    case Op::kMbarrier:
    case Op::kMbarrierArrive:
    case Op::kMbarrierWait:
    case Op::kRed:
    case Op::kRedAsync:
    case Op::kStAsync:
    case Op::kStBulk:
    case Op::kStmatrix:
    case Op::kVote:
    case Op::kWmmaLoad:
    case Op::kWmmaStore:
      return lanes;
    default:
      return 0;
  }
}

std::string UseOf(const Step& s, uint32_t arg) {
  Op op = s.source->op;
  if (op == Op::kLd || (op == Op::kSt && arg == 0)) return "has the address ";
  return op == Op::kSt ? "stores " : "reads ";
}

// False: a fault has been recorded.
bool CheckUses(Warp& w, const Step& s, uint32_t mask) {
  Arguments arguments(s);
  for (uint32_t arg = arguments.destinations(); arg < arguments.count(); ++arg) {
    uint32_t number = arguments.number(arg), lanes = UndefinedLanes(w, number, mask);
    if (lanes != 0) lanes = DecisiveLanes(w, s, arg, number, lanes);
    if (lanes == 0) continue;
    ReportUse(w, s, __builtin_ctz(lanes), UseOf(s, arg), number);
    return false;
  }
  return true;
}

// Instructions that move bits as they are: the arguments from `first` to before `last`; those
// behind them say where to.
struct Moved {
  uint32_t first = 0, last = 0;
  bool is_choice = false;  // the result is one of the arguments, of one of the lanes
};

Moved MovedBy(const Step& s, const Arguments& arguments) {
  const Instruction& i = *s.source;
  if (IsConversion(s)) return {1, 2};
  bool is_integer = !ptx::IsFloat(i.type[0]) && !ptx::IsFloat(i.type[1]);
  switch (i.op) {
    case Op::kMov:
      if (i.type[0] == Type::kPred) return {};
      return {arguments.destinations(), arguments.count()};
    case Op::kCvt:
      return is_integer && !i.Has(Mod::kSat) && !i.Has(Mod::kPack) ? Moved{1, 2} : Moved{};
    case Op::kBfe:
    case Op::kShl:
    case Op::kShr:
      return {1, 2};
    case Op::kBfi:
    case Op::kPrmt:
    case Op::kShf:
      return {1, 3};
    case Op::kSelp:
    case Op::kSlct:
      return {1, 3, true};
    case Op::kShfl:
      return {2, 3, true};
    default:
      return {};
  }
}

// Runs the step with other words in place of what it moves: of argument `arg` in a lane,
// word(arg, lane). Calls result(destination, lane, word) for what comes out.
template <class Word, class Result>
Outcome RunOnWords(Warp& w, const Step& s, uint32_t mask, const Moved& moved, Word word,
                   Result result) {
  const Program& program = *w.cta->cluster->launch->program;
  Arguments arguments(s);
  std::vector<uint32_t> args(s.args, s.args + arguments.count());
  uint32_t slot = program.bits;
  auto take = [&](uint32_t arg) {
    args[arg] = slot;
    slot += kLanes * 8;
  };
  for (uint32_t arg = moved.first; arg < moved.last; ++arg) {
    take(arg);
    bool is_register = arguments.number(arg) != kNone;
    for (int l = 0; l < kLanes; ++l) {
      uint64_t value = is_register && (mask >> l & 1) != 0 ? word(arg, l) : 0;
      if (arguments.is_wide(arg)) {
        w.Out<uint64_t>(args[arg])[l] = value;
      } else {
        w.Out<uint32_t>(args[arg])[l] = static_cast<uint32_t>(value);
      }
    }
  }
  bool is_pair = s.source->op == Op::kShfl;  // with a predicate, which is always defined
  uint32_t destinations = is_pair ? 1 : arguments.destinations();
  for (uint32_t arg = 0; arg < destinations; ++arg) take(arg);
  if (is_pair) args[1] = program.predicate_count - 3;
  Step step = s;
  step.args = args.data();
  if (Outcome outcome = s.run(w, step, mask); outcome != Outcome::kNext) return outcome;
  for (uint32_t arg = 0; arg < destinations; ++arg) {
    if (arguments.number(arg) == kNone) continue;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      int l = __builtin_ctz(rest);
      result(
          arg, l,
          arguments.is_wide(arg) ? w.Out<uint64_t>(args[arg])[l] : w.Out<uint32_t>(args[arg])[l]);
    }
  }
  return Outcome::kNext;
}

// What is undefined of each destination when the undefined bits move as the instruction says.
Outcome MoveBits(Warp& w, const Step& s, uint32_t mask, const Moved& moved,
                 std::vector<Values>* results) {
  Arguments arguments(s);
  results->resize(arguments.destinations());
  auto value_of = [&](uint32_t arg, int l) { return ValueOf(w, s, arguments.number(arg), l); };
  auto bits = [&](uint32_t arg, int l) { return value_of(arg, l).bits; };
  auto keep = [&](uint32_t destination, int l, uint64_t word) {
    UndefinedValue& result = (*results)[destination][l];
    for (uint32_t arg = arguments.count(); arg-- > moved.first;) {
      UndefinedValue value = value_of(arg, l);
      if (value.bits != 0) result = value;
      if (value.bits != 0 && arg >= moved.last) word = kAllBits;  // where to is not known
    }
    result.bits = word;
  };
  Outcome outcome = RunOnWords(w, s, mask, moved, bits, keep);
  if (outcome != Outcome::kNext || !moved.is_choice) return outcome;
  // Again with places in place of bits, to know which value was chosen.
  auto place = [&](uint32_t arg, int l) { return arg * kLanes + static_cast<uint32_t>(l); };
  auto name = [&](uint32_t destination, int l, uint64_t word) {
    UndefinedValue& result = (*results)[destination][l];
    auto from = static_cast<uint32_t>(word) / kLanes;
    if (from < moved.first) return;  // a constant
    UndefinedValue value = value_of(from, static_cast<int>(word % kLanes));
    if (value.bits != 0) result = {result.bits, value.origin, value.line};
  };
  return RunOnWords(w, s, mask, moved, place, name);
}

// Whether a bit of the result depends on the same bit of the operands alone.
bool IsBitwise(Op op) {
  return op == Op::kAnd || op == Op::kOr || op == Op::kXor || op == Op::kNot || op == Op::kLop3;
}

// The bits that a defined operand decides, whatever the other: 0 of an `and`, 1 of an `or`.
uint64_t DecidedBits(Warp& w, const Step& s, uint32_t arg, int lane) {
  uint32_t word = s.args[arg];
  uint64_t value = s.source->type[0] == Type::kPred ? (w.Predicate(word) >> lane & 1 ? kAllBits : 0)
                   : ptx::Bits(s.source->type[0]) == 64 ? w.In<uint64_t>(word)[lane]
                                                        : w.In<uint32_t>(word)[lane];
  bool is_or = s.source->op == Op::kOr || s.source->Has(Mod::kOr);
  return (is_or ? value : ~value) & ~ValueOf(w, s, Arguments(s).number(arg), lane).bits;
}

// What is undefined of an instruction's result; `bits` are those of any operand.
uint64_t ResultBits(Warp& w, const Step& s, int lane, uint64_t bits) {
  const Instruction& i = *s.source;
  bool combines = i.Has(Mod::kAnd) || i.Has(Mod::kOr);
  if (IsBitwise(i.op)) bits &= kAllBits >> (64 - ptx::Bits(i.type[0]));
  if (i.op == Op::kAnd || i.op == Op::kOr)
    return bits & ~DecidedBits(w, s, 1, lane) & ~DecidedBits(w, s, 2, lane);
  if (i.op == Op::kXor && s.args[1] == s.args[2]) return 0;
  if (IsBitwise(i.op)) return bits;
  if (i.op == Op::kSetp && combines) {  // a comparison, and a predicate that may decide alone
    bool holds = w.Predicate(s.args[4]) >> lane & 1;
    bool is_defined = ValueOf(w, s, Arguments(s).number(4), lane).bits == 0;
    return is_defined && holds == i.Has(Mod::kOr) ? 0 : kAllBits;
  }
  bool is_packed = i.type[0] == Type::kF16x2 || i.type[0] == Type::kBF16x2 ||
                   i.type[0] == Type::kU16x2 || i.type[0] == Type::kS16x2;
  uint64_t low = is_packed ? 0xFFFF : i.type[0] == Type::kF32x2 ? 0xFFFFFFFF : kAllBits;
  if (i.op == Op::kCvt) {
    if (!is_packed || i.type[1] != Type::kF32) return kAllBits;
    bool high_is = ValueOf(w, s, Arguments(s).number(1), lane).bits != 0;
    bool low_is = ValueOf(w, s, Arguments(s).number(2), lane).bits != 0;
    return (high_is ? ~low : 0) | (low_is ? low : 0);
  }
  return ((bits & low) != 0 ? low : 0) | ((bits & ~low) != 0 ? ~low : 0);
}

// Whether a lane's result depends on the operands of all lanes.
bool MixesLanes(Op op) {
  return op == Op::kRedux || op == Op::kMma || op == Op::kWmmaMma || op == Op::kMovmatrix;
}

// What is undefined of the results of an instruction that computes them.
Values Computed(Warp& w, const Step& s, uint32_t mask) {
  Values values{};
  for (uint32_t k = 0; k < s.read_count; ++k) {
    for (uint32_t rest = UndefinedLanes(w, s.reads[k], mask); rest != 0; rest &= rest - 1) {
      int lane = __builtin_ctz(rest);
      UndefinedValue value = ValueOf(w, s, s.reads[k], lane);
      if (MixesLanes(s.source->op)) {
        value.bits = kAllBits;
        values.fill(value);
        return values;
      }
      value.bits |= values[lane].bits;
      if (values[lane].bits == 0) values[lane] = value;
      values[lane].bits = value.bits;
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    uint64_t bits = values[lane].bits;
    if (bits != 0) values[lane].bits = ResultBits(w, s, lane, bits);
  }
  return values;
}

}  // namespace

Outcome RunUndefined(Warp& w, const Step& s, uint32_t mask) {
  if (!CheckUses(w, s, mask)) return Outcome::kFault;
  Arguments arguments(s);
  Moved moved = MovedBy(s, arguments);
  bool is_move = moved.first != moved.last;
  std::vector<Values> results;
  if (is_move) {
    Outcome outcome = MoveBits(w, s, mask, moved, &results);
    if (outcome != Outcome::kNext) return outcome;
  } else {
    results.push_back(Computed(w, s, mask));
  }
  if (Outcome outcome = s.run(w, s, mask); outcome != Outcome::kNext) return outcome;
  for (uint32_t k = 0; k < s.write_count; ++k) {
    if (!is_move) Set(w, s.writes[k], mask, results[0]);
    if (is_move) w.defined[s.writes[k]] |= mask;
  }
  for (uint32_t arg = 0; is_move && arg < results.size(); ++arg) {
    uint32_t number = arguments.number(arg);
    if (number != kNone) Set(w, number, mask, results[arg]);
  }
  return Outcome::kMarked;
}

void ReportUndefinedGuard(Warp& w, const Step& s, uint32_t mask, uint32_t number) {
  ReportUse(w, s, __builtin_ctz(UndefinedLanes(w, number, mask)), "has the guard ", number);
}

}  // namespace jax_ptx::emulator
