// `explain-bits`: who computed a recorded answer.
#include <algorithm>
#include <filesystem>

#include "fixture/fixture.hpp"
#include "plan/selection.hpp"
#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace bits_tests {

using namespace kda_check;
using numeric::DType;
using plan::Names;
using test::Item;
using test::items_of;
using test::Row;

namespace {

plan::Request request_for(const std::string& target, const std::string& group) {
  plan::Request request = test::request_for({target}, plan::Task::bits);
  request.selection.recorded = Names{group};
  return request;
}

report::Document ran(const std::string& target, const std::string& group = "somebody") {
  return test::ran(request_for(target, group), test::on_threads(2));
}

test::ProblemSpec two_heads(DType dtype = DType::fp32) {
  test::ProblemSpec spec;
  spec.T = 150, spec.H = 2, spec.HV = 2, spec.K = 64, spec.V = 32, spec.dtype = dtype;
  spec.qk_l2norm = spec.state_v_first = true;
  return spec;
}

/// What `variant` answers in these words, as expected/somebody.
struct Computed {
  Computed(const test::ProblemSpec& spec, const char* variant, const Names& words,
           std::size_t chunk_size = 64)
      : problem(test::make_problem(spec)),
        answer(answered(variant, words, chunk_size)),
        file(problem, &answer, "bits") {}

  kda::Answer answered(const char* variant, const Names& words, std::size_t chunk_size) const {
    return test::run(
        problem, variant,
        plan::run_options(kda::variant_named(variant), problem, problem.dtype(), words, chunk_size));
  }

  kda::Problem problem;
  kda::Answer answer;
  test::TemporaryFixture file;
};

struct Known {
  const char *group, *variant, *preset;
};
constexpr Known kernels[] = {{"fla_chunk", "chunk", "fla"},
                             {"fla_recurrent", "recurrent", "fla-recurrent"},
                             {"flash_kda", "chunk", "flash-kda"}};

/// Of these files all answers of known kernels; returns how many there are. Those of a few tokens in 16 bits
/// others give, too, and those of fused_recurrent_kda its copies where there is no gate: the kernel is among
/// them, and named first.
std::size_t check_kernels(const std::vector<std::string>& files) {
  std::size_t groups = 0;
  for (const std::string& path : files)
    for (const Known& known : kernels) {
      const fixture::Header header = fixture::read_header(path);
      if (header.expected_named(known.group) == nullptr) continue;
      INFO(path << ' ' << known.group);
      const report::Document document = ran(path, known.group);
      const Item item = items_of(document, "bits").at(0);
      CHECK(item.words("change").empty());
      CHECK(item.count("differing") == 0);
      const bool has_gradients = header.expected_named(known.group)->tensor("dq") != nullptr;
      // A cut lacks heads that ddt_bias was summed beside.
      const bool is_cut = has_gradients && path.find("softplus_backward") != std::string::npos;
      CHECK(exit_code(document) == (is_cut ? 1 : 0));
      REQUIRE(items_of(document, "bits").size() == (has_gradients ? 2 : 1));
      if (has_gradients) {
        const Item gradients = items_of(document, "bits").at(1);
        CHECK(gradients.words("pass") == "backward");
        CHECK(gradients.words("preset") == known.preset);
        CHECK(gradients.words("change").empty());
        CHECK(gradients.count("differing") == 0);
      }
      const std::string way = std::string(known.variant) + " under " + known.preset;
      const std::vector<Row> nearest = item.rows("nearest");
      const auto named = std::ranges::find_if(
          nearest, [&](const Row& row) { return (row.words("way") + " ").starts_with(way + " "); });
      REQUIRE(named != nearest.end());
      CHECK(named->count("differing") == 0);
      const bool is_alone = item.entry().reason.find("do not tell them apart") == std::string::npos;
      const bool has_copies = known.preset == std::string_view("fla-recurrent");
      CHECK(((!is_alone && !has_copies) || named == nearest.begin()));
      CHECK((is_alone || has_copies || header.dimensions.T < 64));
      ++groups;
    }
  return groups;
}

}  // namespace

