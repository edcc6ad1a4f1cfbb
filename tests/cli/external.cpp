// Programs of somebody else behind two files; here it is the program itself that plays them.
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace external_tests {

using namespace kda_check;
using test::Folder;
using test::Output;
using test::program;
using test::shell;

namespace {

Output with(const std::string& command, const std::string& more = "") {
  return shell("$KDA run " + test::small + " --variant recurrent --against oracle --external \"" + command +
               "\" " + more);
}

const std::string with_a_loss = "bwd_chain:T=20,K=16,V=8";

/// The same on a problem with a loss, by its cases: "forward pass", "backward fail: dk: ...".
std::vector<std::string> on_a_loss(const std::string& command, const std::string& more = "") {
  const Output output = shell("export KDA; $KDA run " + with_a_loss + " --variant none --against oracle " +
                              more + " --external \"" + command + "\" --json");
  INFO(output.out << output.err);
  std::vector<std::string> cases;
  const auto report = nlohmann::json::parse(output.out);
  for (const auto& item : report["cases"]) {
    std::string text = item["pass"].get<std::string>() + " " + item["verdict"].get<std::string>();
    if (const std::string reason = item.value("reason", ""); !reason.empty()) text += ": " + reason;
    cases.push_back(std::move(text));
  }
  return cases;
}

}  // namespace

TEST_CASE("a program's answer is judged beside the variants, under its name", "[external]") {
  const Output output =
      with("$KDA capture {in} --replace -o {out} --variant chunk", "--external-name mine --json");
  CHECK(output.code == 0);
  const auto report = nlohmann::json::parse(output.out);
  bool found = false;
  for (const auto& item : report["cases"]) {
    if (item["variant"] != "mine") continue;
    found = true;
    CHECK(item["verdict"] == "pass");
    CHECK(item["against"] == "oracle");
    CHECK(item["tensors"].size() == 2);
    CHECK(item["recorded"] == false);
  }
  CHECK(found);
}

TEST_CASE("a program's gradients are judged beside its answer, each in their own run",
          "[external][gradients]") {
  CHECK(on_a_loss("$KDA capture {in} --replace -o {out} --variant chunk") ==
        std::vector<std::string>{"forward pass", "backward pass"});
  CHECK(on_a_loss("$KDA capture {in} --replace -o {out} --variant chunk", "--no-backward") ==
        std::vector<std::string>{"forward pass"});
  const Output output = shell("$KDA run " + with_a_loss +
                              " --variant none --backward --external \"$KDA capture {in} --replace -o {out} "
                              "--variant naive\" --json");
  const auto report = nlohmann::json::parse(output.out);
  REQUIRE(report["cases"].size() == 1);
  CHECK(report["cases"][0]["tensors"].size() == 8);
  CHECK(report["cases"][0]["against"] == "oracle");
}

TEST_CASE("a program is given the loss when gradients are wanted, and may say that it has none",
          "[external][gradients]") {
  const Folder folder;
  std::ofstream(folder / "forwards.sh")
      << "case $($KDA show $1 --headers) in *inputs/do*) echo no such pass; exit 77;; esac\n"
         "$KDA capture $1 --variant recurrent --replace -o $2\n";
  CHECK(on_a_loss("sh " + (folder / "forwards.sh").string() + " {in} {out}") ==
        std::vector<std::string>{
            "forward pass",
            "backward skipped: the program does not do this (exit status 77); it said: no such pass"});
}

TEST_CASE("a program that writes no gradients has none, and one that writes some but not all fails",
          "[external][gradients]") {
  const std::vector<std::string> skipped{"forward pass", "backward skipped: the program wrote no gradients"};
  // Its group has none, or those that were there are left alone.
  CHECK(on_a_loss("$KDA capture " + with_a_loss + ",loss=0 --replace -o {out} --variant chunk # {in}") ==
        skipped);
  CHECK(on_a_loss("true {in} {out}", "--backward") == std::vector<std::string>{skipped[1]});
  // A problem of the same shape whose gates are no parameters'.
  const std::vector<std::string> some =
      on_a_loss("$KDA capture gva:loss=1,T=20,K=16,V=8,H=2,HV=4 --replace -o {out} --variant chunk # {in}",
                "--backward");
  CHECK(some == std::vector<std::string>{"backward fail: its answer has no dA_log"});
}

TEST_CASE("a program's gradients are held to the invariants, and fail those they break",
          "[external][gradients]") {
  const auto laws = [](const std::string& arithmetic) {
    std::string broken;
    const Output output = shell(
        "$KDA run bwd_tail:T=20,C=16,K=8,V=8,H=2 --variant none --against none --backward --invariants "
        "--external "
        "\"$KDA capture {in} --replace -o {out} --no-stages --variant " +
        arithmetic + "\" --json");
    INFO(output.out << output.err);
    const auto report = nlohmann::json::parse(output.out);
    std::size_t tried = 0;
    for (const auto& item : report["cases"]) {
      CHECK(item["pass"] == "backward");
      if (item["verdict"] == "skipped") continue;  // those of the life of a state
      ++tried;
      if (item["verdict"] != "pass") broken += item["against"].get<std::string>() + " ";
    }
    CHECK(tried == 8);
    return broken;
  };
  CHECK(laws("recurrent").empty());
  CHECK(laws("chunk --arithmetic decay=anchor-mid") == "invariant:causality ");
}

TEST_CASE("two programs of one name are two, on one problem too", "[external]") {
  const Folder folder;
  std::ofstream(folder / "two.txt")
      << "control:T=8,H=1 --variant none --external '" KDA_CHECK_PROGRAM
         " capture {in} --replace -o {out} --variant naive'\n"
      << "control:T=8,H=1 --variant none --external 'echo the second; exit 3 # {in} {out}'\n";
  const Output output = program("run @" + (folder / "two.txt").string() + " --json");
  CHECK(output.code == 1);
  const auto report = nlohmann::json::parse(output.out);
  REQUIRE(report["cases"].size() == 2);
  CHECK(report["cases"][0]["verdict"] == "pass");
  CHECK(report["cases"][1]["verdict"] == "fail");
}

TEST_CASE("a program is held to the invariants, and fails those it breaks", "[external]") {
  const Output healthy = with("$KDA capture {in} --replace -o {out} --variant recurrent", "--invariants -v");
  CHECK(healthy.code == 0);
  CHECK_THAT(healthy.out, ContainsSubstring("invariant neighbour"));
  const Output ahead = with(
      "$KDA capture {in} --replace -o {out} --variant chunk --arithmetic decay=anchor-mid", "--invariants");
  CHECK(ahead.code == 1);
  CHECK_THAT(ahead.out, ContainsSubstring("1 failed"));
  CHECK_THAT(ahead.out, ContainsSubstring("differing_bits"));
}

TEST_CASE("a program that gives no answer fails, with the reason", "[external]") {
  const auto fails = [](const std::string& command, const std::string& reason, const std::string& more = "") {
    const Output output = with(command, more);
    INFO(command << '\n' << output.out << output.err);
    CHECK(output.code == 1);
    CHECK_THAT(output.out, ContainsSubstring("FAIL external fp32: " + reason));
  };
  fails("echo no such device >&2; exit 3 # {in} {out}", "exit status 3; it said: no such device");
  fails("kill -SEGV \\$\\$ # {in} {out}", "it was ended by signal 11");
  fails("sleep 60 # {in} {out}", "no answer within 1 s", "--external-timeout 1");
  fails("echo garbage > {out} # {in}", "{out} cannot be read: the file is not HDF5");
  fails("rm {out} # {in}", "{out} cannot be read");
  fails("$KDA make corr_keys:T=5 --replace -o {out} # {in}", "{out} has no group in expected");
}

TEST_CASE("outputs that a program never writes are NaN", "[external]") {
  const Output output = with("true {in} {out}");
  CHECK(output.code == 1);
  CHECK_THAT(output.out, ContainsSubstring("4096 x NaN for finite"));
}

TEST_CASE("exit status 77 says that a problem is not for the program", "[external]") {
  const Folder folder;
  std::ofstream(folder / "odd.sh") << "case $($KDA show $1 --headers) in *T=5*) exit 77;; esac\n"
                                      "$KDA capture $1 --variant naive --replace -o $2\n";
  const Output output = shell("export KDA; $KDA run control:T=4 control:T=5 --variant none --external 'sh " +
                              (folder / "odd.sh").string() + " {in} {out}'");
  INFO(output.out << output.err);
  CHECK(output.code == 0);
  CHECK_THAT(output.out, ContainsSubstring("SKIPPED external") && ContainsSubstring("1 passed"));
}

TEST_CASE("a program that answers no problem at all ends the run with 1", "[external]") {
  const Output output = with("exit 77 # {in} {out}");
  CHECK(output.code == 1);
  CHECK_THAT(output.out, ContainsSubstring("SKIPPED external"));
  CHECK_THAT(output.err, ContainsSubstring("external answered nothing: skipped everywhere"));
}

TEST_CASE("a program that cannot be run is an error of the environment, a wrong command line one of usage",
          "[external]") {
  CHECK(with("/no/such/program {in} {out}").code == 4);
  CHECK(with("cp {in} /dev/null").code == 2);
  CHECK(with("").code == 2);
  CHECK(with("true {in} {out}", "--external-name chunk").code == 2);
}

TEST_CASE("an empty TMPDIR is no TMPDIR", "[external]") {
  const std::string words = "$KDA run " + test::small + " -q --external 'exit 1 # {in} {out}'";
  const Output usual = shell("unset TMPDIR; " + words), empty = shell("TMPDIR= " + words);
  CHECK(empty.code == 1);
  CHECK(empty.out == usual.out);
  CHECK(empty.err == usual.err);
}

TEST_CASE("nothing of a program's files or processes is left, whatever ended the run", "[external]") {
  const Folder folder;
  const std::string here = "TMPDIR='" + (folder / "").string() + "' ";
  CHECK(shell(here + "$KDA run " + test::small + " --external 'exit 1 # {in} {out}'").code == 1);
  CHECK(folder.entries() == 0);
  const Output output = shell(here + "$KDA run " + test::small +
                              " --external 'exec sleep 30.25 # {in} {out}' & P=$!; sleep 0.7; "
                              "kill -TERM $P; wait $P; sleep 0.1; ps -eo args | grep -c '^sleep 30.25'");
  CHECK(output.out.ends_with("0\n"));
  CHECK(folder.entries() == 0);
}

}  // namespace external_tests
