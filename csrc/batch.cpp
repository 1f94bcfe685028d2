#include "batch.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "compiler.hpp"
#include "converted.hpp"
#include "dispatch.hpp"
#include "lines.hpp"
#include "stages.hpp"
#include "system.hpp"
#include "threads.hpp"

namespace layerwise {
namespace {

constexpr int64_t CHUNK = 1 << 14;         // elements that a thread takes at a time
constexpr int64_t EACH = 1 << 15;           // elements: no thread is woken for fewer

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

#include "numbers.hpp"

// Bytes that are still in the shared cache when a group's next stage asks for them: a part of it, since others use it
// too.
int64_t cached_bytes() {
  static const int64_t size = system::last_cache();
  return std::clamp<int64_t>(size > 0 ? size / 4 : 8 << 20, 4 << 20, 16 << 20);
}

#include "kernels/convert.hpp"

}  // namespace

Batch::Batch(std::vector<Tensor> tensors, const std::optional<Rounds>& rounds)
    : tensors_(std::move(tensors)), gradients_(tensors_.size()), stops_(rounds) {
  if (stops_)
    for (Tensor& t : tensors_) name_sums_of_lines(t);
  for (int i = 0; i < this->tensors(); i++) {
    number_elements(tensors_[size_t(i)]);
    add_layers(i);
    first_number_.push_back(numbers_.size());
    numbers_.resize(numbers_.size() + size_t(program(i).numbers));
  }
  first_layer_.push_back(int(layers_.size()));
  int64_t room = 0;
  for (Layer& l : layers_) room += l.chunks * SUMS;
  partial_.resize(size_t(room));
  left_ = std::make_unique<std::atomic<int64_t>[]>(layers_.size());
  double* partial = partial_.data();
  for (int i = 0; i < this->tensors(); i++)
    for (Layer& l : layers_of(i)) {
      l.k = numbers_.data() + first_number_[size_t(i)], l.gradient = &gradients_[size_t(i)];
      l.lines = lines_[index(l)].get(), l.storage = storage_[index(l)].get();
      l.partial = partial, partial += l.chunks * SUMS, count_ += l.count;
    }
  stats_.resize(layers_.size());
  reported_.resize(layers_.size());
  stops_ ? make_rounds(*rounds) : make_stages();
}

Batch::~Batch() = default;

void Batch::add_layers(int tensor) {
  const Tensor& t = tensors_[size_t(tensor)];
  first_layer_.push_back(int(layers_.size()));
  std::array<int64_t, ROLES> base{};
  for (int64_t b = 0; b < t.blocks(); b++) {
    base.fill(0);
    int64_t rest = b;
    for (size_t i = t.block_dims.size(); i-- > 0;) {
      const size_t d = size_t(t.block_dims[i]);
      for (size_t r = 0; r < ROLES; r++)
        if (t.arrays[r].present) base[r] += rest % t.shape[d] * t.arrays[r].stride[d];
      rest /= t.shape[d];
    }
    Layer layer{};
    lay_out(layer, t);
    add_storage(layer, t, base);
    layers_.push_back(layer);
    base_.push_back(base);
  }
}

void Batch::lay_out(Layer& l, const Tensor& t) {
  std::vector<Dim> all, dims;
  l.program = t.form.program;
  l.clips_own = t.form.clips_own, l.clips_model = t.form.clips_model;
  l.count = 1, l.entries = 1;
  for (size_t d = 0; d < t.shape.size(); d++) {
    if (has(t.block_dims, d)) continue;
    l.count *= t.shape[d], l.entries *= double(t.full_shape[d]);
    if (t.shape[d] == 1) continue;
    Dim dim{t.shape[d], has(t.form.rows, d) ? ROW : has(t.form.cols, d) ? COL : P, {}};
    for (size_t r = 0; r < ROLES; r++)
      if (t.arrays[r].present) dim.stride[r] = t.arrays[r].stride[d];
    all.push_back(dim);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::abs(a.stride[ROLE_P]) > std::abs(b.stride[ROLE_P]);
  });
  for (const auto& dim : all) {
    bool joins = !dims.empty() && dims.back().kind == dim.kind;
    for (size_t r = 0; joins && r < ROLES; r++) joins = dims.back().stride[r] == dim.stride[r] * dim.size;
    if (!joins) dims.push_back(dim);
    else dims.back().size *= dim.size, std::copy_n(dim.stride, size_t(ROLES), dims.back().stride);
  }
  if (dims.empty()) {
    Dim one{1, P, {}};
    for (size_t r = 0; r < ARRAYS; r++) one.stride[r] = size_of(t.arrays[r].dtype);
    dims.push_back(one);
  }
  if (dims.size() > MAX_DIMS) throw std::length_error("more dimensions that do not lie in a row than the engine takes");

