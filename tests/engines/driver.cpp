// The kernels and the threads without Python, for the sanitizers: tensors of all kinds stepped by several callers at
// once, with any number of threads, in forks, on every instruction set, in one go and in rounds. Bit for bit the same
// each time, or it says so.
#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "../../csrc/batch.hpp"
#include "../../csrc/dispatch.hpp"
#include "../../csrc/threads.hpp"

using namespace layerwise;

namespace {

// Every array in memory of its own and of exactly its size, so that a step beside it is noticed.
struct Memory {
  std::vector<std::vector<char>> arrays;
  char* take(size_t bytes) { return arrays.emplace_back(bytes).data(); }
};

void fill(char* at, Dtype dtype, int64_t n, std::mt19937& draw) {
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < n; i++) {
    const float x = normal(draw);
    const double wide = x;
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const auto low = uint16_t(bits >> 16), half = uint16_t(0x3000 + (bits & 0xfff));
    const void* from = dtype == F64 ? (const void*)&wide : dtype == F32 ? &x : dtype == BF16 ? (const void*)&low : &half;
    std::memcpy(at + i * size_of(dtype), from, size_t(size_of(dtype)));
  }
}

std::vector<int64_t> strides(const std::vector<int64_t>& shape, int64_t unit) {
  std::vector<int64_t> found(shape.size());
  for (size_t d = shape.size(); d-- > 0; unit *= std::max<int64_t>(shape[d], 1)) found[d] = unit;
  return found;
}

// Numbers of three steps of one tensor: of its gradient, then its program's. Those mean nothing; many are 0 or 1, which
// kernels choose by.
struct Numbers {
  static constexpr int STEPS = 3;
  std::vector<double> of[STEPS];

  Numbers(std::mt19937& draw, const Form& form) {
    const auto pick = [&](int n) { return int(draw() % unsigned(n)); };
    std::uniform_real_distribution<double> share(0.05, 1);
    const GradientNumbers usual{1, 1, pick(2) ? 1. : -1., -NO_BOUND, pick(2) ? 0.5 : NO_BOUND,
                                form.clips_own ? 0.3 : NO_BOUND, form.clips_model ? 0.5 : NO_BOUND};
    for (int t = 0; t < STEPS; t++) {
      const double scale = t == 1 ? 8 : usual.scale;
      of[t] = {t + 1., scale, usual.sign, usual.low, usual.high, usual.own, usual.model};
      for (int i = 0; i < form.program->numbers; i++) {
        const int kind = pick(6);
        of[t].push_back(kind < 2 ? kind : share(draw));
      }
    }
  }
};

// What engines/programs.py requests of these tensors, stage by stage.
Rounds requests_of(const std::vector<Tensor>& tensors) {
  Rounds found(2 + ROUNDS);
  for (int i = 0; i < int(tensors.size()); i++) {
    const Tensor& t = tensors[size_t(i)];
    const auto ask = [&](int stage, const std::vector<int>& summed = {}, const std::vector<int>& too = {}) {
      int64_t length = summed.empty() ? t.blocks() : 1;
      for (size_t d = 0; !summed.empty() && d < t.shape.size(); d++)
        if (!has(summed, d) && !has(too, d)) length *= t.shape[d];
      const auto of_this = [&](const auto& one) { return std::get<0>(one) == i; };
      auto& all = found[size_t(stage)];
      all.emplace_back(i, stage, int(std::count_if(all.begin(), all.end(), of_this)), stage == 1 ? 1 : length);
    };
    if (t.form.clips_own) ask(0);
    if (t.form.clips_model) ask(1);
    if (t.form.program->lines) ask(2, t.form.cols), ask(2, t.form.rows);
    for (int j = 0; t.form.program->lines && j < 2; j++) ask(2, t.form.rows, t.form.cols);
    for (int j = 0; j < t.form.program->rounds; j++)
      for (int k = 0; k < t.form.program->sums[j]; k++) ask(2 + j);
  }
  std::erase_if(found, [](const auto& one) { return one.empty(); });
  return found;
}

