#include "factors.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "compiler.hpp"
#include "layer.hpp"

namespace layerwise {
namespace {

#include "numbers.hpp"
#include "printed/adafactor.hpp"
#include "kernels/convert.hpp"

constexpr int64_t MOST_CHUNKS = 64;  // each has column sums of its own,
constexpr int64_t LEAST_OF_SUM = 8;  // which are worth it for so many elements of each

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
  Along(const Layer& l, Operand one, Operand other) {
    for (int d = 0; d < l.dims; d++) of[d] = l.stride[d][one] != 0 && l.stride[d][other] != 0;
  }
};

template <class T>
T read(Dtype dtype, const char* at) {
  T x;
  load<T>(dtype, at, size_of(dtype), 1, &x);
  return x;
}

template <class T>
void total_in(const Layer& l) {
  const Factors& f = *l.f;
  std::fill_n(f.G_total, f.matrices, 0.0), std::fill_n(f.R_total, f.matrices, 0.0);
  for_entries(l, Along(l, ROW, ROW).of, f.R.stride, [&](int64_t i, int64_t at, int64_t m) {
    f.G_total[m] += f.R.sums[i], f.R_total[m] += double(read<T>(f.R.dtype, f.R.stored + at));
  });
}

// Computes R and C of this step, and stores them, or makes the factors of u, or both.
template <class T>
void update_in(const Layer& l, bool write, bool make_factors) {
  const Factors& f = *l.f;
  const AdafactorNumbers& k = numbers(l);
  const auto update = [&](Operand which, const Side& side, bool by_mean) {
    T* out = (T*)side.factor;
    const double divisor = at_least(double(side.divisor), 1);
    for_entries(l, Along(l, which, which).of, side.stride, [&](int64_t i, int64_t at, int64_t m) {
      const T x = averaged(k, read<T>(side.dtype, side.stored + at), side.sums[i] / divisor);
      if (write) store<T>(side.dtype, side.stored + at, size_of(side.dtype), 1, &x);
      if (!make_factors) return;
      const T root = std::sqrt(by_mean ? x / T(f.R_total[m]) : x);
      out[i] = k.least != 0 ? root : 1 / root;
    });
  };
  update(ROW, f.R, true), update(COL, f.C, false);
}

// Computes mean(R) by the recurrence that R obeys, which needs nothing but the sums.
void answer_means(const Layer& l) {
  const Factors& f = *l.f;
  const AdafactorNumbers& k = numbers(l);
  const double rows = at_least(double(f.C.divisor), 1), all = at_least(double(f.C.divisor * f.R.divisor), 1);
  for (int64_t m = 0; m < f.matrices; m++) f.R_total[m] = averaged_mean(k, f.R_total[m] / rows, f.G_total[m] / all);
}

void exchange(const Layer& l, const Along& along, double* sums, const int64_t* stride, double* to, bool back) {
  for_entries(l, along.of, stride, [&](int64_t i, int64_t at, int64_t) { exchange_number(sums[i], to[at], back); });
}

}  // namespace

std::unique_ptr<Factors> make_factors(Layer& l, const Tensor& t, const std::vector<Dim>& dims) {
  auto made = std::make_unique<Factors>();
  Factors& f = *made;
  f.matrices = 1;
  const auto lay_out = [&](Side& side, Operand own, Operand other, const std::vector<int>& means, Role stored, Role sums) {
    side.n = side.divisor = 1, side.dtype = t.arrays[stored].dtype;
    for (int d : means) side.divisor *= t.full_shape[size_t(d)];
    int64_t by = 1;  // at least 1 also along dimensions of size 0
    for (size_t d = dims.size(); d-- > 0;) {
      side.stride[d] = dims[d].stride[stored], side.out[d] = dims[d].stride[sums];
      if (dims[d].kind == other) continue;
      l.stride[d][own] = dims[d].size == 1 ? 0 : by, by *= std::max<int64_t>(dims[d].size, 1), side.n *= dims[d].size;
    }
  };
  lay_out(f.R, ROW, COL, t.form.cols, ROLE_R, ROLE_SUM_R), lay_out(f.C, COL, ROW, t.form.rows, ROLE_C, ROLE_SUM_C);
  int64_t by = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    f.matrix_out[d] = dims[d].stride[ROLE_SUM_M];
    if (dims[d].kind == P) f.matrix_stride[d] = by, by *= std::max<int64_t>(dims[d].size, 1), f.matrices *= dims[d].size;
  }
  return made;
}