  l.dims = uint8_t(dims.size());
  l.wide = t.arrays[ROLE_P].dtype == F64;
  const Dtype own = l.wide ? F64 : F32;
  for (int r = 0; r < ARRAYS; r++) {
    l.dtype[r] = t.arrays[size_t(r)].dtype;
    l.direct[r] = !t.arrays[size_t(r)].present;
  }
  for (int i = 0; i < LAYER_STATES; i++) l.own_dtype[i] = t.arrays[size_t(ROLE_L0 + i)].dtype;
  for (size_t d = 0; d < dims.size(); d++) {
    l.size[d] = dims[d].size;
    for (size_t r = 0; r < ARRAYS; r++) l.stride[d][r] = dims[d].stride[r];
    l.stride[d][INDEX] = dims[d].stride[ROLE_INDEX], l.stride[d][GROUP] = dims[d].stride[ROLE_GROUP];
  }

  lines_.push_back(make_lines(l, t, dims));
  int64_t want = std::max<int64_t>(ceil_div(l.count, CHUNK), 1), most = 0;
  for (size_t d = 0; d < dims.size(); d++) {
    const int64_t pieces = std::min({want, std::max<int64_t>(l.size[d], 1), most_pieces(l, lines_.back().get(), int(d))});
    if (pieces > most) most = pieces, l.split = uint8_t(d);
  }
  l.step = std::max<int64_t>(ceil_div(l.size[l.split], most), 1);
  if (dims.size() == 1) l.step = CHUNK;
  if (t.form.formats && t.form.formats->group() && l.split + 1 == l.dims) l.step = ceil_div(l.step, GROUP_SIZE) * GROUP_SIZE;
  l.chunks = std::max<int64_t>(ceil_div(l.size[l.split], l.step), 1);
  l.each = l.size[l.split] ? l.step * (l.count / l.size[l.split]) : 0;
  bool rounded = false;
  for (int k = S0; k <= S3; k++) rounded |= t.arrays[size_t(k)].present && l.dtype[k] != own;
  // State in fewer bits can be stored at once if nothing reads it again. To spare the second conversion is worth half of
  // the last cache.
  rounded &= l.program->keeps >= 0;
  l.caches = !stops_ && !l.wide && l.program->caches > 0 && !(rounded && l.program->rereads) &&
             (rounded ? cached_of(l) <= 2 * cached_bytes() : is_whole(l) && l.count <= CHUNK);
  l.late = stops_ || l.wide || (rounded && !l.caches);
}

// Gives every element its number in the whole tensor, and the one that it has where each row is filled up to whole groups.
// Without either, the layout is that of plain arrays, and sums are added up in the same order.
void Batch::number_elements(Tensor& t) {
  if (!t.form.formats) return;
  const Formats& formats = *t.form.formats;
  if (formats.draw()) t.arrays[ROLE_INDEX] = {true, F32, formats.stride};
  if (!formats.group()) return;
  int64_t row = 1;
  std::vector<int64_t> stride(t.shape.size());
  for (size_t d = t.shape.size(); d-- > 0;) {
    if (int(d) + 1 == formats.row_dims) row = ceil_div(row, GROUP_SIZE) * GROUP_SIZE;
    stride[d] = row, row *= t.shape[d];
  }
  t.arrays[ROLE_GROUP] = {true, F32, stride};
}

void Batch::add_storage(Layer& l, const Tensor& t, const std::array<int64_t, ROLES>& base) {
  storage_.push_back(nullptr);
  if (!t.form.formats) return;
  const Formats& formats = *t.form.formats;
  storage_.back() = std::make_unique<Storage>();
  Storage& storage = *storage_.back();
  storage.index = formats.index + base[ROLE_INDEX], storage.group = base[ROLE_GROUP];
  bool in_a_row = storage.group % GROUP_SIZE == 0;
  for (int k = 0; k < ARRAYS; k++) {
    const Formats::One& one = formats.of[size_t(k)];
    storage.of[k] = {one.format, one.draws, I16, {one.key[0], one.key[1]}, {}, 0, nullptr};
    if (one.format != GROUPED) continue;
    in_a_row &= l.dims == 0 || l.stride[l.dims - 1][k] == 1 || l.size[l.dims - 1] == 1;
  }
  for (int d = 0; d < l.dims; d++)
    in_a_row &= d + 1 == l.dims ? l.stride[d][GROUP] == 1 || l.size[d] == 1 : l.stride[d][GROUP] % GROUP_SIZE == 0;
  if (formats.group() && !in_a_row) throw std::length_error("its groups of 64 elements do not lie in a row");
}