TEST_CASE("the committed answers of FLA's kernels and FlashKDA's are named, and no bit is left",
          "[engine][bits]") {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(test::case_fixtures()))
    if (entry.path().extension() == ".h5") files.push_back(entry.path().string());
  CHECK(check_kernels(files) == 23);
}

TEST_CASE("the captures of FLA's kernels and FlashKDA's are named with their launches",
          "[engine][bits][captures]") {
  if (test::large_fixtures().empty())
    KDA_CHECK_SKIP("the large fixtures are not here (KDA_CHECK_FIXTURES names their folder)");
  CHECK(check_kernels(test::large_fixture_files()) == 27);
  const report::Document document = ran(test::large_fixtures() + "/fla_fp32_varlen.h5", "fla_chunk");
  const Item item = items_of(document, "bits").at(0);
  CHECK(item.entry().reason == "every bit of o and final_state is chunk under fla with launch=pairs:2x32x1");
  CHECK(item.rows("tensors").size() == 2 + kda::forward_stage_count);
  for (const Row& tensor : item.rows("tensors")) CHECK(tensor.count("differing") == 0);
}

TEST_CASE("what an H100 answered to capture is named with the preset h100", "[engine][bits][captures]") {
  const std::string file = test::case_fixtures() + "/../captures/fla_bf16_prefill.h5";
  for (const char* const variant : {"chunk", "recurrent"}) {
    const report::Document document = ran(file, std::string("gpu-") + variant + "@nvidia-h100-80gb-hbm3");
    const Item item = items_of(document, "bits").at(0);
    CHECK(item.words("variant") == variant);
    CHECK(item.words("preset") == "h100");
    CHECK(item.count("differing") == 0);
  }
}

TEST_CASE("one word that is not the preset's is named", "[engine][bits]") {
  struct Changed {
    const char* preset;
    Names words;
    const char* change;
    const char* arithmetic;
  };
  for (const Changed& changed : std::initializer_list<Changed>{
           {"fla", {"gates=natural"}, "gates=log2 -> gates=natural", "fla,gates=natural"},
           {"fla", {"update=chained"}, "update=transposed -> update=chained", "fla,update=chained"},
           {"fla",
            {"decay=anchor-pair:32"},
            "decay=anchor-pair:16 -> decay=anchor-pair:32",
            "fla,decay=anchor-pair:32"},
           {"h100",
            {"storage=bf16@state"},
            "storage: state not rounded -> rounded to bf16",
            "h100,storage=bf16@state"},
           {"flash-kda",
            {"accumulator=fp32"},
            "accumulator=fp16 -> accumulator=fp32",
            "flash-kda,accumulator=fp32"}}) {
    INFO(changed.preset << ' ' << changed.change);
    Names words{changed.preset};
    words.insert(words.end(), changed.words.begin(), changed.words.end());
    const bool is_flash = std::string_view(changed.preset) == "flash-kda";
    const Computed computed(two_heads(is_flash ? DType::bf16 : DType::fp32), "chunk", words,
                            is_flash ? 16 : 64);
    const report::Document document = ran(computed.file.path);
    const Item item = items_of(document, "bits").at(0);
    CHECK(item.words("variant") == "chunk");
    CHECK(item.words("preset") == changed.preset);
    CHECK(item.words("change") == changed.change);
    CHECK(item.words("arithmetic") == changed.arithmetic);
    CHECK(item.count("differing") == 0);
    CHECK(exit_code(document) == 0);
  }
}

TEST_CASE("a word that brings back what is usual of a token form is named", "[engine][bits]") {
  const Computed computed(two_heads(), "recurrent", {"llama.cpp", "scale=scores"});
  const report::Document document = ran(computed.file.path);
  const Item item = items_of(document, "bits").at(0);
  CHECK(item.words("change") == "scale=output -> scale=scores");
  CHECK(item.words("arithmetic") == "llama.cpp,scale=scores");
  CHECK(item.count("differing") == 0);
}

