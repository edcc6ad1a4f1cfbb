// What most kernels include, compiled once for each instruction set (cmake/kernels.cmake). No file may
// count on it: the preset all compiles without.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>  // clang 14 wants __builtin_va_list used in here
#include <type_traits>
#include <utility>
#include <vector>
#ifdef __x86_64__
#include <immintrin.h>
#endif