int64_t Batch::cached_of(const Layer& l) { return ceil_div(l.program->caches * l.count * (l.wide ? 8 : 4), 64) * 64; }

// Bytes of scratch that a layer needs from one stage to another, which begin `at`.
int64_t Batch::scratch_of(Layer& l, char* at) {
  const int64_t of_lines = place_lines(l, at);
  if (!l.caches || is_whole(l)) return of_lines;
  l.cached = at ? at + of_lines : nullptr;
  return of_lines + cached_of(l);
}

void Batch::add_stage(Stages& to, Work work, int first, int last, bool backwards) {
  auto stage = std::make_unique<Stage>();
  stage->work = work, stage->backwards = backwards, stage->first = first, stage->last = last;
  int64_t bundled = 0;
  for (int i = first; i < last; i++) {
    const Layer& l = layers_[size_t(i)];
    if (!takes_part(l, work)) continue;
    if (l.chunks > 1) {
      for (int64_t s = 0; s < (work.kind == PREPARE ? 1 : l.chunks); s++) stage->tasks.push_back({i, i + 1, s});
    } else if (!stage->tasks.empty() && stage->tasks.back().chunk < 0 && stage->tasks.back().last == i &&
               bundled + l.count <= CHUNK) {
      stage->tasks.back().last = i + 1;
      bundled += l.count;
    } else {
      stage->tasks.push_back({i, i + 1, -1});
      bundled = l.count;
    }
  }
  if (!stage->tasks.empty()) to.push_back(std::move(stage));
}

bool Batch::takes_part(const Layer& l, Work work) const {
  // The first measuring task sees to all of a small layer, unless something else is waited for.
  const bool whole = is_whole(l);
  switch (work.kind) {
    case OWN: return l.clips_own && (!whole || own_norms_first_);
    case MODEL: return l.clips_model;
    case PREPARE: return l.lines && !whole;
    case MEASURE: return whole ? work.round == 0 : work.round < l.program->rounds;
    case APPLY: return !whole;
  }
  return false;
}

void Batch::make_stages() {
  bool model = false, own = false;
  for (const Layer& l : layers_) model |= l.clips_model, own |= l.clips_own;
  own_norms_first_ = model;
  const int n = int(layers_.size());
  if (model) {
    if (own) add_stage(stages_, {OWN}, 0, n, false);
    add_stage(stages_, {MODEL}, 0, n, false);
  }
  const int64_t budget = cached_bytes();
  for (int first = 0, last; first < n; first = last) {
    int64_t bytes = 0, scratch = 0;
    for (last = first; last < n; last++) {
      Layer& l = layers_[size_t(last)];
      int64_t own_bytes = 0;
      for (int r = 0; r < ARRAYS; r++) own_bytes += l.count * (l.direct[r] ? 0 : size_of(l.dtype[r]));
      if (last > first && bytes + own_bytes > budget) break;
      bytes += own_bytes;
      scratch += scratch_of(l, nullptr);
    }
    scratch_ = std::max(scratch_, scratch);
    if (own && !model) add_stage(stages_, {OWN}, first, last, false);
    add_stage(stages_, {PREPARE}, first, last, false);
    // Every pass begins where the one before ended, as far as the caches still have it.
    int rounds = 0;
    for (int i = first; i < last; i++)
      if (!is_whole(layers_[size_t(i)])) rounds = std::max(rounds, layers_[size_t(i)].program->rounds);
    for (int j = 0; j < std::max(rounds, 1); j++) add_stage(stages_, {MEASURE, j}, first, last, j % 2 == 1);
    add_stage(stages_, {APPLY}, first, last, rounds % 2 == 1);
  }
}

void Batch::place(int tensor, Role role, char* address) {
  for (Layer& l : layers_of(tensor)) {
    char* at = address + base_[index(l)][role];
    if (role == ROLE_ROWS || role == ROLE_COLUMNS) l.lines->of[role - ROLE_ROWS].stored = at;
    else if (role >= ROLE_L0) l.own[role - ROLE_L0] = at;
    else {
      const int64_t size = size_of(l.dtype[role]);
      l.data[role] = at;
      l.in_row[role] = l.stride[l.dims - 1][role] == size && reinterpret_cast<uintptr_t>(at) % size_t(size) == 0;
      for (int d = 0; d < l.dims - 1; d++) l.in_row[role] &= l.stride[d][role] % size == 0;
      l.direct[role] = l.in_row[role] && l.dtype[role] == (l.wide ? F64 : F32);
    }
  }
}

