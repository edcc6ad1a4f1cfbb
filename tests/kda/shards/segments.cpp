// A sequence in parts: what each does to the state, merged, gives the answers and gradients of the whole.
#include "kda/shards/segments.hpp"

#include <fmt/format.h>

#include <array>
#include <barrier>
#include <cstring>
#include <thread>

#include "kda/arithmetic/gpu_words.hpp"
#include "kda/pool/pool.hpp"
#include "kda/regimes/regimes.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"

namespace segments_tests {

using namespace kda_check;
using namespace kda_check::kda;
using numeric::DType;
using test::ProblemSpec;

namespace {

std::vector<ProblemSpec> specs() {
  std::vector<ProblemSpec> list(4);
  list[0].T = 150, list[0].H = 2, list[0].HV = 4, list[0].K = 40, list[0].V = 21;
  list[1] = list[0];
  list[1].qk_l2norm = list[1].beta_sigmoid = list[1].state_v_first = true;
  list[1].gate = Gate::lower_bound;
  list[2] = list[0];
  list[2].beta_sigmoid = list[2].allow_neg_eigval = list[2].qk_l2norm = true;
  list[2].gate = Gate::softplus, list[2].initial_state = false;
  list[3] = test::packed_spec();
  return list;
}

RunOptions options_with(const Problem& problem, DType dtype, const std::vector<std::string>& words) {
  RunOptions options = test::default_options(problem, "chunk", dtype);
  for (const std::string& word : words) set_axis(options.arithmetic, word);
  return options;
}

std::size_t differing(const Answer& a, const Answer& b) {
  return test::differing_bits(a.o, b.o) + test::differing_bits(a.final_state, b.final_state);
}

/// A rank that is a thread.
class ThreadRank : public Ranks {
 public:
  struct Meeting {
    explicit Meeting(std::size_t count) : all(static_cast<std::ptrdiff_t>(count)), data(count) {}
    std::barrier<> all;
    std::vector<const void*> data;
  };
  ThreadRank(Meeting& meeting, std::size_t rank) : meeting_(meeting), rank_(rank) {}
  std::size_t rank() const override { return rank_; }
  std::size_t count() const override { return meeting_.data.size(); }
  void gather_all(const void* own, std::size_t bytes, void* all) override {
    meeting_.data[rank_] = own;
    meeting_.all.arrive_and_wait();
    for (std::size_t rank = 0; rank < count(); ++rank)
      std::memcpy(static_cast<char*>(all) + rank * bytes, meeting_.data[rank], bytes);
    meeting_.all.arrive_and_wait();
  }
  void send(std::size_t, const void*, std::size_t) override {}
  void receive(std::size_t, void*, std::size_t) override {}

 private:
  Meeting& meeting_;
  const std::size_t rank_;
};

/// No decay worth the name: what a part does to its entering state shows to the end.
Problem slow_problem(std::size_t T, std::size_t K) {
  ProblemSpec spec;
  spec.T = T, spec.K = K, spec.V = 12, spec.gate_size = 1e-3, spec.chunk_size = 16;
  return test::with_loss(test::make_problem(spec));
}

}  // namespace

TEST_CASE("parts are whole chunks, and differ by no more than one", "[segments]") {
  RunOptions options;
  options.chunk_size = 16;
  for (const std::size_t length : {0, 1, 16, 17, 64, 150, 1000})
    for (const int wanted : {1, 2, 3, 7, 1024}) {
      options.arithmetic.segments = {SegmentMerge::tree, wanted};
      const Sequence sequence{0, 0, 30, 30 + length};
      const std::size_t parts = parts_of(sequence, options), chunks = (length + 15) / 16;
      CHECK(parts == std::max<std::size_t>(1, std::min<std::size_t>(chunks, wanted)));
      std::size_t at = sequence.begin;
      for (std::size_t part = 0; part < parts; ++part) {
        const TokenRange tokens = part_of(sequence, options, part);
        CHECK(tokens.begin == at);
        at = tokens.end;
        if (part + 1 == parts) continue;
        CHECK((tokens.end - tokens.begin) % 16 == 0);
        const std::size_t own = (tokens.end - tokens.begin) / 16;
        CHECK((own == chunks / parts || own == chunks / parts + 1));
      }
      CHECK(at == sequence.end);
    }
}

TEST_CASE("one part has the bits of a sequence that is not cut, forwards and backwards", "[segments]") {
  for (const ProblemSpec& spec : specs())
    for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16}) {
      const Problem problem = test::with_loss(test::make_problem(spec));
      const RunOptions whole = options_with(problem, dtype, {});
      const Answer answer = run_chunk(problem, whole);
      const GradientTensors gradients = run_chunk_backward(problem, whole);
      for (const char* const word : {"segments=sequential:1", "segments=tree:1"}) {
        const RunOptions options = options_with(problem, dtype, {word});
        CHECK(differing(run_chunk(problem, options), answer) == 0);
        CHECK(test::differing(run_chunk_backward(problem, options), gradients) == 0);
      }
    }
}

