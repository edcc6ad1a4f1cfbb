// Catch2 version 2 (Debian 12) or 3 (Ubuntu 24.04), and tests that cannot run here.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
#else
#include <catch2/catch.hpp>
inline auto ContainsSubstring(const std::string& text) { return Catch::Matchers::Contains(text); }
#endif

#include <cstdio>

/// Ends the test as skipped, with its reason, which scripts/test shows.
#define KDA_CHECK_SKIP(reason)                                 \
  do {                                                         \
    std::printf("SKIPPED: %s\n", std::string(reason).c_str()); \
    SUCCEED();                                                 \
    return;                                                    \
  } while (false)
