// gpu-chunk in parts: the bits of the CPU in as many, on one device and on ranks that are threads.
#include <cuda_runtime_api.h>

#include <barrier>
#include <thread>

#include "kda/regimes/regimes.hpp"
#include "kda/shards/gpu_segments.hpp"
#include "support/gpu.hpp"
#include "support/gradients.hpp"
#include "support/loss.hpp"

namespace segments_tests {

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

kda::RunOptions options_with(const kda::Problem& problem, DType dtype,
                             const std::vector<std::string>& words) {
  kda::RunOptions options = test::default_options(problem, "gpu-chunk", dtype);
  for (const std::string& word : words) kda::set_axis(options.arithmetic, word);
  return options;
}

/// Bits of the answer and, of a problem with a loss, of all gradients.
std::size_t differing_in_parts(const kda::Problem& problem, DType dtype,
                               const std::vector<std::string>& words) {
  kda::RunOptions options = options_with(problem, dtype, words);
  REQUIRE(kda::variant_named("gpu-chunk").unsupported(problem, options).empty());
  std::size_t count = test::differing_from_replay(problem, "gpu-chunk", options);
  options.threads = 16;
  if (kda::Outline(problem).has_loss())
    count += test::differing(kda::run_gpu_backward(true, problem, options),
                             kda::run_chunk_backward(problem, options));
  return count;
}

/// What a part does to its entering state shows to the end.
ProblemSpec slow_spec(std::size_t T, std::size_t K, std::size_t V) {
  ProblemSpec spec;
  spec.T = T, spec.K = K, spec.V = V, spec.gate_size = 1e-3, spec.qk_l2norm = true;
  return spec;
}

/// Ranks that are threads on the one device there is.
class ThreadGroup : public PeerGroup {
 public:
  explicit ThreadGroup(std::size_t count) : blocks_(count), all_(static_cast<std::ptrdiff_t>(count)) {}
  std::size_t count() const override { return blocks_.size(); }
  int device(std::size_t) const override { return 0; }
  void run(const std::function<void(Peers&)>& work) override {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < count(); ++rank)
      threads.emplace_back([&, rank] {
        Member member(*this, rank);
        work(member);
      });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  class Member : public Peers {
   public:
    Member(ThreadGroup& group, std::size_t rank) : group_(group), rank_(rank) {}
    std::size_t rank() const override { return rank_; }
    std::size_t count() const override { return group_.count(); }
    std::size_t least(std::size_t own) override {
      group_.said_[rank_] = own;
      group_.all_.arrive_and_wait();
      std::size_t least = own;
      for (std::size_t rank = 0; rank < count(); ++rank) least = std::min(least, group_.said_[rank]);
      group_.all_.arrive_and_wait();
      return least;
    }
    void gather_all(void* blocks, std::size_t bytes, const std::function<bool()>& is_done) override {
      while (!is_done()) std::this_thread::yield();
      group_.blocks_[rank_] = blocks;
      group_.all_.arrive_and_wait();
      for (std::size_t rank = 0; rank < count(); ++rank)
        if (rank != rank_)
          REQUIRE(cudaMemcpy(static_cast<char*>(blocks) + rank * bytes,
                             static_cast<const char*>(group_.blocks_[rank]) + rank * bytes, bytes,
                             cudaMemcpyDeviceToDevice) == cudaSuccess);
      group_.all_.arrive_and_wait();
    }

   private:
    ThreadGroup& group_;
    const std::size_t rank_;
  };

  std::vector<void*> blocks_;
  std::vector<std::size_t> said_ = std::vector<std::size_t>(blocks_.size());
  std::barrier<> all_;
};

}  // namespace

TEST_CASE("gpu-chunk in parts and its replay give the same bits in every shape", "[segments][small]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t K : {5, 33, 64, 96, 128, 130, 256})
    for (const std::size_t V : {3, 64, 70}) {
      ProblemSpec spec = slow_spec(17 + (K * 7 + V) % 230, K, V);
      spec.H = 1 + K % 2, spec.HV = spec.H * (1 + V % 3), spec.B = 1 + V % 2;
      spec.state_v_first = V % 3 == 0, spec.safe_gate = K % 2 == 0, spec.initial_state = V % 4 != 0;
      spec.chunk_size = K % 3 == 0 ? 64 : K % 3 == 1 ? 32 : 16;
      const kda::Problem problem = test::with_loss(test::make_problem(spec, K * 1000 + V));
      for (const char* const word :
           {"segments=tree:1", "segments=tree:2", "segments=sequential:3", "segments=tree:5"}) {
        INFO("K " << K << " V " << V << " T " << spec.T << " chunk " << spec.chunk_size << " " << word);
        CHECK(differing_in_parts(problem, DType::fp32, {word}) == 0);
      }
    }
}