TEST_CASE("in fp64 any number of parts, merged either way, is right for every option", "[segments]") {
  for (const ProblemSpec& spec : specs()) {
    const Problem problem = test::make_problem(spec);
    const test::WholeOracle oracle = test::whole_oracle(problem);
    for (const char* const merge : {"sequential", "tree"})
      for (const int parts : {2, 3, 5, 8, 1000}) {
        RunOptions options =
            options_with(problem, DType::fp64, {fmt::format("segments={}:{}", merge, parts)});
        options.chunk_size = 16;
        const Answer answer = run_chunk(problem, options);
        CAPTURE(merge, parts);
        CHECK(test::rms_ratio(answer.o, oracle.o) < 1e-14);
        CHECK(test::rms_ratio(answer.final_state, oracle.final_state) < 1e-14);
      }
  }
}

TEST_CASE("in fp64 gradients of parts are those of the whole for every option", "[segments][backward]") {
  for (const ProblemSpec& spec : specs()) {
    const Problem problem = test::with_loss(test::make_problem(spec));
    const GradientTruths truths = test::gradient_truths(problem, 16);
    const std::vector<std::string> ways[] = {{"segments=sequential:3"},
                                             {"segments=tree:6"},
                                             {"segments=tree:1000"},
                                             {"segments=sequential:2", "scale=q"},
                                             {"segments=sequential:2", "scale=q-late"},
                                             {"segments=tree:4", "scale=output"}};
    for (const std::vector<std::string>& words : ways) {
      RunOptions options = options_with(problem, DType::fp64, words);
      options.chunk_size = 16;
      CAPTURE(words);
      test::check_near(run_chunk_backward(problem, options), truths, 1e-11);
    }
  }
}

TEST_CASE("a tree composes maps from four parts on; before, a state goes through one after the other",
          "[segments]") {
  const Problem problem = slow_problem(320, 24);
  const auto answer = [&](const std::string& segments) {
    return run_chunk(problem, options_with(problem, DType::fp32, {"segments=" + segments}));
  };
  CHECK(differing(answer("sequential:2"), answer("tree:2")) == 0);
  CHECK(differing(answer("sequential:3"), answer("tree:3")) > 0);  // parts 0 and 1 enter part 2 as one
  CHECK(differing(answer("sequential:4"), answer("tree:4")) > 0);
  CHECK(differing(answer("none"), answer("sequential:2")) > 0);  // there is an initial state
  // The state that enters part 1 is the same either way.
  const RunOptions three = options_with(problem, DType::fp32, {"segments=tree:3"});
  const std::size_t row = problem.dimensions().HV * problem.dimensions().V,
                    same = part_of({0, 0, 0, 320}, three, 2).begin * row;
  const Answer tree = answer("tree:3"), sequential = answer("sequential:3");
  for (std::size_t i = 0; i < same; ++i) REQUIRE(tree.o.value(i) == sequential.o.value(i));
}

TEST_CASE("parts change no bit of a problem whose sums are exact", "[segments][regimes]") {
  for (const char* const name : {"onehot_exact:T=330,H=1", "dyadic_exact:T=330,H=1"})
    for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
      const Problem problem = with_inputs_rounded_to(parse_regime(name).build(), dtype);
      const Answer whole = run_chunk(problem, options_with(problem, dtype, {}));
      for (const char* const word : {"segments=sequential:3", "segments=tree:5", "segments=tree:6"}) {
        CAPTURE(name, word, numeric::name_of(dtype));
        CHECK(differing(run_chunk(problem, options_with(problem, dtype, {word})), whole) == 0);
      }
    }
}