TEST_CASE("a word of a kernel in another launch is named with the launch", "[engine][bits]") {
  const Computed computed(two_heads(), "chunk", {"fla", "gates=natural", "launch=scan:2"});
  const report::Document document = ran(computed.file.path);
  const Item item = items_of(document, "bits").at(0);
  CHECK(item.words("change") == "gates=log2 -> gates=natural");
  CHECK(item.words("arithmetic") == "fla,launch=scan:2,gates=natural");
  CHECK(item.count("differing") == 0);
}

TEST_CASE("chunks of another length are named, alone and beside a word", "[engine][bits]") {
  const Computed alone(two_heads(), "chunk", {"fla"}, 32);
  const report::Document document = ran(alone.file.path);
  const Item item = items_of(document, "bits").at(0);
  CHECK(item.count("chunk_size") == 32);
  CHECK(item.words("change").empty());
  CHECK(item.count("differing") == 0);
  const Computed with_word(two_heads(), "chunk", {"fla", "gates=natural"}, 32);
  const report::Document changed = ran(with_word.file.path);
  const Item other = items_of(changed, "bits").at(0);
  CHECK(other.count("chunk_size") == 32);
  CHECK(other.words("change") == "gates=log2 -> gates=natural");
  CHECK(other.count("differing") == 0);
}

TEST_CASE("a final_state in 16 bits is held against the one that a pool would store", "[engine][bits]") {
  const kda::Problem problem = test::make_problem(two_heads(DType::bf16));
  const kda::Variant& recurrent = kda::variant_named("recurrent");
  const kda::Answer answer =
      recurrent.run(problem, plan::run_options(recurrent, problem, DType::bf16, {"fla-recurrent"}, 64));
  tensor::Tensor state = answer.final_state.converted_to(DType::bf16);
  const auto elements = static_cast<std::int64_t>(answer.o.size() + state.size());
  for (const std::int64_t wrong : {0, 1}) {
    if (wrong == 1) state.set(5, 2 * state.value(5) + 1);
    const test::TemporaryFixture file(problem, {&answer.o, &state}, numeric::ComputeFormat::fp32, "pooled");
    const report::Document document = ran(file.path);
    const Item item = items_of(document, "bits").at(0);
    CHECK(item.count("differing") == wrong);
    CHECK(item.count("elements") == elements);
    CHECK(item.entry().verdict == (wrong == 1 ? judge::Verdict::fail : judge::Verdict::pass));
  }
}

TEST_CASE(
    "what kernels of others answered is named, presets that only words of the token forms tell apart too",
    "[engine][bits][captures]") {
  struct Kernel {
    const char *file, *group, *preset;
  };
  for (const Kernel& kernel : {Kernel{"llama_cpp_k128.h5", "llama_cpp", "llama.cpp"},
                               {"flashinfer_decode.h5", "flashinfer_decode", "flashinfer-decode"},
                               {"cudnn_sm90.h5", "cudnn_sm90", "cudnn-sm90"}}) {
    INFO(kernel.file);
    const report::Document document = ran(test::case_fixtures() + "/../kernels/" + kernel.file, kernel.group);
    const Item item = items_of(document, "bits").at(0);
    CHECK(item.count("differing") == 0);
    CHECK(item.words("preset") == kernel.preset);
    CHECK(item.words("change").empty());
    CHECK(exit_code(document) == 0);
  }
}

TEST_CASE("bits that nothing known computes are counted, and the first is placed", "[engine][bits]") {
  const kda::Problem problem = test::make_problem(two_heads());
  const kda::Variant& chunk = kda::variant_named("chunk");
  kda::Answer answer = chunk.run(problem, plan::run_options(chunk, problem, DType::fp32, {"fla"}, 64));
  const std::size_t row = 2 * 32;
  for (const std::size_t element : {100 * row + 32 + 5, 120 * row + 7, 149 * row})
    answer.o.set(element, answer.o.value(element) * 1.25);
  const test::TemporaryFixture file(problem, &answer, "unexplained");
  const report::Document document = ran(file.path);
  const Item item = items_of(document, "bits").at(0);
  CHECK(item.entry().verdict == judge::Verdict::fail);
  CHECK(item.count("differing") == 3);
  CHECK(item.words("preset") == "fla");
  CHECK(item.words("change").empty());
  CHECK(item.words("first") == "o[b=0 t=100 h=1 v=5]");
  CHECK_THAT(item.entry().reason,
             ContainsSubstring("nothing known explains them") &&
                 ContainsSubstring("chunk under fla, leaves 3 of 9600 elements of o, 0 of 4096 "
                                   "elements of final_state"));
  CHECK(item.rows("nearest").at(0).count("differing") == 3);
  CHECK(exit_code(document) == 1);
}

