// The input of a kernel: one layer's layout, its options, and its coefficients in this step.
#pragma once

#include <cstdint>
#include <limits>

#include "compiler.hpp"

namespace layerwise {

inline constexpr double NO_BOUND = std::numeric_limits<double>::infinity();

// The first four are of floating numbers, and what is computed with. COUNT are PyTorch's counts of steps; the others are
// what compact formats store.
enum Dtype : uint8_t { F32, F64, BF16, F16, COUNT, I8, U8, I16 };

// A rule's request for a layer: Σx², its mean, or the mean or the sum of x.
enum Total : uint8_t { NONE, SQUARES, MEAN_SQUARE, MEAN, SUM };
constexpr bool is_plain(Total total) { return total == MEAN || total == SUM; }  // of the terms, and not of their squares
constexpr bool is_mean(Total total) { return total == MEAN || total == MEAN_SQUARE; }

// The weights, the gradient, and the parts of the state that have their shape, in the rule's order: counted in bytes. The
// others are no arrays of the caller. ROW and COL are places among the row and column statistics, counted in entries; INDEX
// is the number of an element in the whole tensor, and GROUP the same where every row is filled up to whole groups.
enum Operand { P, G, S0, S1, S2, S3, ROW, COL, INDEX, GROUP, OPERANDS };
inline constexpr int ARRAYS = 6, STATES = 4;
inline constexpr int LAYER_STATES = 2;  // parts of the state that are one number of the layer
inline constexpr int LINES = 2;         // parts with one number for each row, and for each column,
inline constexpr int OF_LINES = 4;      // and the sums that they take: by rows, by columns, by matrices, and of the first part
inline constexpr int MAX_DIMS = 8;
inline constexpr int ROUNDS = 3, SUMS = 4, TOTALS = 8, ANSWERS = 8, STATS = 8;  // the most that a program has

inline int64_t size_of(Dtype d) { return d == F64 || d == COUNT ? 8 : d == F32 ? 4 : d == I8 || d == U8 ? 1 : 2; }

// How an array is stored (src/layerwise/storage).
enum Format : uint8_t { PLAIN, SPLIT, GROUPED };
inline constexpr int64_t GROUP_SIZE = 64;

struct Stored {
  Format format;
  bool draws;              // is rounded by random bits
  Dtype beside_dtype;      // of the remainder
  uint32_t key[2], k[2];   // of the array; of this step
  uint32_t turn;           // is added to its bits
  char* beside;            // the remainder, or the scales

  bool plain() const { return format == PLAIN && !draws; }
};

struct Storage {
  Stored of[ARRAYS];
  int64_t index, group;  // of the layer's first element
};

// The numbers by which a gradient is prepared (rules/clipping.py, `prepare_gradient`); infinite bounds do nothing.
struct GradientNumbers {
  double t;                       // the step's number
  double scale, sign, low, high;  // g ← clip(sign·g/scale, low, high)
  double own, model;              // the largest norm of the layer's gradient, and of all

  bool prepares() const {
    return scale != 1 || sign != 1 || low > -NO_BOUND || high < NO_BOUND || own < NO_BOUND || model < NO_BOUND;
  }
};

struct Layer;

// The kernels of one program. Each works on one chunk; the first ones return sums.
struct Passes {
  void (*measure[ROUNDS])(const Layer&, int64_t chunk, double* sums);
  void (*apply)(const Layer&, int64_t chunk);
};

// What kernels are compiled for: instructions and dtypes, by CMakeLists.txt, which may name one level of instructions.
#ifndef LAYERWISE_ONLY
#define LAYERWISE_ONLY -1
#endif
#define LAYERWISE_HAS(level) (LAYERWISE_ONLY == -1 || LAYERWISE_ONLY == level)
#if !defined(LAYERWISE_X86)
#define LAYERWISE_SETS(X) X(baseline_any) X(baseline_low)
#elif LAYERWISE_ONLY == 2
#define LAYERWISE_SETS(X) X(avx2_any) X(avx2_low)
#elif LAYERWISE_ONLY == 512
#define LAYERWISE_SETS(X) X(avx2_any) X(avx512_narrow) X(avx512_low)
#else
#define LAYERWISE_SETS(X) \
  X(baseline_any) X(avx2_any) X(avx2_low) X(avx512_narrow) X(avx512_low)
#endif
#define LAYERWISE_ITEM(x) x,
enum Set { LAYERWISE_SETS(LAYERWISE_ITEM) SETS };
#define LAYERWISE_JOINED(x, y) x##_##y
#define LAYERWISE_NAME(x, y) LAYERWISE_JOINED(x, y)

// Some rows, or columns, with their state, their means, and two means of the matrix of each: of its elements, and of the
// state of its rows. A program makes their new state, and what elements are computed with.
struct Entries {
  static constexpr int64_t MOST = 64;
  double state[MOST], mean[MOST], of_matrix[MOST], of_rows[MOST], made[MOST];
};

// The arithmetic of a rule under some of its options: csrc/printed has the kernels and the answers of each.
struct Program {
  const char* name;
  int lines;                          // of the parts of the state, come first: LINES or none
  int states, layer_states;           // arrays, and numbers of the layer,
  unsigned of_layer;                  // whose bits these are, in the rule's order
  int rounds, caches, keeps;          // `keeps` is the round in which state is stored; −1: with the weights
  bool rereads;                       // stored state is read again, by a later round or `apply`
  int numbers;                        // how many coefficients it takes
  int sums[ROUNDS];                   // of each round
  Total totals[TOTALS];               // of all rounds
  // S[-1] is the last total, `old` are the numbers of the layer's state before the step; answers and measurements are made
  // of them with the totals of each round, the numbers after the step with all.
  void (*answer[ROUNDS])(const double* k, const double* S, const double* old, double* a, double* stats);
  void (*remember)(const double* k, const double* S, const double* old, double* made);
  void (*line[LINES][2])(const double* k, Entries& entries, int64_t n);  // of rows and columns, in float32 and in float64
  const Passes* passes[SETS];