int64_t most_pieces(const Layer& l, const Factors& f, int d) {
  const int64_t own_sums = (l.stride[d][ROW] ? 0 : f.R.n) + (l.stride[d][COL] ? 0 : f.C.n);
  const int64_t most = own_sums ? std::min(l.count / LEAST_OF_SUM / own_sums, MOST_CHUNKS) : MOST_CHUNKS;
  return std::max<int64_t>(d + 1 == l.dims ? std::min(most, l.size[d] / 256) : most, 1);
}

int64_t place_factors(Layer& l, char* at) {
  Factors& f = *l.f;
  int64_t used = 0;
  const auto take = [&](int64_t bytes) {
    char* piece = at ? at + used : nullptr;
    used += (bytes + 63) / 64 * 64;
    return piece;
  };
  const int64_t number = l.wide ? 8 : 4, sum = sizeof(double);
  for (const auto& [side, own] : {std::pair{&f.R, ROW}, {&f.C, COL}}) {
    side->cut = !l.stride[l.split][own];
    side->sums = reinterpret_cast<double*>(take(sum * side->n * (side->cut ? l.chunks : 1)));
    side->factor = take(number * side->n);
  }
  f.G_total = reinterpret_cast<double*>(take(sum * f.matrices));
  f.R_total = reinterpret_cast<double*>(take(sum * f.matrices));
  return used;
}

void clear_factors(const Layer& l) {
  for (const Side* side : {&l.f->R, &l.f->C})
    if (!side->cut) std::fill_n(side->sums, side->n, 0.0);
}

void add_up_factors(const Layer& l) {
  for (const Side* side : {&l.f->R, &l.f->C})
    if (side->cut) add_up(side->sums, side->n, l.chunks, side->n);
  l.wide ? total_in<double>(l) : total_in<float>(l);
}

void answer_factors(const Layer& l, bool write) {
  answer_means(l);
  l.wide ? update_in<double>(l, write, true) : update_in<float>(l, write, true);
}

void store_factors(const Layer& l) { l.wide ? update_in<double>(l, true, false) : update_in<float>(l, true, false); }

Spread spread_of_factors(const Tensor& t, Sum sum) {
  Spread found{1, std::vector<int64_t>(t.shape.size())};
  for (size_t d = t.shape.size(); d-- > 0;)
    if (!(sum != SUM_COLS && has(t.form.cols, d)) && !(sum != SUM_ROWS && has(t.form.rows, d)))
      found.stride[d] = found.length, found.length *= t.shape[d];
  return found;
}

void name_sums_of_factors(Tensor& t) {
  for (const auto& [role, sum] : {std::pair{ROLE_SUM_R, SUM_ROWS}, {ROLE_SUM_C, SUM_COLS}, {ROLE_SUM_M, SUM_G}})
    if (!t.form.rows.empty()) t.arrays[role] = {true, F32, spread_of_factors(t, sum).stride};
}

void exchange_factors(const Layer& l, Sum sum, double* to, const std::array<int64_t, ROLES>& base, bool back) {
  const Factors& f = *l.f;
  if (sum == SUM_ROWS) return exchange(l, Along(l, ROW, ROW), f.R.sums, f.R.out, to + base[ROLE_SUM_R], back);
  if (sum == SUM_COLS) return exchange(l, Along(l, COL, COL), f.C.sums, f.C.out, to + base[ROLE_SUM_C], back);
  exchange(l, Along(l, ROW, COL), sum == SUM_G ? f.G_total : f.R_total, f.matrix_out, to + base[ROLE_SUM_M], back);
}

}  // namespace layerwise
