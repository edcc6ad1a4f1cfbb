#include "numeric/environment.hpp"

#include <cfenv>

#include "support/catch.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace environment_tests {

using kda_check::numeric::floating_point_defect;

TEST_CASE("the environment of the tests themselves is sound", "[environment]") {
  CHECK(floating_point_defect() == "");
}

TEST_CASE("a changed rounding mode is noticed", "[environment]") {
  for (const int mode : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const std::string defect = floating_point_defect();
    std::fesetround(FE_TONEAREST);
    CHECK_THAT(defect, ContainsSubstring("rounding mode"));
  }
}

#if defined(__x86_64__)
TEST_CASE("flushing subnormal results is noticed", "[environment]") {
  const unsigned state = _mm_getcsr();
  _mm_setcsr(state | 0x8000u);
  const std::string defect = floating_point_defect();
  _mm_setcsr(state);
  CHECK_THAT(defect, ContainsSubstring("FTZ"));
}

TEST_CASE("reading subnormal operands as zero is noticed", "[environment]") {
  const unsigned state = _mm_getcsr();
  _mm_setcsr(state | 0x0040u);
  const std::string defect = floating_point_defect();
  _mm_setcsr(state);
  CHECK_THAT(defect, ContainsSubstring("DAZ"));
}
#endif

}  // namespace environment_tests