TEST_CASE("gradients are searched from what computed o and final_state, and for one word of their own",
          "[engine][bits]") {
  test::ProblemSpec spec = two_heads();
  spec.T = 80;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  const kda::Variant& chunk = kda::variant_named("chunk");
  const auto options_of = [&](const Names& words) {
    return plan::run_options(chunk, problem, DType::fp32, words, 64);
  };
  struct Recorded {
    Names forward, backward;
    const char *preset, *change;
  };
  const Recorded cases[] = {
      {{"fla", "gates=natural"}, {"fla", "gates=natural"}, "fla", "gates=log2 -> gates=natural"},
      {{"fla"}, {"fla", "launch=wy:32x64x2+intra:8"}, "fla", ""},
      {{"fla"},
       {"fla", "launch=reverse-scan:2", "storage=triton", "storage=tf32@tensor_core+bf16@dv"},
       "fla",
       "storage: dv not rounded -> rounded to bf16"}};
  for (const Recorded& recorded : cases) {
    INFO(recorded.change);
    const kda::Answer answer = chunk.run(problem, options_of(recorded.forward));
    const kda::GradientTensors gradients = chunk.run_backward(problem, options_of(recorded.backward));
    std::vector<const tensor::Tensor*> tensors{&answer.o, &answer.final_state};
    for (const tensor::Tensor& gradient : gradients)
      if (!gradient.empty()) tensors.push_back(&gradient);
    const test::TemporaryFixture file(problem, tensors, numeric::ComputeFormat::fp32, "gradients");
    const report::Document document = ran(file.path);
    const std::vector<Item> items = items_of(document, "bits");
    REQUIRE(items.size() == 2);
    CHECK(items[0].words("pass") == "forward");
    CHECK(items[0].count("differing") == 0);
    CHECK(items[1].words("pass") == "backward");
    CHECK(items[1].words("preset") == recorded.preset);
    CHECK(items[1].words("change") == recorded.change);
    CHECK(items[1].count("differing") == 0);
    CHECK(exit_code(document) == 0);
  }
}

TEST_CASE("a group without an answer is skipped with the reason, and nothing found is no success",
          "[engine][bits]") {
  const kda::Problem problem = test::make_problem({});
  const tensor::Tensor k = problem.k.clone().named("dk");
  const test::TemporaryFixture file(problem, {&k}, std::nullopt, "hollow");
  const report::Document document = ran(file.path);
  CHECK(document.problems.at(0).notes == Names{"skipped: expected/somebody has neither o nor final_state"});
  CHECK(exit_code(document) == 1);
  CHECK_THAT(test::refusal([&] { test::planned(request_for(file.path, "nobody")); }),
             ContainsSubstring("2 no fixture has a group expected/nobody"));
}

TEST_CASE("explain-bits finds the same on any number of threads", "[engine][bits]") {
  const Computed computed(two_heads(), "chunk", {"fla", "special=ieee"});
  const auto on = [&](int threads) {
    const report::Document document =
        test::ran(request_for(computed.file.path, "somebody"), test::on_threads(threads));
    const Item item = items_of(document, "bits").at(0);
    std::vector<std::string> found{item.entry().reason};
    for (const Row& row : item.rows("nearest"))
      found.push_back(row.words("way") + " " + std::to_string(row.count("differing")));
    return found;
  };
  CHECK(on(1) == on(3));
}

}  // namespace bits_tests