struct World {
  Memory memory;
  std::vector<Tensor> tensors;
  std::vector<Numbers> numbers;
  std::vector<std::vector<std::pair<Role, char*>>> places;
  struct Beside {
    Operand of;
    Dtype dtype;
    char* at;
  };
  std::vector<std::vector<Beside>> beside;

  using Shapes = std::vector<std::vector<int64_t>>;

  void add(std::mt19937& draw, const Program& program, int kind, const Shapes& shapes) {
    const auto pick = [&](int n) { return int(draw() % unsigned(n)); };
    Tensor t;
    do t.shape = t.full_shape = shapes[size_t(pick(int(shapes.size())))];
    while (program.lines && t.shape.size() < 2);
    t.form.program = &program, t.form.clips_own = kind & 2, t.form.clips_model = kind & 1;
    const int rank = int(t.shape.size());
    if (program.lines) t.form.rows = {rank - 2}, t.form.cols = {rank - 1};
    if (rank == 4 && pick(2)) t.block_dims = {pick(2)};
    const Dtype p = Dtype(pick(4)), state = p == F64 ? F64 : pick(3) ? F32 : BF16;
    places.emplace_back();
    const auto have = [&](Role role, Dtype dtype) {
      std::vector<int64_t> shape = t.shape;
      for (int d = 0; role >= ROLE_L0 && d < rank; d++)
        if (t.block_dims != std::vector<int>{d}) shape[size_t(d)] = 1;
      for (int d : role == ROLE_ROWS ? t.form.cols : role == ROLE_COLUMNS ? t.form.rows : std::vector<int>{})
        shape[size_t(d)] = 1;
      int64_t n = 1;
      for (int64_t one : shape) n *= one;
      t.arrays[role] = {true, dtype, strides(shape, size_of(dtype))};
      for (size_t d = 0; d < shape.size(); d++)
        if (shape[d] != t.shape[d]) t.arrays[role].stride[d] = 0;
      char* at = memory.take(size_t(n * size_of(dtype)) + 1) + (kind & 4 ? 1 : 0);  // perhaps at an odd address
      if (role <= ROLE_G) fill(at, dtype, n, draw);
      places.back().emplace_back(role, at);
    };
    Formats formats;
    const bool stored = pick(2), grouped = stored && rank <= 2 && pick(2);
    formats.row_dims = rank > 1, formats.index = pick(2) ? (int64_t(1) << 32) - 50 : 0, formats.stride = strides(t.shape, 1);
    beside.emplace_back();
    const auto have_beside = [&](Operand of, Dtype dtype, int64_t n) {
      beside.back().push_back({of, dtype, memory.take(size_t(n * size_of(dtype)) + 1) + (kind & 4 ? 1 : 0)});
    };
    int64_t count = 1, rows = 1, row = 1;
    for (int d = 0; d < rank; d++) count *= t.shape[size_t(d)], (d < formats.row_dims ? rows : row) *= t.shape[size_t(d)];
    if (stored && (p == BF16 || p == F16)) {
      const int form = pick(4);
      formats.of[P] = {form < 3 ? SPLIT : PLAIN, form == 1 || form == 3, {uint32_t(draw()), uint32_t(draw())}};
      if (form < 3) have_beside(P, form == 2 ? I16 : I8, count);
    }
    have(ROLE_P, p), have(ROLE_G, pick(2) ? p : Dtype(pick(4)));
    if (program.lines) have(ROLE_ROWS, state), have(ROLE_COLUMNS, state);
    for (int i = 0; i < program.states; i++) {
      const Operand of = Operand(S0 + i);
      if (grouped) formats.of[of] = {GROUPED, false, {}}, have_beside(of, F32, rows * ((row + 63) / 64));
      else if (stored && state == BF16) formats.of[of] = {PLAIN, true, {uint32_t(draw()), uint32_t(draw())}};
      have(Role(ROLE_S0 + i), grouped ? i == 1 ? U8 : I8 : state);
    }
    for (int i = 0; i < program.layer_states; i++) have(Role(ROLE_L0 + i), state);
    if (stored) t.form.formats = formats;
    numbers.emplace_back(draw, t.form);
    tensors.push_back(t);
  }