void Batch::place_beside(int tensor, Operand array, Dtype dtype, char* address) {
  for (Layer& l : layers_of(tensor)) {
    Stored& stored = storage_[index(l)]->of[array];
    const int64_t first = base_[index(l)][array];
    stored.beside_dtype = dtype;
    stored.beside = stored.format == SPLIT ? address + first / 2 * size_of(dtype) : address;
  }
}

void Batch::now(int tensor, const double* numbers) {
  std::memcpy(&gradients_[size_t(tensor)], numbers, sizeof(GradientNumbers));
  std::memcpy(numbers_.data() + first_number_[size_t(tensor)], numbers + OF_GRADIENT,
              size_t(program(tensor).numbers) * sizeof(double));
  now_as(tensor, tensor);
}

void Batch::now_as(int tensor, int other) {
  const double* k = numbers_.data() + first_number_[size_t(other)];
  const GradientNumbers& gradient = gradients_[size_t(other)];
  const bool prepared = gradient.prepares();
  for (Layer& l : layers_of(tensor)) {
    l.k = k, l.gradient = &gradient;
    l.clip_own = l.clip_model = 1;
    l.prepared = prepared;
    if (l.storage) draw(*storage_[index(l)], uint64_t(gradient.t));
  }
}

void Batch::start() {
  for (size_t i = 0; i < layers_.size(); i++) {
    Layer& l = layers_[i];
    reported_[i].fill(0);
    l.low = kernels().low && !l.wide && !l.prepared && l.dtype[P] == BF16 && l.dtype[G] == BF16 && l.in_row[P] && l.in_row[G];
    if (l.storage) l.low &= l.storage->of[P].plain() || (l.storage->of[P].format == PLAIN && l.stride[l.dims - 1][INDEX] == 1);
    if (l.program->rounds == 0) l.program->answer[0](l.k, l.totals, remembered(l).data(), l.answers, reported_[i].data());
  }
}

void Batch::step(const double* model) {
  const Scratchpad scratch(scratch_);
  char* at = scratch.at();
  for (auto& stage : stages_)
    if (stage->work.kind == MEASURE && stage->work.round == 0) {
      int64_t used = 0;
      for (int i = stage->first; i < stage->last; i++)
        used += scratch_of(layers_[size_t(i)], at + used);
    }
  model_ = model;
  if (model && (stages_.empty() || stages_.front()->work.kind != OWN)) answer_model();
  carry_out(stages_);
  stats_.swap(reported_);
}

void Batch::carry_out(Stages& stages) {
  const int threads = count_ < alone ? 1 : int(std::clamp<int64_t>(count_ / EACH, 1, num_threads()));
  for (auto& stage : stages) {
    if (int(stage->parts.size()) != threads) stage->parts = std::vector<Stage::Part>(size_t(threads));
    for (auto& part : stage->parts) part.done.store(0, std::memory_order_relaxed);
    stage->unfinished.store(int(stage->tasks.size()), std::memory_order_relaxed);
    stage->over.store(0, std::memory_order_relaxed);
  }
  for (size_t i = 0; i < layers_.size(); i++) left_[i].store(layers_[i].chunks, std::memory_order_relaxed);
  come_.store(0, std::memory_order_relaxed);
  running_ = &stages;
  run_on(threads, work, this);
}

void Batch::work(void* self) {
  Batch& batch = *static_cast<Batch*>(self);
  const size_t own = size_t(batch.come_.fetch_add(1, std::memory_order_relaxed));
  for (auto& stage : *batch.running_) {
    if (stage->work.kind == MODEL && batch.model_) continue;
    for (size_t k = 0; k < stage->parts.size(); k++) batch.work_on(*stage, (own + k) % stage->parts.size());
    wait_for(stage->over);
  }
}

void Batch::work_on(Stage& stage, size_t part) {
  const size_t n = stage.tasks.size(), parts = stage.parts.size();
  const int first = int(n * part / parts), last = int(n * (part + 1) / parts);
  for (int i; (i = first + stage.parts[part].done.fetch_add(1, std::memory_order_relaxed)) < last;) {
    carry_out(stage.tasks[size_t(stage.backwards ? first + last - 1 - i : i)], stage.work);
    if (stage.unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      if (!stops_ && stage.work.kind == (model_ ? OWN : MODEL)) answer_model();  // own norms are those before it
      raise(stage.over);
    }
  }
}

