#include "factors.hpp"

#include <cmath>
#include <cstring>

#include "compiler.hpp"
#include "layer.hpp"

namespace layerwise {
namespace {

#include "numbers.hpp"
#include "printed/programs.hpp"
#include "kernels/convert.hpp"

const AdafactorNumbers& numbers(const Layer& l) { return *reinterpret_cast<const AdafactorNumbers*>(l.k); }

// Walks through the entries of R (or C, or the matrices) in order: f(entry, its place by `stored`, its matrix).
template <class F>
void for_entries(const Layer& l, const bool* has, const int64_t* stored, F&& f) {
  int64_t size[MAX_DIMS], at[MAX_DIMS] = {}, by[MAX_DIMS], matrix[MAX_DIMS], n = 0, place = 0, m = 0, total = 1;
  for (int d = 0; d < l.dims; d++)
    if (has[d]) {
      size[n] = l.size[d], by[n] = stored[d], matrix[n] = l.f->matrix_stride[d];
      total *= size[n++];
    }
  for (int64_t i = 0; i < total; i++) {
    f(i, place, m);
    for (int64_t d = n - 1; d >= 0; d--) {
      place += by[d], m += matrix[d];
      if (++at[d] < size[d]) break;
      place -= at[d] * by[d], m -= at[d] * matrix[d], at[d] = 0;
    }
  }
}

// The dimensions along which R or C extends, or where there are several matrices.
struct Along {
  bool of[MAX_DIMS];
  Along(const Layer& l, Operand which) {
    for (int d = 0; d < l.dims; d++) of[d] = l.stride[d][which] != 0;
  }
  explicit Along(const Layer& l) {
    for (int d = 0; d < l.dims; d++) of[d] = l.stride[d][ROW] != 0 && l.stride[d][COL] != 0;
  }
};

void add_up(double* sums, int64_t n, int64_t chunks) {
  for (int64_t s = 1; s < chunks; s++)
    for (int64_t i = 0; i < n; i++) sums[i] += sums[s * n + i];
}

template <class T>
T read(Dtype dtype, const char* at) {
  T x;
  load<T>(dtype, at, size_of(dtype), 1, &x);
  return x;
}

template <class T>
void total_in(const Layer& l) {
  const Factors& f = *l.f;
  for (int64_t m = 0; m < f.matrices; m++) f.G_total[m] = f.R_total[m] = 0;
  for_entries(l, Along(l, ROW).of, f.stride_R, [&](int64_t i, int64_t at, int64_t m) {
    f.G_total[m] += f.R[i];
    f.R_total[m] += double(read<T>(f.dtype_R, f.stored_R + at));
  });
}

// Computes R and C of this step, and stores them, or makes the factors of u, or both.
template <class T>
void update_in(const Layer& l, bool write, bool make_factors) {
  const Factors& f = *l.f;
  const AdafactorNumbers& k = numbers(l);
  const T b2 = T(k.b2), a2 = T(k.a2);
  const auto update = [&](Operand which, double* sums, int64_t n, char* stored, Dtype dtype, const int64_t* stride,
                          void* factor, bool by_mean) {
    T* out = (T*)factor;
    const double divisor = at_least(double(n), 1);
    for_entries(l, Along(l, which).of, stride, [&](int64_t i, int64_t at, int64_t m) {
      const T x = b2 * read<T>(dtype, stored + at) + a2 * T(sums[i] / divisor + k.eps1);
      if (write) store<T>(dtype, stored + at, size_of(dtype), 1, &x);
      if (!make_factors) return;
      const T root = std::sqrt(by_mean ? x / T(f.R_total[m]) : x);
      out[i] = k.least != 0 ? root : 1 / root;
    });
  };
  update(ROW, f.R, f.n_cols, f.stored_R, f.dtype_R, f.stride_R, f.row_factor, true);
  update(COL, f.C, f.n_rows, f.stored_C, f.dtype_C, f.stride_C, f.col_factor, false);
}

// Computes mean(R) by the recurrence that R obeys, which needs nothing but the sums.
void answer_means(const Layer& l) {
  const Factors& f = *l.f;
  const AdafactorNumbers& k = numbers(l);
  const double n = at_least(double(f.n_rows), 1);
  for (int64_t m = 0; m < f.matrices; m++) {
    const double G_mean = f.G_total[m] / at_least(double(f.n_rows * f.n_cols), 1) + k.eps1;
    f.R_total[m] = at_least(k.b2 * (f.R_total[m] / n) + k.a2 * G_mean, k.least);
  }
}

void exchange(const Layer& l, const Along& along, double* sums, const int64_t* stride, double* to, bool back) {
  for_entries(l, along.of, stride, [&](int64_t i, int64_t at, int64_t) { back ? sums[i] = to[at] : to[at] = sums[i]; });
}

}  // namespace

void clear_factors(const Layer& l) {
  const Factors& f = *l.f;
  if (!f.cut_rows && f.rows) std::memset(f.R, 0, size_t(f.rows) * sizeof(double));
  if (!f.cut_cols && f.cols) std::memset(f.C, 0, size_t(f.cols) * sizeof(double));
}

void add_up_factors(const Layer& l) {
  const Factors& f = *l.f;
  if (f.cut_rows) add_up(f.R, f.rows, l.chunks);
  if (f.cut_cols) add_up(f.C, f.cols, l.chunks);
  l.wide ? total_in<double>(l) : total_in<float>(l);
}

void answer_factors(const Layer& l, bool write) {
  answer_means(l);
  l.wide ? update_in<double>(l, write, true) : update_in<float>(l, write, true);
}

void store_factors(const Layer& l) { l.wide ? update_in<double>(l, true, false) : update_in<float>(l, true, false); }

void exchange_rows(const Layer& l, double* to, bool back) { exchange(l, Along(l, ROW), l.f->R, l.f->sum_R, to, back); }
void exchange_cols(const Layer& l, double* to, bool back) { exchange(l, Along(l, COL), l.f->C, l.f->sum_C, to, back); }
void exchange_totals(const Layer& l, double* G, double* R, bool back) {
  if (G) exchange(l, Along(l), l.f->G_total, l.f->sum_M, G, back);
  if (R) exchange(l, Along(l), l.f->R_total, l.f->sum_M, R, back);
}

}  // namespace layerwise