  explicit World(unsigned seed) {
    const Shapes shapes = {{}, {0, 3}, {17}, {40000}, {300, 170}, {3, 5, 7, 11}, {2, 20000}};
    std::mt19937 draw(seed);
    for_programs([&](const Program& program) { add(draw, program, int(seed % 8), shapes); });
  }

  // One tensor without elements, for which a step has no memory of its own.
  World(unsigned seed, const Program& program) {
    std::mt19937 draw(seed);
    add(draw, program, int(seed % 8), {{0, 0}});
  }

  // In rounds where nobody else has sums to add. Each step is given up once before it is finished.
  static void step(Batch& batch, bool in_rounds) {
    if (!in_rounds) return batch.step();
    for (bool finishes : {false, true}) {
      while (batch.measure() && finishes) {}
      if (finishes) batch.apply();
      batch.leave();
    }
  }

  std::vector<std::vector<char>> walk(bool in_rounds) {
    Batch batch(tensors, in_rounds ? std::optional(requests_of(tensors)) : std::nullopt);
    for (int t = 0; t < Numbers::STEPS; t++) {
      for (size_t i = 0; i < tensors.size(); i++) {
        for (auto [role, at] : places[i]) batch.place(int(i), role, at);
        for (auto [of, dtype, at] : beside[i]) batch.place_beside(int(i), of, dtype, at);
        batch.now(int(i), numbers[i].of[t].data());
      }
      batch.start();
      step(batch, in_rounds);
    }
    return memory.arrays;
  }
};

bool same(unsigned seed, bool in_rounds, const std::vector<std::vector<char>>& expected) {
  if (World(seed).walk(in_rounds) == expected) return true;
  std::fprintf(stderr, "seed %u: not the same bit for bit\n", seed);
  return false;
}

// Whether the same comes out in a forked process, where a system forks.
bool same_in_fork(unsigned seed, bool in_rounds, const std::vector<std::vector<char>>& expected) {
#ifdef _WIN32
  return (void)seed, (void)in_rounds, (void)expected, true;
#else
  const pid_t child = fork();
  if (child == 0) _exit(same(seed, in_rounds, expected) ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  Batch::alone = 1 << 16;  // so that small lists have several threads
  const unsigned seeds = argc > 1 ? unsigned(std::atoi(argv[1])) : 48;
  const bool forks = argc <= 2;  // a thread sanitizer does not follow them
  std::atomic<bool> fine = true;
  for (const Kernels* k : available_kernels()) {
    use_kernels(k->name);
    for (unsigned i = 0; i < 2 * seeds; i++) {
      const unsigned seed = i / 2;
      for_programs([&](const Program& program) { World(seed, program).walk(i % 2); });
      const bool in_rounds = i % 2;
      set_num_threads(1);
      const auto expected = World(seed).walk(in_rounds);
      for (int n : {2, 3, 7}) {
        set_num_threads(n);
        std::vector<std::thread> callers;
        for (int k = 1; k < 3; k++) callers.emplace_back([&] { same(seed, in_rounds, expected) || (fine = false); });
        if (!same(seed, in_rounds, expected)) fine = false;
        for (auto& one : callers) one.join();
      }
      if (forks && seed % 12 == 0 && !same_in_fork(seed, in_rounds, expected)) fine = false;
    }
    std::printf("%s: %u lists of tensors\n", k->name, seeds);
  }
  return fine ? 0 : 1;
}
