# What a build needs and may lack: all of it is looked for before anything is said, and said by the names of packages.

# kda_check_need(PACKAGE KIND NAME ...): find_KIND(NAME ...), of what PACKAGE has on Debian 12 and Ubuntu 24.04. The
# scripts install the packages of these lines (scripts/lib/build.sh).
set(kda_check_missing "")
macro(kda_check_need package kind name)
  if("${kind}" STREQUAL "package")
    find_package(${name} QUIET ${ARGN})
  else()
    cmake_language(CALL find_${kind} ${name} ${ARGN})
  endif()
  if(NOT ${name}_FOUND AND NOT ${name})
    list(APPEND kda_check_missing ${package})
  endif()
endmacro()

# kda_check_need_archive(PACKAGE NAME): libNAME.a, KDA_CHECK_ARCHIVE_NAME, which a static program alone cannot do without.
macro(kda_check_need_archive package name)
  set(kda_check_missing_before ${kda_check_missing})
  kda_check_need(${package} library KDA_CHECK_ARCHIVE_${name} NAMES lib${name}.a
                 PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/hdf5/serial PATH_SUFFIXES hdf5/serial)
  if(NOT KDA_CHECK_STATIC)
    set(kda_check_missing ${kda_check_missing_before})
  endif()
endmacro()

function(kda_check_say_missing)
  if(kda_check_missing)
    list(REMOVE_DUPLICATES kda_check_missing)
    list(JOIN kda_check_missing " " names)
    # Indented, for CMake to leave the line as it is.
    message(FATAL_ERROR "  kda-check: error: missing packages; hint: as root: apt-get install ${names}")
  endif()
endfunction()

# CMake can look for nothing without a compiler.
find_program(kda_check_compiler NAMES $ENV{CXX} ${CMAKE_CXX_COMPILER} c++ g++ clang++ NO_CACHE)
if(NOT kda_check_compiler)
  file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake calls REGEX "^kda_check_need")
  list(TRANSFORM calls REPLACE "^[a-z_]*\\(([^ ]*) .*" "\\1")
  set(kda_check_missing g++ ${calls})
  kda_check_say_missing()
endif()
