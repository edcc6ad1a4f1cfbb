# Libraries from the distribution's packages: cmake/packages.cmake says which are missing.

include(CheckCXXSourceCompiles)

kda_check_need(libfmt-dev package fmt)
kda_check_need(libcli11-dev package CLI11)
kda_check_need(nlohmann-json3-dev package nlohmann_json)
kda_check_need(libxtensor-dev package xtensor)
kda_check_need(libhdf5-dev package HDF5 COMPONENTS C)
kda_check_need(libtomlplusplus-dev path KDA_CHECK_TOML toml++/toml.h)
kda_check_need(libpugixml-dev path KDA_CHECK_PUGIXML_INCLUDE pugixml.hpp)
# An archive where there is one: the shared libraries bring others into every process.
kda_check_need(libpugixml-dev library KDA_CHECK_PUGIXML NAMES libpugixml.a pugixml)
kda_check_need_archive(libhdf5-dev hdf5)
kda_check_need_archive(libaec-dev sz)
kda_check_need_archive(libaec-dev aec)
kda_check_need_archive(zlib1g-dev z)
kda_check_say_missing()
find_package(Threads REQUIRED)

if(KDA_CHECK_STATIC)
  add_library(kda_check_fmt ALIAS fmt::fmt-header-only)
else()
  add_library(kda_check_fmt ALIAS fmt::fmt)
endif()

# MPI, for one module that the program loads when it is asked to (src/mpi). A static program loads nothing, and
# sanitizers have much to say of what is not ours.
if(KDA_CHECK_MPI STREQUAL "ON")
  find_package(MPI REQUIRED COMPONENTS C)
elseif(KDA_CHECK_MPI STREQUAL "AUTO" AND NOT KDA_CHECK_STATIC AND NOT KDA_CHECK_SANITIZE)
  find_package(MPI QUIET COMPONENTS C)
endif()

# HDF5, the C library, through its archive where there is one: the distribution's shared library brings thirty others
# (its network drivers) into every process, 6 MB that a run on a small fixture would notice.
add_library(kda_check_hdf5 INTERFACE)
target_include_directories(kda_check_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_compile_definitions(kda_check_hdf5 INTERFACE ${HDF5_C_DEFINITIONS})
set(archive_libraries)
foreach(name hdf5 sz aec z)
  list(APPEND archive_libraries ${KDA_CHECK_ARCHIVE_${name}})
endforeach()
if(NOT archive_libraries MATCHES NOTFOUND)
  # Some distributions build the network drivers into the archive, which then wants libraries that have no archive.
  list(APPEND archive_libraries ${CMAKE_DL_LIBS} Threads::Threads m)
  set(CMAKE_REQUIRED_INCLUDES ${HDF5_C_INCLUDE_DIRS})
  set(CMAKE_REQUIRED_LIBRARIES ${archive_libraries})
  check_cxx_source_compiles("#include <hdf5.h>\nint main() { return H5open() + (H5Fopen(\"x\", 0, 0) > 0); }"
                            KDA_CHECK_HDF5_ARCHIVE_LINKS)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()
if(KDA_CHECK_HDF5_ARCHIVE_LINKS)
  target_link_libraries(kda_check_hdf5 INTERFACE ${archive_libraries})
elseif(KDA_CHECK_STATIC)
  message(FATAL_ERROR "KDA_CHECK_STATIC needs a libhdf5.a that links with libsz.a, libaec.a and libz.a alone")
else()
  target_link_libraries(kda_check_hdf5 INTERFACE ${HDF5_C_LIBRARIES})
endif()

# toml++ as headers: the distribution's target wants its shared library, and the program needs no library more.
add_library(kda_check_toml INTERFACE)
target_include_directories(kda_check_toml SYSTEM INTERFACE ${KDA_CHECK_TOML})

# pugixml writes the JUnit report.
add_library(kda_check_pugixml INTERFACE)
target_include_directories(kda_check_pugixml SYSTEM INTERFACE ${KDA_CHECK_PUGIXML_INCLUDE})
target_link_libraries(kda_check_pugixml INTERFACE ${KDA_CHECK_PUGIXML})

# The CUDA toolkit is used when it is there and never required; a build for this machine alone has no use for it
# without a device. kda_check_cuda: ON, OFF, or PTX where the code is compiled and not used.
set(without_cuda "")
set(kda_check_cuda OFF)
kda_check_native_gpu(has_gpu)
if(KDA_CHECK_CUDA STREQUAL "OFF")
  set(without_cuda "KDA_CHECK_CUDA is OFF")
elseif(KDA_CHECK_CUDA STREQUAL "AUTO" AND KDA_CHECK_NATIVE AND NOT has_gpu)
  set(without_cuda "no NVIDIA device here")
else()
  find_package(CUDAToolkit 12 QUIET)
  if(NOT CUDAToolkit_FOUND)
    set(without_cuda "no CUDA toolkit, 12 or newer, here")
    if(KDA_CHECK_CUDA STREQUAL "ON")
      message(FATAL_ERROR "KDA_CHECK_CUDA is ON: ${without_cuda}")
    endif()
  elseif(KDA_CHECK_CUDA STREQUAL "PTX")
    set(without_cuda "KDA_CHECK_CUDA is PTX")
    set(kda_check_cuda PTX)
  else()
    set(kda_check_cuda ON)
  endif()
endif()

# A static program needs nothing at all, and runs on every Linux; with CUDA it needs glibc, which is how cudart finds the
# driver. Where glibc has no archive it needs glibc too.
set(kda_check_static_words "")
if(KDA_CHECK_STATIC)
  set(CMAKE_REQUIRED_LINK_OPTIONS -static)
  check_cxx_source_compiles("int main() {}" KDA_CHECK_LIBC_ARCHIVE)
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
  if(KDA_CHECK_LIBC_ARCHIVE AND NOT kda_check_cuda STREQUAL "ON")
    set(kda_check_static_words -static)
  else()
    set(kda_check_static_words -static-libstdc++ -static-libgcc)
  endif()
endif()