  int first(int round) const {
    int at = 0;
    for (int j = 0; j < round; j++) at += sums[j];
    return at;
  }
};

// The programs of a rule.
struct Rule {
  const Program* programs;
  int count;
};

// The defaults of programs: printed ones override them.
struct Usual {
  using In = const double*;
  using Out = double*;
  static constexpr int CACHES = 0, CACHED[1] = {0}, KEEPS = -1, KEEP_READS = 0, KEEP_WRITES = 0;
  static constexpr int LAYER_STATES = 0, OF_LAYER = 0, LINES = 0;
  template <class... A> static void remember(const A&...) {}
  template <class... A> static void row(const A&...) {}
  template <class... A> static void column(const A&...) {}
};

// Data with one entry for each row of a layer, or for each column.
struct Line {
  int64_t n;        // how many, over all matrices
  int64_t divisor;  // of means: how many elements of the unsharded layer each has
  bool cut;         // whether every chunk has all of the sums to itself, to be added up
  double* sums;     // those of the chunks one after the other; then the values to store
  void* made;       // the values that elements are computed with, in the dtype of the arithmetic
  char* stored;
  Dtype dtype;
  int64_t stride[MAX_DIMS];  // of the stored values: in bytes, in the layer's dimensions
  int64_t out[MAX_DIMS];     // where its sums go when they leave the batch: in numbers

  double* of(int64_t chunk) const { return sums + (cut ? chunk * n : 0); }
};

struct Lines {
  Line of[LINES];
  int64_t matrices;
  double* means;  // two of each matrix: of its elements, and of the state of its rows; at first the sums
  int64_t matrix_stride[MAX_DIMS], matrix_out[MAX_DIMS];
};

// One layer: a tensor or one of its blocks, with norms of its own.
struct Layer {
  char* data[ARRAYS];
  Dtype dtype[ARRAYS];
  bool in_row[ARRAYS];  // lies aligned, and without gaps along the innermost dimension
  bool direct[ARRAYS];  // can be computed with where it lies: in a row, and of the arithmetic's dtype
  bool wide;            // arithmetic in float64
  bool caches;          // the most expensive values are cached between the last round and `apply`
  bool late;            // `measure` stores nothing
  bool prepared;        // the gradient is not used as it comes
  bool low;             // p and g are bfloat16, and can be computed with where they lie
  uint8_t dims, split;  // the chunks cut the dimension `split`
  int64_t step, chunks, count, each;  // a chunk has `each` elements, the last one perhaps fewer
  double entries;  // of the unsharded layer
  const Program* program;
  const double* k;  // the rule's coefficients, in the order of the program's Numbers
  const GradientNumbers* gradient;
  Lines* lines;  // null where its program has none
  const Storage* storage;  // null where all arrays are plain

  bool clips_own, clips_model;  // by the norm of its own gradient, by that of all
  double clip_own, clip_model;  // g is divided by these
  double totals[TOTALS], answers[ANSWERS];
  char* own[LAYER_STATES];  // where the numbers of its state are stored
  Dtype own_dtype[LAYER_STATES];

  char* cached;     // room for what the layer caches, if it does
  double* partial;  // SUMS sums of each chunk; then the first chunk's are those of the layer
  int64_t size[MAX_DIMS];
  int64_t stride[MAX_DIMS][OPERANDS];
};

// The functions of an instruction set for layers of some dtypes.
struct Functions {
  void (*square)(const Layer&, int64_t chunk, double* sums);  // Σg², as far as g is ready
  Set set;  // of the kernels of programs
  // Of an array that is not plain, numbers of a run into float32 and back.
  void (*load)(const Layer&, const int64_t* off, int64_t n, Operand k, float* to);
  void (*store)(const Layer&, const int64_t* off, int64_t n, Operand k, const float* from);
};

// For arithmetic in float32, in float64, and for layers whose p and g are bfloat16 and lie in a row, if there are any.
struct Kernels {
  const char* name;
  const Functions *narrow, *wide, *low;
};

// All rules with printed programs.
extern const Rule* const rules[];
extern const int rule_count;

template <class F>
void for_programs(F&& f) {
  for (int i = 0; i < rule_count; i++)
    for (int j = 0; j < rules[i]->count; j++) f(rules[i]->programs[j]);
}

}  // namespace layerwise
