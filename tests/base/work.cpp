#include "base/threads/work.hpp"

#include "base/threads/parallel.hpp"
#include "support/catch.hpp"

namespace work_tests {

using kda_check::parallel_for;
using kda_check::Work;

TEST_CASE("what is done of a whole is that of its parts, at work and ended", "[base]") {
  const Work whole(10);
  CHECK(whole.done() == 0);
  {
    const Work part(4, 200);
    parallel_for(50, 3, [](std::size_t, int) { Work::count(2); });
    CHECK(whole.done() == 2);
    {
      const Work inner(1, 4);  // a part of the part, beside what that counts itself
      Work::count(1);
      CHECK(whole.done() == 2.25);
    }
    CHECK(whole.done() == 3);
    Work::count(1000);
    CHECK(whole.done() == 4);  // more than was foreseen
  }
  CHECK(whole.done() == 4);
}

TEST_CASE("a part that counted nothing is done when it ends", "[base]") {
  const Work whole(2);
  { const Work part(2, 0); }
  CHECK(whole.done() == 2);
}

TEST_CASE("where nobody asks for the whole nothing is at hand", "[base]") {
  const Work part(1, 1);
  CHECK(Work::at_hand() == nullptr);
  Work::count(1);
  CHECK(part.done() == 0);
}

TEST_CASE("threads that work for somebody have his work at hand, and only as long", "[base]") {
  const Work whole(1);
  std::atomic<int> strangers = 0;
  parallel_for(8, 4, [&](std::size_t, int) { strangers += Work::at_hand() != &whole; });
  CHECK(strangers == 0);
  {
    const Work::Here nothing(nullptr);
    parallel_for(8, 4, [&](std::size_t, int) { strangers += Work::at_hand() == nullptr; });
  }
  CHECK(strangers == 8);
  CHECK(Work::at_hand() == &whole);
}

}  // namespace work_tests
