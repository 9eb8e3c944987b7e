// A decoded PTX module: what the parser makes of the text, and all that the emulator reads.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/requirements.h"
#include "ptx/types.h"
#include "status.h"

namespace jax_ptx::ptx {

constexpr uint32_t kNone = 0xFFFFFFFF;

// What an instruction does; some opcodes of PTX are several of these, and the other way round.
enum class Op : uint8_t {
  kAbs,
  kActivemask,
  kAdd,
  kAddc,
  kAnd,
  kAtom,
  kBar,
  kBarWarp,
  kBarrierCluster,
  kBfe,
  kBfi,
  kBfind,
  kBmsk,
  kBra,
  kBrev,
  kBrx,
  kCall,
  kClz,
  kCnot,
  kCopysign,
  kCos,
  kCpAsync,
  kCpAsyncBulk,
  kCpAsyncBulkGroup,
  kCpAsyncGroup,
  kCpAsyncMbarrier,
  kCpReduceBulk,
  kCreatepolicy,
  kCvt,
  kCvta,
  kDiv,
  kDp2a,
  kDp4a,
  kElect,
  kEx2,
  kExit,
  kFence,
  kFma,
  kFns,
  kGetctarank,
  kIsspacep,
  kLd,
  kLdmatrix,
  kLg2,
  kLop3,
  kMad,
  kMad24,
  kMapa,
  kMatch,
  kMax,
  kMbarrier,
  kMbarrierArrive,
  kMbarrierWait,
  kMin,
  kMma,
  kMov,
  kMovmatrix,
  kMul,
  kMul24,
  kNeg,
  kNop,
  kNot,
  kOr,
  kPopc,
  kPrmt,
  kRcp,
  kRed,
  kRedAsync,
  kRedux,
  kRem,
  kRet,
  kRsqrt,
  kSad,
  kSelp,
  kSet,
  kSetp,
  kShf,
  kShfl,
  kShl,
  kShr,
  kSin,
  kSlct,
  kSqrt,
  kSt,
  kStAsync,
  kStBulk,
  kStmatrix,
  kSub,
  kSubc,
  kSzext,
  kTanh,
  kTestp,
  kTrap,
  kVote,
  kWmmaLoad,
  kWmmaMma,
  kWmmaStore,
  kXor,
};

enum class Space : uint8_t { kNone, kGlobal, kShared, kLocal, kConst, kParam };

// A module, function or block variable outside registers.
struct Variable {
  std::string_view name;
  Space space = Space::kNone;
  uint64_t bytes = 0;
  uint32_t align = 1;
  bool is_dynamic = false;        // .extern .shared: begins where the static ones end
  std::vector<uint8_t> contents;  // initialiser; zeros follow when it is shorter than `bytes`
  Status error;                   // why the initialiser cannot be had
  // 64-bit words of `contents` that hold another variable's address: where, which, and its addend.
  struct Relocation {
    uint64_t offset;
    uint32_t variable;
  };
  std::vector<Relocation> relocations;
};

// A kernel's parameter, at its offset in the parameter space.
struct Parameter {
  std::string_view name;
  Type type = Type::kNone;
  uint32_t offset = 0;
  uint32_t bytes = 0;
  uint32_t align = 1;
};

struct Operand {
  enum class Kind : uint8_t {
    kSink,       // `_`
    kRegister,   // index
    kPredicate,  // index, negated
    kImmediate,  // value: bits, in the operand's type
    kSpecial,    // index: Special
    kVariable,   // variable + value: its address
    kAddress,    // [index or variable, + value]
    kParameter,  // [value] in the kernel's parameter space
  };
  Kind kind = Kind::kSink;
  bool is_destination = false;
  bool is_negated = false;
  Type type = Type::kNone;  // the register's declared type, or the type that the form asks for
  uint32_t index = kNone;
  uint32_t variable = kNone;
  int64_t value = 0;
};

struct Instruction {
  Op op = Op::kExit;
  uint8_t vector = 1;  // .v2, .v4, .v8
  uint8_t operand_count = 0;
  uint8_t destination_count = 0;
  bool guard_negated = false;
  Type type[4] = {};  // in the order they are written
  Space space = Space::kNone;
  uint32_t guard = kNone;      // predicate register
  uint32_t first_operand = 0;  // in Function::operands
  uint32_t target = kNone;     // branch: instruction; brx: table; call: function
  uint32_t line = 0;
  std::bitset<static_cast<size_t>(Mod::kCount)> modifiers;
  std::string_view text;  // as written, without guard and semicolon

  bool Has(Mod m) const { return modifiers[static_cast<size_t>(m)]; }
  // The first of `mods` that the instruction has, else `otherwise`.
  template <class... Mods>
  Mod Pick(Mod otherwise, Mods... mods) const {
    Mod found = otherwise;
    (void)((Has(mods) && (found = mods, true)) || ...);
    return found;
  }
};

struct Function {
  std::string_view name;
  bool is_entry = false;
  bool is_defined = false;
  std::vector<Parameter> parameters;         // of an entry
  std::vector<uint32_t> results, arguments;  // of a .func: variables
  std::vector<Type> registers;               // declared types; predicates are counted apart
  std::vector<std::string_view> register_names, predicate_names;
  uint32_t predicate_count = 0;
  std::vector<Instruction> code;
  std::vector<Operand> operands;
  std::vector<std::vector<uint32_t>> tables;  // .branchtargets: instructions
  uint32_t required_threads = 0;              // .reqntid, else 0
  uint32_t max_threads = 0;                   // .maxntid, else 0
  uint32_t required_ctas = 0;                 // .reqnctapercluster, else 0
  Status error;                               // of the body, which then has no code
};

struct Module {
  std::string text;
  int version = 0;       // 8.7 is 87
  Requirement provides;  // the version, and the target
  std::vector<Variable> variables;
  std::vector<Function> functions;

  const Function* FindEntry(std::string_view name) const;
};

// Parses a whole PTX module. An error names line and column: InvalidArgument for text that is not
// PTX, Unimplemented for PTX that this library does not decode. One in the body of a function is
// left there, for whoever needs that function.
Result<std::shared_ptr<const Module>> Parse(std::string_view text);

// One row of the table of instruction forms (forms.cc). Modifiers are matched in order (those of
// memory accesses in any), each slot a list of alternatives, `?` marks an optional one, `$name` a
// set of types. Operands, in order:
//   T U V      the first, second, third type of the form; V-vectors follow `.v2` and the like with
//   `*` b16 …      a fixed type;  W  an integer twice as wide as T;  N  half as wide as the first
//   type p  a predicate source (may be negated);  m  an address;  l  a label;  n  a constant
//   integer {4 T}      a vector of four registers;  R  at least as wide as T, when a register;  S
//   at least as wide as U;  _  the sink
// `>` marks a destination, `!` a register that no constant can stand for, `?` an operand that may
// be left out, `|p` a second destination predicate, `||p` one that must be there.
struct Form {
  std::string_view opcode;
  Op op;
  std::string_view modifiers;
  std::string_view operands;
};

// The rows of one opcode, as a range [first, last) of a static table.
struct FormRange {
  const Form* first;
  const Form* last;
};
FormRange FindForms(std::string_view opcode);
bool Matches(const Form& form, std::vector<std::string_view> modifiers);
// Takes the next word off a list, such as the slots or the operands of a form.
std::string_view TakeWord(std::string_view* list, char separator);

}  // namespace jax_ptx::ptx
