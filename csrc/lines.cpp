#include "lines.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "compiler.hpp"
#include "layer.hpp"

namespace layerwise {
namespace {

#include "numbers.hpp"
#include "kernels/convert.hpp"

constexpr int64_t MOST_CHUNKS = 64;  // of a dimension; each chunk has its own sums by rows or by columns
constexpr int64_t LEAST_OF_SUM = 8;  // fewer elements are not worth a sum of their own
constexpr Operand OPERANDS_OF[LINES] = {ROW, COL};

// Calls f(entry, its place by `places`, its matrix) for the rows in order, or for the columns or matrices. These extend along
// the dimensions in which both operands have strides.
template <class F>
void for_entries(const Layer& l, Operand one, Operand other, const int64_t* places, F&& f) {
  int64_t size[MAX_DIMS], at[MAX_DIMS] = {}, by[MAX_DIMS], matrix[MAX_DIMS], n = 0, place = 0, m = 0, total = 1;
  for (int d = 0; d < l.dims; d++)
    if (l.stride[d][one] != 0 && l.stride[d][other] != 0) {
      size[n] = l.size[d], by[n] = places[d], matrix[n] = l.lines->matrix_stride[d];
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

template <class F>
void for_entries(const Layer& l, int line, F&& f) {
  for_entries(l, OPERANDS_OF[line], OPERANDS_OF[line], l.lines->of[line].stride, f);
}

double read(const Line& line, int64_t at) {
  if (float x; line.dtype == F32) return memcpy(&x, line.stored + at, sizeof x), x;
  double x;
  return load<double>(line.dtype, line.stored + at, size_of(line.dtype), 1, &x), x;
}

void write(const Line& line, int64_t at, double x) {
  if (const float low = float(x); line.dtype == F32) memcpy(line.stored + at, &low, sizeof low);
  else store<double>(line.dtype, line.stored + at, size_of(line.dtype), 1, &x);
}

}  // namespace

std::unique_ptr<Lines> make_lines(Layer& l, const Tensor& t, const std::vector<Dim>& dims) {
  if (l.program->lines == 0) return nullptr;
  auto made = std::make_unique<Lines>();
  made->matrices = 1;
  for (int i = 0; i < LINES; i++) {
    Line& line = made->of[i];
    line.n = line.divisor = 1, line.dtype = t.arrays[size_t(ROLE_ROWS + i)].dtype;
    for (int d : i ? t.form.rows : t.form.cols) line.divisor *= t.full_shape[size_t(d)];
    int64_t by = 1;  // at least 1, even if a dimension has size 0
    for (size_t d = dims.size(); d-- > 0;) {
      line.stride[d] = dims[d].stride[ROLE_ROWS + i], line.out[d] = dims[d].stride[ROLE_ROW_SUMS + i];
      if (dims[d].kind == OPERANDS_OF[1 - i]) continue;
      l.stride[d][OPERANDS_OF[i]] = dims[d].size == 1 ? 0 : by, by *= std::max<int64_t>(dims[d].size, 1), line.n *= dims[d].size;
    }
  }
  int64_t by = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    made->matrix_out[d] = dims[d].stride[ROLE_MATRIX_SUMS];
    if (dims[d].kind != P) continue;
    made->matrix_stride[d] = by, by *= std::max<int64_t>(dims[d].size, 1), made->matrices *= dims[d].size;
  }
  return made;
}

int64_t most_pieces(const Layer& l, const Lines* lines, int d) {
  if (!lines) return INT64_MAX;
  const int64_t own_sums = (l.stride[d][ROW] ? 0 : lines->of[0].n) + (l.stride[d][COL] ? 0 : lines->of[1].n);
  const int64_t most = own_sums ? std::min(l.count / LEAST_OF_SUM / own_sums, MOST_CHUNKS) : MOST_CHUNKS;
  return std::max<int64_t>(d + 1 == l.dims ? std::min(most, l.size[d] / 256) : most, 1);
}

int64_t place_lines(Layer& l, char* at) {
  if (!l.lines) return 0;
  int64_t used = 0;
  const auto take = [&](int64_t bytes) {
    char* piece = at ? at + used : nullptr;
    used += (bytes + 63) / 64 * 64;
    return piece;
  };
  for (int i = 0; i < LINES; i++) {
    Line& line = l.lines->of[i];
    line.cut = !l.stride[l.split][OPERANDS_OF[i]];
    line.sums = reinterpret_cast<double*>(take(int64_t(sizeof(double)) * line.n * (line.cut ? l.chunks : 1)));
    line.made = take((l.wide ? 8 : 4) * line.n);
  }
  l.lines->means = reinterpret_cast<double*>(take(2 * int64_t(sizeof(double)) * l.lines->matrices));
  return used;
}

void clear_lines(const Layer& l) {
  for (int i = 0; l.lines && i < LINES; i++)
    if (Line& line = l.lines->of[i]; !line.cut) std::fill_n(line.sums, line.n, 0.0);
}

void add_up_lines(const Layer& l) {
  if (!l.lines) return;
  for (const Line& line : l.lines->of)
    if (line.cut) add_up(line.sums, line.n, l.chunks, line.n);
  const Line& rows = l.lines->of[0];
  double* means = l.lines->means;
  std::fill_n(means, 2 * l.lines->matrices, 0.0);
  for_entries(l, 0, [&](int64_t i, int64_t at, int64_t m) { means[2 * m] += rows.sums[i], means[2 * m + 1] += read(rows, at); });
}

void answer_lines(const Layer& l, bool stores) {
  if (!l.lines) return;
  double* means = l.lines->means;
  const double rows = at_least(double(l.lines->of[1].divisor), 1), all = rows * at_least(double(l.lines->of[0].divisor), 1);
  for (int64_t m = 0; m < l.lines->matrices; m++) means[2 * m] /= all, means[2 * m + 1] /= rows;
  for (int i = 0; i < LINES; i++) {
    const Line& line = l.lines->of[i];
    const double divisor = at_least(double(line.divisor), 1);
    Entries some;
    int64_t n = 0, places[Entries::MOST];
    const auto finish = [&](int64_t end) {
      l.program->line[i][l.wide](l.k, some, n);
      for (int64_t j = 0, entry = end - n; j < n; j++, entry++) {
        if (stores) write(line, places[j], some.state[j]);
        else line.sums[entry] = some.state[j];
        if (l.wide) static_cast<double*>(line.made)[entry] = some.made[j];
        else static_cast<float*>(line.made)[entry] = float(some.made[j]);
      }
      n = 0;
    };
    for_entries(l, i, [&](int64_t entry, int64_t at, int64_t m) {
      some.state[n] = read(line, at), some.mean[n] = line.sums[entry] / divisor;
      some.of_matrix[n] = means[2 * m], some.of_rows[n] = means[2 * m + 1], places[n++] = at;
      if (n == Entries::MOST) finish(entry + 1);
    });
    finish(line.n);
  }
}

void store_lines(const Layer& l) {
  for (int i = 0; l.lines && i < LINES; i++) {
    const Line& line = l.lines->of[i];
    for_entries(l, i, [&](int64_t entry, int64_t at, int64_t) { write(line, at, line.sums[entry]); });
  }
}

void name_sums_of_lines(Tensor& t) {
  for (int i = 0; t.form.program->lines && i <= LINES; i++) {
    std::vector<int64_t> stride(t.shape.size());
    int64_t length = 1;
    for (size_t d = t.shape.size(); d-- > 0;)
      if (!(i != 1 && has(t.form.cols, d)) && !(i != 0 && has(t.form.rows, d))) stride[d] = length, length *= t.shape[d];
    t.arrays[size_t(ROLE_ROW_SUMS + i)] = {true, F32, stride};
  }
}

void exchange_lines(const Layer& l, int which, double* to, const std::array<int64_t, ROLES>& base, bool back) {
  const bool of_matrices = which >= LINES;
  to += base[size_t(ROLE_ROW_SUMS + std::min(which, LINES))];
  double* own = of_matrices ? l.lines->means + (which - LINES) : l.lines->of[which].sums;
  for_entries(l, of_matrices ? ROW : OPERANDS_OF[which], of_matrices ? COL : OPERANDS_OF[which],
              of_matrices ? l.lines->matrix_out : l.lines->of[which].out,
              [&](int64_t i, int64_t at, int64_t) { exchange_number(own[of_matrices ? 2 * i : i], to[at], back); });
}

}  // namespace layerwise
