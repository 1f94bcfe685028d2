// A batch that stops at the yields: other processes complete its sums, and nothing is written before `apply`.
#include <algorithm>

#include "answers.hpp"
#include "batch.hpp"
#include "factors.hpp"
#include "stages.hpp"

namespace layerwise {
namespace {

bool asks_for(const Tensor& t, Sum sum) {
  const Options& o = t.options;
  const bool factored = !t.rows.empty(), adafactor = o.method == ADAFACTOR;
  switch (sum) {
    case SUM_OWN: return o.max_grad_norm_per_tensor > 0;
    case SUM_MODEL: return o.max_grad_norm > 0;
    case SUM_ROWS: case SUM_COLS: case SUM_G: case SUM_R: return factored;
    case SUM_P: return adafactor ? o.scale_parameter : o.adapt != NEVER;
    case SUM_UPDATE: return adafactor || o.adapt != NEVER;
  }
  return false;
}

// Strides of an array of numbers of this shape, but with size 1 along `without`; and its length.
int64_t spread(const std::vector<int64_t>& shape, const std::vector<int>& without, std::vector<int64_t>& stride) {
  int64_t length = 1;
  stride.assign(shape.size(), 0);
  for (size_t d = shape.size(); d-- > 0;)
    if (std::find(without.begin(), without.end(), int(d)) == without.end()) stride[d] = length, length *= shape[d];
  return length;
}

std::vector<int> rows_and_cols(const Tensor& t) {
  std::vector<int> both = t.rows;
  both.insert(both.end(), t.cols.begin(), t.cols.end());
  return both;
}

}  // namespace

void Batch::name_places(Tensor& t) {
  if (t.rows.empty()) return;
  for (const auto& [role, without] : {std::pair{ROLE_SUM_R, t.cols}, {ROLE_SUM_C, t.rows}, {ROLE_SUM_M, rows_and_cols(t)}}) {
    t.arrays[role].present = true;
    spread(t.shape, without, t.arrays[role].stride);
  }
}

int64_t Batch::length_of(const Tensor& t, Sum sum) {
  std::vector<int64_t> stride;
  if (sum == SUM_ROWS) return spread(t.shape, t.cols, stride);
  if (sum == SUM_COLS) return spread(t.shape, t.rows, stride);
  if (sum == SUM_MODEL) return 1;
  if (sum == SUM_G || sum == SUM_R) return spread(t.shape, rows_and_cols(t), stride);
  int64_t blocks = 1;
  for (int d : t.block_dims) blocks *= t.shape[size_t(d)];
  return blocks;
}

void Batch::make_rounds() {
  const int n = int(layers_.size());
  for (Layer& l : layers_)
    if (l.f) scratch_ += scratch_of(l, nullptr);
  const auto add = [&](std::initializer_list<Kind> kinds, auto&& wanted) {
    Round round;
    round.answers = *(kinds.end() - 1);
    for (Kind kind : kinds) add_stage(round.stages, kind, 0, n, kind == UPDATE);
    for (int i = 0; i < tensors(); i++)
      for (Sum sum : {SUM_OWN, SUM_MODEL, SUM_ROWS, SUM_COLS, SUM_G, SUM_R, SUM_P, SUM_UPDATE}) {
        const Tensor& t = tensors_[size_t(i)];
        if (!asks_for(t, sum) || !wanted(t, sum)) continue;
        round.requests.push_back({i, sum, round.length, length_of(t, sum)});
        round.length += round.requests.back().length;
      }
    if (!round.requests.empty()) rounds_.push_back(std::move(round));
  };
  const auto late = [](const Tensor& t, Sum sum) { return sum == SUM_UPDATE && !t.rows.empty(); };
  add({OWN}, [](const Tensor&, Sum sum) { return sum == SUM_OWN; });
  add({MODEL}, [](const Tensor&, Sum sum) { return sum == SUM_MODEL; });
  add({PREPARE, MEASURE}, [&](const Tensor& t, Sum sum) { return sum > SUM_MODEL && !late(t, sum); });
  add({UPDATE}, late);
  add_stage(stages_, STORE, 0, n, false);
  add_stage(stages_, APPLY, 0, n, false);
}

const std::vector<Request>& Batch::requests() const {
  static const std::vector<Request> none;
  return round_ ? rounds_[round_ - 1].requests : none;
}

bool Batch::measure() {
  if (round_ == 0) {
    scratchpad_ = std::make_unique<Scratchpad>(scratch_);
    int64_t used = 0;
    for (Layer& l : layers_)
      if (l.f) used += scratch_of(l, scratchpad_->at() + used);
  } else {
    const Round& before = rounds_[round_ - 1];
    for (const Request& request : before.requests) exchange(request, true);
    for (Layer& l : layers_)
      if (takes_part(l, before.answers)) answer(l, before.answers);
  }
  if (round_ == rounds_.size()) return false;
  Round& round = rounds_[round_++];
  carry_out(round.stages);
  sums_.resize(size_t(round.length));
  for (const Request& request : round.requests) exchange(request, false);
  return true;
}

void Batch::apply() { carry_out(stages_); }

void Batch::leave() {
  round_ = 0;
  scratchpad_.reset();
}

// Moves the numbers of one request from the layers to `sums_` or back.
void Batch::exchange(const Request& request, bool back) {
  double* at = sums_.data() + request.at;
  if (request.sum == SUM_MODEL && !back) *at = 0;
  for (int i = first_layer_[size_t(request.tensor)]; i < first_layer_[size_t(request.tensor) + 1]; i++) {
    Layer& l = layers_[size_t(i)];
    const auto& base = base_[size_t(i)];
    const auto one = [&](double& number) { back ? number = *at++ : *at++ = number; };
    switch (request.sum) {
      case SUM_ROWS: exchange_rows(l, at + base[ROLE_SUM_R], back); break;
      case SUM_COLS: exchange_cols(l, at + base[ROLE_SUM_C], back); break;
      case SUM_G: exchange_totals(l, at + base[ROLE_SUM_M], nullptr, back); break;
      case SUM_R: exchange_totals(l, nullptr, at + base[ROLE_SUM_M], back); break;
      case SUM_MODEL: back ? l.clip_model = shorter(*at, l.o->max_grad_norm) : *at += l.sums[0]; break;
      case SUM_UPDATE: one(l.sums[1]); break;
      default: one(l.sums[0]);
    }
  }
}

}  // namespace layerwise
