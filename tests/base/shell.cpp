#include "base/shell.hpp"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/file_text.hpp"
#include "base/shell_text.hpp"
#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/temporary_folder.hpp"

namespace shell_tests {

using namespace kda_check;
using test::TemporaryFolder;

TEST_CASE("a command ends with its status, its signal and the end of what it printed", "[shell]") {
  CHECK(run_shell("exit 3", 60).status == 3);
  CHECK(run_shell("kill -SEGV $$", 60).signal == SIGSEGV);
  CHECK(run_shell("sh -c 'kill -9 $$'; exit $?", 60).signal == SIGKILL);
  CHECK(run_shell("echo out; echo err >&2", 60).tail == "out\nerr");
  CHECK(run_shell("cat; echo nothing", 60).tail == "nothing");  // standard input is empty
  const ShellResult much = run_shell("yes | head -100000; echo end", 60);
  CHECK(much.tail.size() <= 2000);
  CHECK(much.tail.ends_with("y\nend"));
  CHECK(run_shell("/no/such/program", 60).status == 127);
}

TEST_CASE("whatever a command leaves running is killed, when it ends and when its time is up", "[shell]") {
  const TemporaryFolder folder;
  const std::string number = folder / "number";
  for (const bool hangs : {false, true}) {
    const ShellResult result =
        run_shell("sleep 600 & echo $! >" + number + (hangs ? "; wait" : ""), hangs ? 1 : 60);
    CHECK(result.timed_out == hangs);
    const pid_t sleeper = std::stoi(read_text(number, {"the number"}).text);
    test::wait_until_gone(sleeper);
  }
}

TEST_CASE("commands run on several threads at once", "[shell]") {
  std::vector<std::thread> threads;
  std::vector<int> found(8);
  for (int i = 0; i < 8; ++i)
    threads.emplace_back(
        [&, i] { found[static_cast<std::size_t>(i)] = run_shell("exit " + std::to_string(i), 60).status; });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 8; ++i) CHECK(found[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("a program dies with the process that started it, even where that is killed", "[shell]") {
  const TemporaryFolder folder;
  const std::string number = folder / "number";
  test::Child child([&](const auto&) {
    run_shell("echo $$ >" + number + ".tmp; mv " + number + ".tmp " + number + "; exec sleep 600", 600);
    return 0;
  });
  while (!std::filesystem::exists(number)) ::usleep(1000);
  const pid_t program = std::stoi(read_text(number, {"the number"}).text);
  child.send(SIGKILL);
  CHECK(child.ending_signal() == SIGKILL);
  test::wait_until_gone(program);
}

TEST_CASE("where children cannot be waited for, a command is an error at once", "[shell]") {
  test::Child child([](const auto&) {
    ::signal(SIGCHLD, SIG_IGN);
    try {
      run_shell("true", 600);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::environment ? 0 : 1;
    }
    return 2;
  });
  CHECK(child.exit_status() == 0);
}

TEST_CASE("placeholders are replaced whatever quotes stand around them", "[shell]") {
  const std::vector<std::string> paths = {"/tmp/plain.h5",      "/tmp/with space",    "/tmp/it's",
                                          "/tmp/say \"hello\"", "/tmp/$HOME ${HOME}", "/tmp/back\\slash\\",
                                          "/tmp/`echo no`",     "/tmp/new\nline",     "/tmp/a;b&c|d>e",
                                          "/tmp/$(echo no)",    "/tmp/*?[a]~!#"};
  struct Form {
    std::string command, before, after;
  };
  const std::vector<Form> forms = {
      {"printf '[%s]' {in}", "", ""},
      {"printf '[%s]' '{in}'", "", ""},
      {"printf '[%s]' \"{in}\"", "", ""},
      {"printf '[%s]' \"a{in}b\"", "a", "b"},
      {"printf '[%s]' a{in}b", "a", "b"},
      {"printf '[%s]' --path={in}", "--path=", ""},
      {"printf '[%s]' 'it'\\''s {in}'", "it's ", ""},
      {"printf '[%s]' \"\\\"{in}\\\"\"", "\"", "\""},
      {"printf '[%s]' \\\"{in}", "\"", ""},
      {"printf '[%s]' \"'{in}'\"", "'", "'"},
      {"printf '[%s]' '\"{in}\"'", "\"", "\""},
      {"printf '[%s]' \"$(printf %s {in})\"", "", ""},
      {"printf '[%s]' \"$(printf %s \"{in}\")\"", "", ""},
      {"printf '[%s]' \"$(printf %s '{in}')\"", "", ""},
      {"(printf '[%s]' {in})", "", ""},
      {"x={in}; printf '[%s]' \"$x\"", "", ""},
      {"printf '[%s]' \"`printf %s {in}`\"", "", ""},
      {"printf '[%s]' \"`printf %s '{in}'`\"", "", ""},
      {"sh -c 'printf \"[%s]\" \"$1\"' sh {in}", "", ""},
      {"printf '[%s]' {in} # it's {in} here", "", ""},
      {"# it's \"{in}\nprintf '[%s]' {in}", "", ""},
  };
  for (const std::string& path : paths)
    for (const Form& form : forms) {
      const std::string line = with_placeholders(form.command, {{"{in}", path}, {"{out}", "/nowhere"}});
      INFO(form.command << "\n" << path << "\n" << line);
      const ShellResult result = run_shell(line, 60);
      CHECK(result.status == 0);
      CHECK(result.tail == "[" + form.before + path + form.after + "]");
    }
  CHECK(with_placeholders("{in} {out}", {{"{in}", "/a"}, {"{out}", "/b c"}}) == "/a '/b c'");
  CHECK(with_placeholders("{in", {{"{in}", "/a"}}) == "{in");
  std::string nested;
  for (int i = 0; i < 40; ++i) nested += "`\"";
  CHECK_THROWS_AS(with_placeholders(nested + "{in}", {{"{in}", "/b c"}}), Error);  // 2^40 backslashes
  CHECK(with_placeholders("{in}", {{"{in}", "{out}"}, {"{out}", "/b"}}) == "'{out}'");
}

TEST_CASE("quoted text is one word of a shell", "[shell]") {
  for (const std::string text : {"", "plain", "it's", "a b", "\"$x`\\", "'"})
    CHECK(run_shell("printf '[%s]' " + shell_quoted(text), 60).tail == "[" + text + "]");
}

}  // namespace shell_tests
