add_compile_definitions(KDA_CHECK_VERSION="${PROJECT_VERSION}")

# One target per layer. A layer sees the headers of the layers it links and no others: each has a folder of its own to
# look for headers in, where its name stands for its sources, and hands it on to those who link it. An include of
# another layer's header does not compile (tests/scripts/layers.sh).

# What every translation unit is compiled with. Roundings are facts of the source: no contraction, no fast-math.
# A local name may be that of something in another file: with several files as one that says nothing (preset all does not).
add_library(kda_check_flags INTERFACE)
set(shadow -Wshadow)
if(KDA_CHECK_UNITY)
  set(shadow "$<$<CXX_COMPILER_ID:GNU>:-Wshadow=local>")
endif()
target_compile_options(kda_check_flags INTERFACE
  "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-ffp-contract=off;-Wall;-Wextra;${shadow};-Wpedantic>"
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -ftz=false -prec-div=true -prec-sqrt=true --expt-relaxed-constexpr -Xcompiler=-ffp-contract=off,-Wall,-Wextra>)
# g++ takes half a gigabyte before it looks for memory to free: a tenth of its time.
target_compile_options(kda_check_flags INTERFACE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>")
if(KDA_CHECK_WERROR)
  target_compile_options(kda_check_flags INTERFACE $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Werror>)
endif()
# A finding ends the program: a test that goes on behind one would stay green. But for fuzzing, the undefined-behaviour sanitizer
# does not ask of each access whether its pointer is null, wraps or has an object: a quarter of clang's time, in kernels two
# thirds. The address sanitizer finds what such a pointer touches outside our memory.
set(instrument "")
if(KDA_CHECK_SANITIZE)
  list(APPEND instrument -fsanitize=${KDA_CHECK_SANITIZE})
  if(NOT KDA_CHECK_FUZZ)
    list(APPEND instrument -fno-sanitize=null,pointer-overflow,object-size)
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    list(APPEND instrument -fsanitize-ignorelist=${PROJECT_SOURCE_DIR}/cmake/sanitizers.ignore)
  endif()
endif()
if(KDA_CHECK_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "KDA_CHECK_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++")
  endif()
  list(APPEND instrument -fsanitize=fuzzer-no-link)
endif()
if(instrument)
  target_compile_options(kda_check_flags INTERFACE
    "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${instrument};-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
  target_link_options(kda_check_flags INTERFACE ${instrument})
endif()

# kda_check_headers(TARGET NAME FOLDER [FILE ...]): who links TARGET may include "NAME/...": all of FOLDER, or these files
# of it.
function(kda_check_headers target name folder)
  set(root ${PROJECT_BINARY_DIR}/include/${target})
  file(REMOVE_RECURSE ${root})
  if(ARGN)
    foreach(file ${ARGN})
      get_filename_component(inside ${root}/${name}/${file} DIRECTORY)
      file(MAKE_DIRECTORY ${inside})
      file(CREATE_LINK ${folder}/${file} ${root}/${name}/${file} SYMBOLIC)
    endforeach()
  else()
    get_filename_component(inside ${root}/${name} DIRECTORY)
    file(MAKE_DIRECTORY ${inside})
    file(CREATE_LINK ${folder} ${root}/${name} SYMBOLIC)
  endif()
  add_library(${target} INTERFACE)
  target_include_directories(${target} INTERFACE ${root})
endfunction()

# kda_check_optimise(TARGET LEVEL): in release builds. Where LEVEL is empty, what compiles soonest: a
# quarter sooner than level 1, and as fast where files, words and lists are all there is. No level changes a rounding.
function(kda_check_optimise target level)
  if(level STREQUAL "")
    # What g++ follows there is too little to say what is not initialised.
    set(level "$<IF:$<CXX_COMPILER_ID:GNU>,-Og;-finline-small-functions;-Wno-maybe-uninitialized,-O1>")
  endif()
  list(TRANSFORM level REPLACE "^([0-9])$" "-O\\1")
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:${level}>)
endfunction()

# kda_check_precompile(NAME HEADER [LINK ...]): a header to be compiled once; kda_check_use_precompiled(TARGET NAME):
# TARGET starts from it. OPTIMISE may differ, but for no optimisation at all. ccache asks for these words.
set(precompiling $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess> "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
function(kda_check_precompile name header)
  if(NOT KDA_CHECK_PRECOMPILE)
    return()
  endif()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${name}.cpp CONTENT "")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PRIVATE kda_check_flags ${ARGN})
  target_compile_options(${name} PRIVATE ${precompiling})
  target_precompile_headers(${name} PRIVATE ${header})
