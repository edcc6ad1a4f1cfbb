#include "report/sparkline.hpp"

#include <cmath>
#include <vector>

#include "support/catch.hpp"

namespace sparkline_tests {

using kda_check::report::sparkline;

TEST_CASE("a sparkline is logarithmic from the smallest value to the largest", "[report]") {
  CHECK(sparkline(std::vector<double>{1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7}, false) == "12345678");
  CHECK(sparkline(std::vector<double>{1, 1e7}, true) == "▁█");
}

TEST_CASE("a sparkline reaches over the whole range of numbers", "[report]") {
  CHECK(sparkline(std::vector<double>{5e-324, 1, 1e308}, false) == "158");
}

TEST_CASE("less than a decade does not fill a sparkline", "[report]") {
  CHECK(sparkline(std::vector<double>{1e-7, 1.1e-7, 1.2e-7}, false) == "111");
  CHECK(sparkline(std::vector<double>{5, 5}, false) == "11");
}

TEST_CASE("zero and what is not finite have characters of their own", "[report]") {
  CHECK(sparkline(std::vector<double>{0, 1, 10, HUGE_VAL, std::nan("")}, false) == ".18!!");
  CHECK(sparkline(std::vector<double>{0, 0}, false) == "..");
  CHECK(sparkline(std::vector<double>{}, false).empty());
}

TEST_CASE("a long row is drawn in buckets, each by its largest value", "[report]") {
  std::vector<double> values(600, 1.0);
  values[305] = 100;
  const std::string line = sparkline(values, false, 60);
  CHECK(line == std::string(30, '1') + "8" + std::string(29, '1'));
  values[305] = std::nan("");
  CHECK(sparkline(values, false, 60)[30] == '!');
}

}  // namespace sparkline_tests