TEST_CASE("gpu-chunk in parts and its replay give the same bits in every arithmetic of parts",
          "[segments][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec = slow_spec(300, 48, 40);
  spec.chunk_size = 16, spec.H = 2, spec.HV = 4;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    spec.dtype = dtype;
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    for (const char* const parts : {"segments=sequential:7", "segments=tree:8", "segments=tree:1000"})
      for (const char* const word :
           {"contraction=fused", "contraction=separate", "exponential=cuda-fast", "tail=difference",
            "storage=fla", "storage=none", "storage=tf32@transition",
            "storage=bf16@transition+bf16@segment_state", "storage=fp16@segment_state", "storage=bf16@decay",
            "storage=bf16@operands", "storage=bf16@carry", "storage=bf16@dh+bf16@dv+bf16@dv_local"}) {
        INFO(parts << " " << word);
        CHECK(differing_in_parts(problem, dtype, {parts, word}) == 0);
      }
  }
}

TEST_CASE("gpu-chunk in parts and its replay give the same bits on packed sequences", "[segments][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec = test::packed_spec();
  for (const int chunk : {16, 32, 64}) {
    spec.chunk_size = chunk;
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    for (const char* const word : {"segments=sequential:2", "segments=tree:4", "segments=tree:64"})
      CHECK(differing_in_parts(problem, DType::fp32, {word}) == 0);
  }
}

TEST_CASE("gpu-chunk in parts and its replay give the same bits through every kernel there is",
          "[segments][race]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t K : {20, 200}) {  // short, for tools that watch each access
    ProblemSpec spec = slow_spec(40, K, 20);
    spec.chunk_size = 16;
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    for (const char* const word : {"contraction=fused", "contraction=separate"})
      CHECK(differing_in_parts(problem, DType::fp32, {"segments=tree:3", word}) == 0);
    const kda::Answer answer =
        test::run(problem, "gpu-chunk", options_with(problem, DType::fp64, {"segments=tree:3"}));
    const test::WholeOracle oracle = test::whole_oracle(problem);
    CHECK(test::rms_ratio(answer.o, oracle.o) < 1e-12);
    CHECK(test::rms_ratio(answer.final_state, oracle.final_state) < 1e-12);
    test::check_near(
        kda::run_gpu_backward(true, problem, options_with(problem, DType::fp64, {"segments=sequential:3"})),
        test::gradient_truths(problem), 1e-12);
  }
}

TEST_CASE("every stage of gpu-chunk in parts has the bits of its replay", "[segments][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec = slow_spec(250, 40, 72);
  spec.B = 2, spec.H = 2, spec.HV = 4;
  const kda::Problem problem = test::make_problem(spec);
  test::check_stages_of_replay(problem, options_with(problem, DType::fp32, {"segments=tree:3"}));
}

TEST_CASE("one part has the bits of a sequence that is not cut on a GPU", "[segments][small]") {
  KDA_CHECK_NEEDS_GPU();
  const kda::Problem problem = test::make_problem(slow_spec(150, 64, 64));
  const kda::Answer whole = test::run(problem, "gpu-chunk", options_with(problem, DType::fp32, {}));
  CHECK(test::differing(
            test::run(problem, "gpu-chunk", options_with(problem, DType::fp32, {"segments=tree:1"})),
            whole) == 0);
}

TEST_CASE("ranks that have a part each give the bits of one device", "[segments][ranks][small]") {
  KDA_CHECK_NEEDS_GPU();
  std::vector<ProblemSpec> specs(4, slow_spec(330, 64, 70));
  specs[0].H = 2, specs[0].HV = 4, specs[0].B = 2, specs[0].chunk_size = 16;
  specs[1].state_v_first = true, specs[1].gate = kda::Gate::softplus, specs[1].beta_sigmoid = true;
  specs[2] = test::packed_spec();
  specs[3].T = 30, specs[3].chunk_size = 16, specs[3].initial_state = false;  // fewer chunks than ranks
  for (const std::size_t ranks : {1, 2, 3, 4}) {
    ThreadGroup group(ranks);
    for (const ProblemSpec& spec : specs)
      for (const DType dtype : {DType::fp32, DType::bf16}) {
        const kda::Problem problem = test::make_problem(spec);
        const kda::RunOptions options =
            options_with(problem, dtype, {"segments=tree:" + std::to_string(ranks)});
        const kda::Answer one = test::run(problem, "gpu-chunk", options);
        kda::share_devices(&group);
        REQUIRE(kda::devices_of(options) == &group);
        const kda::Answer shared = test::run(problem, "gpu-chunk", options);
        const std::vector<double> seconds = kda::time_gpu(true, problem, options, 3);
        kda::share_devices(nullptr);
        INFO(ranks << " ranks, T " << spec.T);
        CHECK(test::differing(shared, one) == 0);
        CHECK(seconds.size() == 3);
      }
  }
}

}  // namespace segments_tests