TEST_CASE("ranks that exchange the maps of their parts have the states of one that forms them all",
          "[segments][ranks]") {
  constexpr std::size_t count = 5;
  for (const ProblemSpec& spec : specs()) {
    const Problem problem = test::make_problem(spec);
    RunOptions options = options_with(problem, DType::fp32, {"segments=tree:5"});
    options.chunk_size = 16;
    PartStates<float> alone(problem, options);
    form_states(problem, options, 16, alone);
    ThreadRank::Meeting meeting(count);
    std::vector<std::thread> ranks;
    std::array<std::size_t, count> compared{}, differing_states{};
    for (std::size_t rank = 0; rank < count; ++rank)
      ranks.emplace_back([&, rank] {
        ThreadRank own(meeting, rank);
        PartStates<float> states(problem, options, &own);
        form_states(problem, options, 16, states);
        const Dimensions& d = problem.dimensions();
        for (const Sequence& s : problem.sequences())
          for (std::size_t head = 0; head < d.HV && rank > 0 && rank < parts_of(s, options); ++head) {
            const std::size_t bytes = d.K * padded(d.V) * sizeof(float);
            ++compared[rank];
            differing_states[rank] +=
                std::memcmp(states.entering(s, head, rank), alone.entering(s, head, rank), bytes) != 0;
          }
      });
    for (std::thread& rank : ranks) rank.join();
    for (std::size_t rank = 1; rank < count; ++rank) {
      CHECK(compared[rank] > 0);
      CHECK(differing_states[rank] == 0);
    }
  }
}

TEST_CASE("threads change no bit of an answer in parts", "[segments]") {
  for (const ProblemSpec& spec : specs()) {
    const Problem problem = test::with_loss(test::make_problem(spec));
    RunOptions options = options_with(problem, DType::fp32, {"segments=tree:5"});
    options.chunk_size = 16;
    const Answer answer = run_chunk(problem, options);
    const GradientTensors gradients = run_chunk_backward(problem, options);
    options.threads = 3;
    CHECK(differing(run_chunk(problem, options), answer) == 0);
    CHECK(test::differing(run_chunk_backward(problem, options), gradients) == 0);
  }
}

TEST_CASE("of a pack only sequences that have the chunks are cut into all parts", "[segments]") {
  const Problem packed = test::with_loss(test::make_problem(test::packed_spec()));
  RunOptions options = options_with(packed, DType::fp32, {"segments=tree:4"});
  options.chunk_size = 16;
  const Answer together = run_chunk(packed, options);
  const GradientTensors gradients = run_chunk_backward(packed, options);
  options.arithmetic.segments = {SegmentMerge::tree, 3};
  std::size_t of_sequences = 0;
  for (const Sequence& s : packed.sequences()) of_sequences += parts_of(s, options) == 3;
  CHECK(of_sequences > 0);
  CHECK(of_sequences < packed.sequences().size());  // some are too short
  CHECK(differing(run_chunk(packed, options), together) > 0);
  CHECK(test::differing(run_chunk_backward(packed, options), gradients) > 0);
}

TEST_CASE("the maps and the states between parts are rounded where storage says, and only in parts",
          "[segments][storage]") {
  const Problem problem = slow_problem(320, 24);
  const Answer whole = run_chunk(problem, options_with(problem, DType::fp32, {}));
  const auto cut = [&](const std::string& storage) {
    return run_chunk(problem, options_with(problem, DType::fp32, {"storage=" + storage, "segments=tree:5"}));
  };
  const auto backwards = [&](const std::string& storage) {
    return run_chunk_backward(problem,
                              options_with(problem, DType::fp32, {"storage=" + storage, "segments=tree:5"}));
  };
  const Answer kept = cut("none");
  const GradientTensors kept_gradients = backwards("none");
  for (const char* const point : {"transition", "segment_state"})
    for (const char* const format : {"bf16", "fp16", "tf32"}) {
      const std::string storage = fmt::format("{}@{}", format, point);
      CAPTURE(storage);
      CHECK(differing(cut(storage), kept) > 0);
      CHECK(test::differing(backwards(storage), kept_gradients) > 0);
      CHECK(differing(run_chunk(problem, options_with(problem, DType::fp32, {"storage=" + storage})),
                      whole) == 0);
    }
  // FLA stores A in fp32, and multiplies maps in tf32 whatever the dtype.
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const RunOptions options = options_with(problem, dtype, {"storage=fla", "segments=tree:5"});
    const CastPoints casts = cast_points(options.arithmetic, dtype, false, true);
    CHECK(casts.transition == Rounding::tf32);
    CHECK(casts.segment_state == Rounding::none);
  }
  const RunOptions one = options_with(problem, DType::fp32, {"storage=fla"});
  CHECK(cast_points(one.arithmetic, DType::fp32, false, true).transition == Rounding::none);
}