endfunction()
function(kda_check_use_precompiled target name)
  if(KDA_CHECK_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${name})
    target_compile_options(${target} PRIVATE ${precompiling})
  endif()
endfunction()

# kda_check_doors(TARGET NAME FOLDER [FILE ...]): TARGET_headers, for others, hands on FILEs, the doors of FOLDER (none:
# all of it); TARGET_inside, for FOLDER itself, all of it.
function(kda_check_doors target name folder)
  kda_check_headers(${target}_headers ${name} ${folder} ${ARGN})
  if(ARGN)
    # Of a folder that has other layers in it, its own files; CMake has to run again for a new one.
    set(own "")
    file(GLOB within ${folder}/*/*.cu)
    if(within)
      file(GLOB own RELATIVE ${folder} ${folder}/*.hpp ${folder}/*.cuh)
    endif()
    kda_check_headers(${target}_inside ${name} ${folder} ${own})
  else()
    add_library(${target}_inside INTERFACE)
    target_link_libraries(${target}_inside INTERFACE ${target}_headers)
  endif()
  # What tests/scripts/layers.sh looks at: the layers in their order, where each looks for headers, and its doors.
  set_property(GLOBAL APPEND PROPERTY KDA_CHECK_LAYERS ${name})
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/include/${target}.txt
       CONTENT "$<JOIN:$<TARGET_PROPERTY:${target}_inside,INTERFACE_INCLUDE_DIRECTORIES>,\n>\n")
endfunction()

# kda_check_layer(NAME [HEADERS FILE ...] [SOURCES FILE ...] [LINK TARGET ...] [PRIVATE_LINK TARGET ...]
#                 [OPTIMISE LEVEL] [PRECOMPILED]): the static library kda_check_NAME of src/NAME, where each / of a name is
#                 a _; without sources an interface. Lowest layer first.
#
#   HEADERS     its doors: the only ones that others may include; none stated: all
#   SOURCES     in src/NAME
#   OPTIMISE    of release builds, where it is worth the compiler's time; 3 for what touches every element of a tensor
#   PRECOMPILED starts from src/precompiled.hpp; has to link kda_check_fmt, directly or not
function(kda_check_layer name)
  cmake_parse_arguments(layer "PRECOMPILED" "OPTIMISE" "HEADERS;SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  set(folder ${PROJECT_SOURCE_DIR}/src/${name})
  string(REPLACE / _ target kda_check_${name})
  kda_check_doors(${target} ${name} ${folder} ${layer_HEADERS})
  target_link_libraries(${target}_headers INTERFACE ${layer_LINK})
  target_link_libraries(${target}_inside INTERFACE ${layer_LINK} ${layer_PRIVATE_LINK})
  if(NOT layer_SOURCES)
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${target}_headers)
    return()
  endif()
  list(TRANSFORM layer_SOURCES PREPEND ${folder}/)
  add_library(${target} STATIC ${layer_SOURCES})
  target_link_libraries(${target} PUBLIC kda_check_flags ${target}_headers ${layer_LINK} PRIVATE ${target}_inside ${layer_PRIVATE_LINK})
  # Optimising takes clang half of its time with sanitizers: only what touches every element is worth it.
  set(precompiled kda_check_precompiled)
  if(CMAKE_BUILD_TYPE STREQUAL Sanitize AND NOT layer_OPTIMISE STREQUAL 3)
    target_compile_options(${target} PRIVATE -O0)
    set(precompiled kda_check_precompiled_plain)
  endif()
  kda_check_optimise(${target} "${layer_OPTIMISE}")
  # What files include is compiled once for each 24 of them; what they call alike in unnamed namespaces g++ refuses.
  if(KDA_CHECK_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
  endif()
  if(layer_PRECOMPILED)
    kda_check_use_precompiled(${target} ${precompiled})
  endif()
endfunction()
