// Shards: which part this is, and that the parts are the whole.
#include "plan/shard.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "support/catch.hpp"
#include "support/planning.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

namespace shards_tests {

using namespace kda_check;
using plan::balanced;
using plan::Shard;
using plan::shard_from;
using plan::shard_named;

namespace {

using Variables = std::map<std::string, std::string>;

/// "2/4 by NAME", "none", or the message of the refusal.
std::string shard_of(const Variables& variables) {
  try {
    const auto shard = shard_from([&](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
    return shard ? shard->text() + " by " + shard->source : "none";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
}

Variables together(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const Variables slurm_task{{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}};
const Variables openmpi{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "3"}};
const Variables mpich{{"PMI_RANK", "7"}, {"PMI_SIZE", "8"}};
const Variables gitlab{{"CI_NODE_INDEX", "1"}, {"CI_NODE_TOTAL", "5"}};
const Variables github{{"STRATEGY_JOB_INDEX", "0"}, {"STRATEGY_JOB_TOTAL", "2"}};
const Variables array{{"SLURM_ARRAY_TASK_ID", "30"},
                      {"SLURM_ARRAY_TASK_MIN", "10"},
                      {"SLURM_ARRAY_TASK_COUNT", "4"},
                      {"SLURM_ARRAY_TASK_STEP", "10"}};

}  // namespace

TEST_CASE("a shard is two whole numbers, the first no larger", "[plan][shard]") {
  CHECK(shard_named("2/4").index == 2);
  CHECK(shard_named("2/4").count == 4);
  CHECK(shard_named("2/4").text() == "2/4");
  CHECK(shard_named("1/1").is_whole());
  CHECK_FALSE(shard_named("1/2").is_whole());
  for (const char* const text : {"", "1", "/", "1/", "/2", "0/2", "3/2", "1/0", "-1/2", "1/-2", "1/2/3",
                                 "a/b", "1 /2", "1/2 ", "0x1/2", "1.0/2", "99999999999999999999/2", "Auto"}) {
    INFO("'" << text << "'");
    CHECK_THAT(test::refusal([&] { shard_named(text); }),
               ContainsSubstring("2 --shard ") && ContainsSubstring("not I/N with 1 <= I <= N"));
  }
}

TEST_CASE("every scheduler says which part this is", "[plan][shard]") {
  CHECK(shard_of({}) == "none");
  CHECK(shard_of(slurm_task) == "3/4 by SLURM_PROCID");
  CHECK(shard_of(openmpi) == "1/3 by OMPI_COMM_WORLD_RANK");
  CHECK(shard_of(mpich) == "8/8 by PMI_RANK");
  CHECK(shard_of(gitlab) == "1/5 by CI_NODE_INDEX");
  CHECK(shard_of(github) == "1/2 by STRATEGY_JOB_INDEX");
  CHECK(shard_of(array) == "3/4 by SLURM_ARRAY_TASK_ID");
  CHECK(shard_of(
            {{"SLURM_ARRAY_TASK_ID", "5"}, {"SLURM_ARRAY_TASK_MIN", "1"}, {"SLURM_ARRAY_TASK_COUNT", "5"}}) ==
        "5/5 by SLURM_ARRAY_TASK_ID");
}

TEST_CASE("half of what a scheduler says is nothing", "[plan][shard]") {
  for (const Variables& all : {slurm_task, openmpi, mpich, gitlab, github})
    for (const auto& variable : all) {
      INFO(variable.first);
      CHECK(shard_of({variable}) == "none");
    }
}

TEST_CASE("jobs of several ranks each count all of them", "[plan][shard]") {
  CHECK(shard_of(together(array, slurm_task)) == "11/16 by SLURM_ARRAY_TASK_ID and SLURM_PROCID");
  CHECK(shard_of(together(gitlab, openmpi)) == "1/15 by CI_NODE_INDEX and OMPI_COMM_WORLD_RANK");
  CHECK(shard_of(together(github, mpich)) == "8/16 by STRATEGY_JOB_INDEX and PMI_RANK");
  // One rank is no part: a batch script of one task, started by srun or not.
  const Variables one{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}};
  CHECK(shard_of(together(array, one)) == "3/4 by SLURM_ARRAY_TASK_ID");
  CHECK(shard_of(one) == "1/1 by SLURM_PROCID");
  // srun of an MPI program says it twice: mpirun's word comes first.
  CHECK(shard_of(together(slurm_task, openmpi)) == "1/3 by OMPI_COMM_WORLD_RANK");
  // All ranks of all jobs are all parts.
  std::set<std::string> parts;
  for (int job = 0; job < 3; ++job)
    for (int rank = 0; rank < 4; ++rank)
      parts.insert(shard_of({{"STRATEGY_JOB_INDEX", std::to_string(job)},
                             {"STRATEGY_JOB_TOTAL", "3"},
                             {"SLURM_PROCID", std::to_string(rank)},
                             {"SLURM_NTASKS", "4"}}));
  CHECK(parts.size() == 12);
}

TEST_CASE("nonsense in a scheduler's variables is a usage error that quotes it", "[plan][shard]") {
  const auto with = [](Variables variables, const char* name, const char* value) {
    variables[name] = value;
    return shard_of(variables);
  };
  CHECK(with(slurm_task, "SLURM_PROCID", "4") ==
        "--shard auto: SLURM_PROCID=4 and SLURM_NTASKS=4 are no part of a whole");
  CHECK_THAT(with(gitlab, "CI_NODE_INDEX", "0"), ContainsSubstring("no part of a whole"));
  CHECK_THAT(with(gitlab, "CI_NODE_INDEX", "6"), ContainsSubstring("no part of a whole"));
  CHECK_THAT(with(openmpi, "OMPI_COMM_WORLD_SIZE", "0"), ContainsSubstring("no part of a whole"));
  CHECK_THAT(with(mpich, "PMI_RANK", "-1"), ContainsSubstring("PMI_RANK=-1"));
  CHECK_THAT(with(github, "STRATEGY_JOB_TOTAL", ""), ContainsSubstring("no part of a whole"));
}

TEST_CASE("the ids of an array must be evenly spaced", "[plan][shard]") {
  const auto of = [](const char* id, const char* least, const char* count, const char* step) {
    return shard_of({{"SLURM_ARRAY_TASK_ID", id},
                     {"SLURM_ARRAY_TASK_MIN", least},
                     {"SLURM_ARRAY_TASK_COUNT", count},
                     {"SLURM_ARRAY_TASK_STEP", step}});
  };
  CHECK(of("10", "10", "3", "5") == "1/3 by SLURM_ARRAY_TASK_ID");
  CHECK(of("20", "10", "3", "5") == "3/3 by SLURM_ARRAY_TASK_ID");
  for (const auto& refused : {of("12", "10", "3", "5"), of("25", "10", "3", "5"), of("5", "10", "3", "5"),
                              of("10", "10", "3", "0"), of("10", "x", "3", "5"), of("10", "10", "", "5")}) {
    INFO(refused);
    CHECK_THAT(refused, ContainsSubstring("no part of an evenly spaced array"));
  }
}

TEST_CASE("balanced parts are the same every time, and about equally costly", "[plan][shard]") {
  test::Random random(3);
  std::vector<double> costs;
  for (int i = 0; i < 200; ++i) costs.push_back(std::exp(random.uniform(-3, 3)));
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  const double largest = *std::max_element(costs.begin(), costs.end());
  for (const std::size_t parts : {1, 2, 3, 7, 16}) {
    const std::vector<std::size_t> part = balanced(costs, parts);
    CHECK(part == balanced(costs, parts));
    std::vector<double> loads(parts);
    for (std::size_t i = 0; i < costs.size(); ++i) {
      REQUIRE(part[i] < parts);
      loads[part[i]] += costs[i];
    }
    // The costliest first to the part with the least: within a third of the best there is (R. Graham 1969).
    const double most = *std::max_element(loads.begin(), loads.end());
    CHECK(most <= std::max(all / static_cast<double>(parts), largest) * 4 / 3);
  }
  CHECK(balanced({}, 3).empty());
  CHECK(balanced({1, 1, 1}, 5) == std::vector<std::size_t>{0, 1, 2});
  CHECK(balanced({0, 0, 0, 0}, 2).size() == 4);
  CHECK(balanced({1, 5, 1, 1, 1, 1}, 2) == std::vector<std::size_t>{1, 0, 1, 1, 1, 1});
}

TEST_CASE("items without a cost are spread as well", "[plan][shard]") {
  // Of problems that cost the same the first goes to the first part.
  const std::vector<std::size_t> part = balanced(std::vector<double>(6, 1.0), 3);
  CHECK(part == std::vector<std::size_t>{0, 1, 2, 0, 1, 2});
}

TEST_CASE("the shards of a plan are together the whole, each case once, with its number", "[plan][shard]") {
  const test::TemporarySuite suite(
      "control:T=4,H=1 control:T=5,H=1 control:T=6,H=1 --variant recurrent,naive --dtype fp32,bf16\n"
      "control:T=4,H=1 --variant chunk\n" +
      test::case_fixtures() + " --variant recurrent\n");
  const plan::Plan whole = test::planned_line(suite.name());
  const auto describe = [](const plan::Case& item, const plan::Problem& problem) {
    return problem.source->target().name + " " + problem.remark() + " " + item.who + " " +
           item.reference.name + " " + item.repro;
  };
  std::map<std::size_t, std::string> of_whole;
  for (const auto& [item, problem] : test::cases_of(whole))
    of_whole[item->number] = describe(*item, *problem);
  for (const std::size_t count : {1, 2, 3, 7, 40}) {
    std::map<std::size_t, std::string> of_parts;
    double most = 0;
    for (std::size_t index = 1; index <= count; ++index) {
      const plan::Plan part = test::planned_line(suite.name(), {index, count, {}});
      CHECK(part.digest == whole.digest);
      CHECK(part.cases == whole.cases);
      CHECK(part.inputs == whole.inputs);
      most = std::max(most, part.seconds());
      for (const auto& [item, problem] : test::cases_of(part)) {
        INFO(item->number);
        CHECK(of_parts.emplace(item->number, describe(*item, *problem)).second);
      }
    }
    CHECK(of_parts == of_whole);
    if (count == 2) CHECK(most < 0.8 * whole.seconds());
  }
}

}  // namespace shards_tests
