#include "plan/repro.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/names.hpp"
#include "plan/power_classes.hpp"
#include "plan/selection.hpp"
#include "plan/words.hpp"

namespace kda_check::plan {

namespace {

/// Names between commas; a comma in a name behind a backslash.
std::string list_of(const Names& names) {
  Names escaped = names;
  for (std::string& name : escaped)
    for (std::size_t at = name.find_first_of(",\\"); at != std::string::npos;
         at = name.find_first_of(",\\", at + 2))
      name.insert(at, 1, '\\');
  return join(escaped, ",");
}

class ReproLine {
 public:
  ReproLine(const Case& item, const Problem& problem) : item_(item), problem_(problem), asked_(*item.asked) {}

  std::string text() {
    words_ = {"kda-check", asked_.command, problem_.source->target().path};
    add_section();
    if (item_.question == Question::identity && item_.reference.kind == Reference::Kind::answer)
      add("--between", list_of({item_.who, item_.reference.name}));
    else
      add_answer();
    add_tensors();
    if (asked_.advise && item_.question == Question::identity) add("--advise");
    add_settings();
    if (item_.question == Question::verdict || item_.question == Question::stages) add_judging();
    if (item_.question == Question::growth) add("--against", list_of({item_.reference.name}));
    if (item_.question == Question::capture) add_file();
    return line_of(words_);
  }

 private:
  void add(const char* flag, std::string value) {
    words_.emplace_back(flag);
    words_.push_back(std::move(value));
  }
  void add(std::string word) { words_.push_back(std::move(word)); }

  /// Of `explain`.
  void add_section() {
    if (item_.question == Question::growth) add("--only", "growth");
    if (item_.question == Question::overflow) add("--only", "overflow");
    if (item_.question == Question::faults) add("--only", "faults");
    if (item_.question == Question::faults && problem_.outline.has_loss())
      add(item_.pass == kda::Pass::backward ? "--backward" : "--no-backward");
    if (item_.question == Question::identity && !asked_.says("shares")) add("--only", "bits");
  }

  void add_answer() {
    const Answer* const answer = item_.answer ? &problem_.answers[*item_.answer] : nullptr;
    if (item_.question == Question::identity || item_.question == Question::faults)
      return add("--recorded", list_of({item_.who}));
    if (item_.question == Question::power) return add("--class", std::string(power_class(*answer)));
    if (answer == nullptr || answer->origin == Answer::Origin::recorded) {
      add("--variant", "none");
      add("--recorded", list_of({item_.who}));
      add_rounding();
    } else if (answer->origin == Answer::Origin::external) {
      add("--variant", "none");
      add("--recorded", "none");
      add("--external", asked_.external->command);
      if (asked_.external->name != ExternalProgram{}.name) add("--external-name", asked_.external->name);
      if (asked_.external->seconds != ExternalProgram{}.seconds)
        add("--external-timeout", fmt::format("{}", asked_.external->seconds));
      add_rounding();
    } else {
      add("--variant", answer->name);
      if (asked_.task == Task::judge || item_.question == Question::growth) add("--recorded", "none");
      add("--dtype", std::string(numeric::name_of(answer->dtype)));
    }
  }
  void add_rounding() {
    if (problem_.rounded_to) add("--dtype", std::string(numeric::name_of(*problem_.rounded_to)));
  }

  void add_tensors() {
    if (item_.question == Question::capture || item_.question == Question::overflow ||
        item_.question == Question::faults || item_.question == Question::identity)
      return;
    if (item_.question == Question::stages) {
      if (item_.pass == kda::Pass::forward && problem_.outline.has_loss()) add("--no-backward");
      return;
    }
    Names names = item_.tensors;
    if (names.empty())  // it has none of those asked for
      for (PassTensors& pass : tensors_of(asked_, known_tensors(asked_.task)))
        if (pass.pass == item_.pass) names = std::move(pass.tensors);
    if (!names.empty()) add("--tensor", list_of(names));
  }

  void add_settings() {
    if (item_.question == Question::identity || item_.question == Question::faults) return;
    if (!asked_.arithmetic.empty()) add("--arithmetic", join(asked_.arithmetic, ","));
    if (asked_.chunk_size) add("--chunk-size", fmt::format("{}", *asked_.chunk_size));
    if (asked_.oracle) add("--oracle", std::string(word_of(*asked_.oracle)));
    if (asked_.oracle_device && *asked_.oracle_device != OracleDeviceChoice::automatic)
      add("--oracle-device", std::string(name_of(*asked_.oracle_device)));
    if (asked_.window && item_.question == Question::growth)
      add("--window", fmt::format("{}", *asked_.window));
  }

  void add_judging() {
    if (item_.question == Question::stages) {
      add("--stages");
      add("--against", "none");
      if (std::ranges::any_of(item_.limits, [](const auto& layers) { return !layers.empty(); })) {
        add_limits();
        if (!asked_.tolerance.empty()) add("--tolerance", asked_.tolerance);
      }
      add_twins();
      return;
    }
    if (item_.reference.kind == Reference::Kind::law) {
      add("--invariants=" + item_.reference.name.substr(item_.reference.name.find(':') + 1));
      add("--against", "none");
    } else if (!item_.reference.name.empty()) {
      add("--against", list_of({item_.reference.name}));
    }
    add_limits();
    if (asked_.judging.atol) add("--atol", fmt::format("{}", *asked_.judging.atol));
    if (asked_.judging.rtol) add("--rtol", fmt::format("{}", *asked_.judging.rtol));
    if (asked_.judging.worst) add("--worst", fmt::format("{}", *asked_.judging.worst));
    if (!asked_.tolerance.empty()) add("--tolerance", asked_.tolerance);
    if (item_.reference.kind == Reference::Kind::oracle) add_twins();
  }

  void add_twins() {
    if (!asked_.has_test()) add("--test", "off");
    if (asked_.judging.floor) add("--floor", fmt::format("{:g}", *asked_.judging.floor));
    if (asked_.judging.undecided) add("--undecided", std::string(judge::name_of(*asked_.judging.undecided)));
    if (asked_.judging.as_declared) add("--as-declared");
  }

  /// Those of a line and of the command line over it, a metric once: the last wins.
  void add_limits() {
    std::vector<judge::LimitRequest> limits;
    for (const judge::LimitLayer& layer : asked_.judging.limits)
      for (const judge::LimitRequest& limit : layer.requests) {
        std::erase_if(limits, [&](const judge::LimitRequest& known) { return known.metric == limit.metric; });
        limits.push_back(limit);
      }
    for (const judge::LimitRequest& limit : limits)
      add("--limit", limit.metric + "=" +
                         (limit.none    ? "none"
                          : limit.exact ? "exact"
                                        : fmt::format("{}", limit.value)));
  }

  /// Of a capture: what is there already is written anew.
  void add_file() {
    if (asked_.output.empty())
      add("--in-place");
    else
      add("--output", asked_.output);
    add("--replace");
    if (!asked_.capture_stages) add("--no-stages");
  }

  const Case& item_;
  const Problem& problem_;
  const Request& asked_;
  Words words_;
};

}  // namespace

std::string repro_line(const Case& item, const Problem& problem) { return ReproLine(item, problem).text(); }

}  // namespace kda_check::plan