TEST_CASE("products of maps are summed as the arithmetic says", "[segments]") {
  const Problem problem = slow_problem(320, 24);
  const test::WholeOracle oracle = test::whole_oracle(problem);
  for (const char* const word :
       {"reduction=mma:25", "reduction=mma:24", "reduction=pairwise", "reduction=exact",
        "contraction=separate", "update=added", "delta=residual", "fla", "flash-kda"}) {
    const Answer whole = run_chunk(problem, options_with(problem, DType::fp32, {word}));
    const Answer cut = run_chunk(problem, options_with(problem, DType::fp32, {word, "segments=tree:5"}));
    CAPTURE(word);
    CHECK(differing(cut, whole) > 0);
    CHECK(test::rms_ratio(cut.o, oracle.o) < 3 * test::rms_ratio(whole.o, oracle.o));
  }
}

TEST_CASE("every instruction set gives the same bits of a map", "[segments][kernels]") {
  const KernelTables tables = kernel_tables();
  constexpr std::size_t K = 24, stride = padded(K);
  std::vector<float> M(K * stride), x(K * stride);
  for (std::size_t i = 0; i < K; ++i)
    for (std::size_t j = 0; j < K; ++j)
      M[i * stride + j] = static_cast<float>(i * 7 + j * 3) / 31, x[i * stride + j] = 1.f / (1 + i + j);
  for (const char* const word : {"reduction=sequential", "reduction=mma:25", "reduction=tree:32"}) {
    Arithmetic arithmetic;
    set_axis(arithmetic, word);
    const auto product = [&](int table) {
      std::vector<float> y(K * stride);
      tables.table[table]->fp32.map_product[1](
          {operations_of(arithmetic), {}, K, 32, stride, stride, M.data(), x.data(), y.data(), false});
      return y;
    };
    for (int i = 1; i < tables.count; ++i) CHECK(product(i) == product(0));
  }
}

TEST_CASE("stages of a run in parts are those of its own chunks, and may be given", "[segments][stages]") {
  const Problem problem = slow_problem(320, 24);
  RunOptions options = options_with(problem, DType::fp64, {"segments=tree:5"});
  RunOptions whole = options_with(problem, DType::fp64, {});
  StageTensors cut = allocate_stages(problem, options.chunk_size, DType::fp64),
               uncut = allocate_stages(problem, options.chunk_size, DType::fp64);
  options.stages.computed = &cut, whole.stages.computed = &uncut;
  const Answer answer = run_chunk(problem, options);
  run_chunk(problem, whole);
  for (const StageRow& row : stages()) {
    const tensor::Tensor &a = cut[static_cast<std::size_t>(row.stage)],
                         &b = uncut[static_cast<std::size_t>(row.stage)];
    double largest = 0, size = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      largest = std::max(largest, std::abs(a.value(i) - b.value(i))),
      size = std::max(size, std::abs(b.value(i)));
    CAPTURE(row.name);
    CHECK(largest <= 1e-13 * size);
  }
  // Its own stages, given back, are its own answer.
  options.stages.computed = nullptr, options.stages.given = &cut;
  options.stages.use_given.fill(true);
  CHECK(differing(run_chunk(problem, options), answer) == 0);
}

TEST_CASE("segments are a word of the chunk form on the CPU, with a number of parts", "[segments]") {
  Arithmetic arithmetic;
  set_axis(arithmetic, "segments=tree");
  CHECK(arithmetic.segments == Segments{SegmentMerge::tree, 2});
  CHECK(cpu_only_key(arithmetic, arithmetic.casts) == "segments");
  CHECK_THAT(describe(arithmetic, {.chunk = true}), ContainsSubstring(" segments=tree:2"));
  CHECK(!has_axis({}, "segments=tree:2"));
  set_axis(arithmetic, "segments=none");
  CHECK_THAT(describe(arithmetic, {.chunk = true}), !ContainsSubstring("segments"));
  CHECK_THROWS_WITH(set_axis(arithmetic, "segments=tree:0"), ContainsSubstring("1 to 1024 parts"));
  CHECK_THROWS_WITH(set_axis(arithmetic, "segments=none:2"), ContainsSubstring("takes no number"));
  CHECK_THROWS_WITH(set_axis(arithmetic, "segments=treee:2"), ContainsSubstring("tree"));
}

}  // namespace segments_tests
