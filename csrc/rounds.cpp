// A batch that stops where its rules yield, so that other processes can complete its sums. Nothing is written before `apply`.
#include "batch.hpp"
#include "dispatch.hpp"
#include "lines.hpp"
#include "stages.hpp"

namespace layerwise {

void Batch::make_rounds(const Rounds& rounds) {
  const int n = int(layers_.size());
  for (Layer& l : layers_) scratch_ += scratch_of(l, nullptr);
  own_norms_first_ = true;
  for (const auto& asked : rounds) {
    Round round;
    const int stage = std::get<1>(asked.at(0));
    round.answers = stage < MEASURE ? Work{Kind(stage)} : Work{MEASURE, stage - MEASURE};
    if (stage == MEASURE) add_stage(round.stages, {PREPARE}, 0, n, false);
    add_stage(round.stages, round.answers, 0, n, round.answers.round % 2 == 1);
    for (const auto& [tensor, of_stage, which, length] : asked) {
      round.requests.push_back({tensor, of_stage, which, round.length});
      round.length += length;
    }
    rounds_.push_back(std::move(round));
  }
  add_stage(stages_, {APPLY}, 0, n, false);
}

bool Batch::measure() {
  if (round_ == 0) {
    scratchpad_ = std::make_unique<Scratchpad>(scratch_);
    int64_t used = 0;
    for (Layer& l : layers_) used += scratch_of(l, scratchpad_->at() + used);
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
  if (request.stage == MODEL && !back) *to = squares(request.tensor);
  const int of_lines = request.stage == MEASURE && program(request.tensor).lines ? OF_LINES : 0;
  for (Layer& l : layers_of(request.tensor)) {
    if (request.stage != MODEL && request.which < of_lines) exchange_lines(l, request.which, to, base_[index(l)], back);
    else if (request.stage != MODEL) exchange_number(l.partial[request.which - of_lines], *to++, back);
    else if (back) l.clip_model = shorter(*to, l.gradient->model);
  }
}

}  // namespace layerwise
