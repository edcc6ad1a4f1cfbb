// What most files of the layers above the kernels include, compiled once for all of them
// (cmake/layers.cmake). No file may count on it: the preset all compiles without.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// base/formatting.cpp has this compiled; each file that formats into a string would compile it again.
extern template void fmt::detail::vformat_to(fmt::detail::buffer<char>&, fmt::string_view,
                                             fmt::basic_format_args<FMT_BUFFER_CONTEXT(char)>,
                                             fmt::detail::locale_ref);
