// A batch that stops at the yields: other processes complete its sums, and nothing is written before `apply`.
#include <algorithm>

#include "batch.hpp"
#include "dispatch.hpp"
#include "factors.hpp"
#include "stages.hpp"

namespace layerwise {

int64_t Batch::length_of(const Tensor& t, Sum sum) {
  if (is_statistic(sum)) return spread_of_factors(t, sum).length;
  return sum == SUM_MODEL ? 1 : t.blocks();
}

void Batch::make_rounds() {
  const int n = int(layers_.size());
  for (Layer& l : layers_)
    if (l.f) scratch_ += scratch_of(l, nullptr);
  int most = 0;  // of tensors, since one without layers here is asked about elsewhere
  for (const Tensor& t : tensors_) most = std::max(most, t.rounds());
  own_norms_first_ = true;
  const auto add = [&](Work work) {
    Round round;
    round.answers = work;
    if (work.kind == MEASURE && work.round == 0) add_stage(round.stages, {PREPARE}, 0, n, false);
    add_stage(round.stages, work, 0, n, work.round % 2 == 1);
    for (int i = 0; i < tensors(); i++) request(round, i, work);
    if (!round.requests.empty()) rounds_.push_back(std::move(round));
  };
  add({OWN}), add({MODEL});
  for (int j = 0; j < most; j++) add({MEASURE, j});
  add_stage(stages_, {STORE}, 0, n, false);
  add_stage(stages_, {APPLY}, 0, n, false);
}

// Adds what a tensor requests in this round.
void Batch::request(Round& round, int tensor, Work work) const {
  const Tensor& t = tensors_[size_t(tensor)];
  const int stage = work.kind == MEASURE ? 2 + work.round : work.kind;
  auto add = [&, which = 0](Sum sum, int place) mutable {
    round.requests.push_back({tensor, stage, which++, sum, place, round.length, length_of(t, sum)});
    round.length += round.requests.back().length;
  };
  if (work.kind == OWN && t.form.clips_own) add(SUM_OWN, 0);
  if (work.kind == MODEL && t.form.clips_model) add(SUM_MODEL, 0);
  if (work.kind != MEASURE || work.round >= t.rounds()) return;
  if (t.factored() && work.round == 0)
    for (Sum sum : {SUM_ROWS, SUM_COLS, SUM_G, SUM_R}) add(sum, 0);
  for (int i = 0; i < program(tensor).sums_of(t.factored(), work.round); i++) add(SUM_TOTAL, i);
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
  sums_.assign(size_t(round.length), 0);
  for (const Request& request : round.requests) exchange(request, false);
  return true;
}

void Batch::apply() {
  carry_out(stages_);
  stats_.swap(reported_);
}

void Batch::leave() {
  round_ = 0;
  scratchpad_.reset();
}

// Moves the numbers of one request from the layers to `sums_` or back.
void Batch::exchange(const Request& request, bool back) {
  double* to = sums_.data() + request.at;
  if (request.sum == SUM_MODEL && !back) *to = squares(request.tensor);
  int64_t i = 0;
  for (Layer& l : layers_of(request.tensor)) {
    if (request.sum != SUM_MODEL && !is_statistic(request.sum)) exchange_number(l.partial[request.place], to[i++], back);
    else if (request.sum != SUM_MODEL) exchange_factors(l, request.sum, to, base_[index(l)], back);
    else if (back) l.clip_model = shorter(*to, l.gradient->model);
  }
}

}  // namespace layerwise
