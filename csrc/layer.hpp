// The input of a kernel: one layer's layout, its options, and its coefficients in this step.
#pragma once

#include <cstdint>

namespace layerwise {

inline constexpr double NO_BOUND = __builtin_inf();

enum Dtype : uint8_t { F32, F64, BF16, F16 };
enum Method : uint8_t { LAMB, LARS, ADAFACTOR };
enum Adapt : uint8_t { NEVER, ALWAYS, DECAYED };
enum Correction : uint8_t { UNCORRECTED, CORRECTED, CORRECTED_LR };
enum Decay : uint8_t { IN_RATIO, DECOUPLED, L2 };
enum DecayScale : uint8_t { BY_LR, BY_STEP, BY_NOTHING };

// LAMB's m and v, LARS's b, Adafactor's e and, where it is not factored, V. ROW and COL are no arrays of the caller but
// places among the row and column statistics, counted in entries; the others are counted in bytes.
enum Operand { P, G, S0, S1, ROW, COL, OPERANDS };
inline constexpr int ARRAYS = 4;
inline constexpr int MAX_DIMS = 8;

inline int64_t size_of(Dtype d) { return d == F64 ? 8 : d == F32 ? 4 : 2; }

// The options of one tensor. What is off has a value that does nothing.
struct Options {
  Method method = LAMB;
  bool maximize = false;
  double max_grad_norm = 0, max_grad_norm_per_tensor = 0;
  double grad_low = -NO_BOUND, grad_high = NO_BOUND;  // of each element

  Adapt adapt = ALWAYS;
  double low = -NO_BOUND, high = NO_BOUND;  // of the trust ratio
  double min_norm = 0, l2 = 0;
  double zero_norm_ratio = 1;
  double eps = 0;
  bool lr_in_momentum = true;

  double b1 = 0, b2 = 0, eps_root = 0, max_weight_norm = 0, trust_eps = 0;
  Correction correction = CORRECTED;
  Decay decay = IN_RATIO;
  bool grad_averaging = true;

  double momentum = 0, eta = 1, dampening = 0;
  bool nesterov = false, norm_decayed = false;

  double eps1 = 0, eps2 = 0, clip_threshold = 0, beta2_decay = 0, beta2_cap = -1, beta1 = -1, lr_cap = 0;
  int64_t decay_offset = 0;
  bool clamp = false, scale_parameter = false, relative = false, warmup = false;
  bool lr_caps = false;  // lr is the relative step's cap, and not its factor
  DecayScale decay_scale = BY_LR;
};

// `now`, and the numbers that a rule makes of it and of its options before a tensor is read.
struct Coefficients {
  double t, lr, lam, g_scale, beta2;  // beta2 is nan where it follows t
  double shrink;    // p ← shrink·p before anything else: decoupled decay
  double lam_g;     // g ← g + lam_g·p: L2 decay
  double lam_r;     // LAMB r = u + lam_r·p, LARS r = g + lam_r·p
  double lam_x;     // LARS x = g + lam_x·p, which is measured
  double b1, a1;    // m ← b1·m + a1·g
  double b2, a2;    // v ← b2·v + a2·g²
  double c1, c2;    // what m and v are multiplied with
  double lr_apply;  // what multiplies the ratio
  double rho;
};

// The row and column statistics of one factored layer.
struct Factors {
  int64_t rows, cols, matrices;  // lengths of R and of C, both over all matrices; and how many of those there are
  int64_t n_rows, n_cols;        // what a mean divides by: rows and columns of one unsharded matrix
  bool cut_rows, cut_cols;       // whether every chunk has all of R (of C) to itself, to be added up
  double *R, *C;                 // sums of G; R and C of the chunks lie behind one another
  double *G_total, *R_total;     // of each matrix
  void *row_factor, *col_factor;  // √(R/mean(R)) and √C, or their reciprocals, in the dtype of the arithmetic
  // How R and C are stored.
  char *stored_R, *stored_C;
  Dtype dtype_R, dtype_C;
  int64_t stride_R[MAX_DIMS], stride_C[MAX_DIMS];    // in bytes, in the layer's dimensions
  int64_t matrix_stride[MAX_DIMS];
  // Where their sums go when they leave the batch: in numbers.
  int64_t sum_R[MAX_DIMS], sum_C[MAX_DIMS], sum_M[MAX_DIMS];
};

// One layer: what has norms of its own, a tensor or one of its blocks.
struct Layer {
  char* data[ARRAYS];
  Dtype dtype[ARRAYS];
  bool in_row[ARRAYS];  // lies aligned, and without gaps along the innermost dimension
  bool direct[ARRAYS];  // can be computed with where it lies: in a row, and of the arithmetic's dtype
  bool wide;            // arithmetic in float64
  bool caches;          // one task measures and applies it, with LAMB's r, or u of an unfactored V, cached in between
  bool late;            // LAMB's `measure` stores nothing
  bool prepared;        // the gradient is not used as it comes
  bool low;             // p and g are bfloat16, and can be computed with where they lie
  uint8_t dims, split;  // the chunks cut the dimension `split`
  int64_t step, chunks, count;
  double entries;  // of the unsharded layer
  const Options* o;
  const Coefficients* c;
  Factors* f;

  // The answers.
  double clip_own, clip_model;  // g is divided by these
  double scale;                 // LAMB lr·ratio, LARS (lr·)ratio, Adafactor alpha
  double clip;                  // Adafactor's, of û
  double sums[2];

  char* cached;     // room for r or u, where the layer caches it
  double* partial;  // two sums of each chunk
  int64_t size[MAX_DIMS];
  int64_t stride[MAX_DIMS][OPERANDS];
};

// Whether a rule asks nothing of the layer.
inline bool immediate(const Layer& l) { return l.o->adapt == NEVER && l.o->method != ADAFACTOR; }

// Each works on one chunk and returns up to two sums.
struct Functions {
  void (*square)(const Layer&, int64_t chunk, double* sums);    // Σg², as far as g is ready
  void (*measure)(const Layer&, int64_t chunk, double* sums);   // LAMB Σp², Σr²; LARS Σp², Σx²; Adafactor R, C, Σp²
  void (*measure_update)(const Layer&, int64_t chunk, double* sums);  // Adafactor, factored: Σu²
  void (*apply)(const Layer&, int64_t chunk);
};

// What an instruction set provides: for any layer, and for one whose p and g are bfloat16 and lie in a row.
struct Kernels {
  const char* name;
  const Functions *any, *low;
};

}  // namespace layerwise