void Batch::carry_out(const Task& task, Work work) {
  if (task.chunk >= 0) return carry_out(layers_[size_t(task.first)], work, task.chunk);
  alignas(64) static thread_local char cached[2 * CHUNK * sizeof(double)];
  for (int i = task.first; i < task.last; i++) {
    Layer& l = layers_[size_t(i)];
    if (work.kind != MEASURE || stops_) {
      carry_out(l, work, 0);
      continue;
    }
    l.cached = cached;
    if (l.clips_own && !own_norms_first_) carry_out(l, {OWN}, 0);
    carry_out(l, {PREPARE}, 0);
    for (int j = 0; j < l.program->rounds; j++) carry_out(l, {MEASURE, j}, 0);
    carry_out(l, {APPLY}, 0);
  }
}

void Batch::carry_out(Layer& l, Work work, int64_t chunk) {
  const Kernels& all = kernels();
  const Functions& k = l.low ? *all.low : l.wide ? *all.wide : *all.narrow;
  const Passes& passes = *l.program->passes[k.set];
  double* sums = l.partial + SUMS * chunk;
  if (work.kind == PREPARE) return clear_lines(l);
  if (work.kind == APPLY) {
    passes.apply(l, chunk);
    if (chunk == 0) remember(l);  // state that none of its chunks reads
    return;
  }
  std::fill_n(sums, SUMS, 0.0);
  if (work.kind == MEASURE) passes.measure[work.round](l, chunk, sums);
  else k.square(l, chunk, sums);
  auto& left = left_[index(l)];
  if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    left.store(l.chunks, std::memory_order_relaxed);
    add_up_chunks(l, work);
    if (!stops_) answer(l, work);
  }
}

// Called by the thread that has done the last chunk of a layer.
void Batch::add_up_chunks(Layer& l, Work work) {
  add_up(l.partial, sums_of(l, work), l.chunks, SUMS);
  if (work.kind == MEASURE && work.round == 0) add_up_lines(l);
}

void Batch::answer(Layer& l, Work work) {
  if (work.kind == MODEL) return;  // every layer's part is waited for
  if (work.kind == OWN) l.clip_own = shorter(l.partial[0], l.gradient->own);
  if (work.kind != MEASURE) return;
  const int round = work.round, first = l.program->first(round), known = first + l.program->sums[round];
  std::copy_n(l.partial, l.program->sums[round], l.totals + first);
  for (int i = first; i < known; i++)
    if (is_mean(l.program->totals[i])) l.totals[i] /= at_least(l.entries, 1);
  if (round == 0) answer_lines(l, !stops_);
  l.program->answer[round](l.k, l.totals + known, remembered(l).data(), l.answers, reported_[index(l)].data());
}

// The numbers of a layer's state as the step before left them.
std::array<double, LAYER_STATES> Batch::remembered(const Layer& l) {
  std::array<double, LAYER_STATES> found{};
  for (int i = 0; i < l.program->layer_states; i++) load<double>(l.own_dtype[i], l.own[i], 0, 1, &found[size_t(i)]);
  return found;
}

// Stores them as this step leaves them, made of all totals, and those of lines.
void Batch::remember(Layer& l) const {
  if (stops_) store_lines(l);
  if (l.program->layer_states == 0) return;
  double made[LAYER_STATES] = {};
  l.program->remember(l.k, l.totals + l.program->first(l.program->rounds), remembered(l).data(), made);
  for (int i = 0; i < l.program->layer_states; i++) store<double>(l.own_dtype[i], l.own[i], 0, 1, &made[i]);
}

double Batch::squares(int tensor) {
  double sum = 0;
  for (const Layer& l : layers_of(tensor))
    if (l.clips_model) sum += l.partial[0];
  return sum;
}

// Added up tensor by tensor, as it is where others complete the sum.
void Batch::answer_model() {
  double sum = 0;
  for (int t = 0; !model_ && t < tensors(); t++) sum += squares(t);
  if (model_) sum = *model_;
  for (Layer& l : layers_)
    if (l.clips_model) l.clip_model = shorter(sum, l.gradient->model);
}

std::vector<double> Batch::measured(int tensor, int which) {
  std::vector<double> found;
  for (const Layer& l : layers_of(tensor)) found.push_back(stats_[index(l)][size_t(which)]);
  return found;
}

}  // namespace layerwise
