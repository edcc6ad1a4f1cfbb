// The one copy of what fmt formats into a string with: 10^5 bytes, which every other file would compile again
// (src/precompiled.hpp). The library has one, too, but not where it is headers alone, and not under the name
// that clang gives it.
#include <fmt/format.h>

template void fmt::detail::vformat_to(fmt::detail::buffer<char>&, fmt::string_view,
                                      fmt::basic_format_args<FMT_BUFFER_CONTEXT(char)>,
                                      fmt::detail::locale_ref);
