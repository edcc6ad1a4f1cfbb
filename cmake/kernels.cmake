# The kernels, compiled once for each instruction set.
#
# What the objects of one instruction set define besides its table - functions of the kernels, but also whatever header
# they include, the standard library's too - must never stand in for a namesake that was compiled for any processor:
# the linker keeps one copy of an inline function, and it may keep this one. So they become one relocatable object in
# which every name is local but the table's. tests/scripts/kernel_symbols.sh holds the build to it.
find_program(KDA_CHECK_LD NAMES ld.bfd ld REQUIRED)

# The table is the door for src/kda, with what it takes and the rules of single elements; cuda compiles the kernels, too.
kda_check_doors(kda_check_kda_kernels kda/kernels ${PROJECT_SOURCE_DIR}/src/kda/kernels
  table.hpp backward_blocks.hpp chunk_backward_block.hpp element_block.hpp operations.hpp oracle_blocks.hpp
  elements/gradient_rules.hpp elements/special.hpp truth/gate_functions.hpp truth/gradient_elements.hpp truth/oracle_elements.hpp
  truth/row_norm.hpp)
target_link_libraries(kda_check_kda_kernels_headers INTERFACE kda_check_kda_arithmetic_headers)
target_link_libraries(kda_check_kda_kernels_inside INTERFACE kda_check_kda_arithmetic_headers)

set(kda_check_kernel_sources table.cpp chunk/chunk.cpp chunk/chunk_backward.cpp chunk/segments.cpp elements/approximations.cpp
    elements/element_errors.cpp elements/elements.cpp elements/exponentials.cpp elements/row_errors.cpp sums/sums.cpp token/any_tokens.cpp
    token/stored_state.cpp token/tokens.cpp truth/gradient_oracle.cpp truth/oracle.cpp truth/rounding_probe.cpp truth/stage_oracle.cpp)
list(TRANSFORM kda_check_kernel_sources PREPEND ${PROJECT_SOURCE_DIR}/src/kda/kernels/)
# g++ moves what a selection may discard behind a branch, and then does one number at a time, five times as slow.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kda/kernels/elements/approximations.cpp PROPERTIES
  COMPILE_OPTIONS "$<$<CXX_COMPILER_ID:GNU>:-fno-tree-sink>")

# kda_check_kernels(ISA OPTIONS ...): adds the object to KDA_CHECK_KERNEL_OBJECTS.
#
# -fno-math-errno and -fno-trapping-math change no result: they let square roots and selections be vectorised. Two
# warnings are off: one about the ABI of passing wide vectors between functions (only those of one instruction set call
# each other), one about g++'s own AVX-512 header (its bug 105593). -fno-gnu-unique: names of that kind stay global.
set(KDA_CHECK_KERNEL_OBJECTS)
function(kda_check_kernels isa)
  set(target kda_check_kernels_${isa})
  add_library(${target} OBJECT ${kda_check_kernel_sources})
  target_compile_definitions(${target} PRIVATE KDA_CHECK_ISA=${isa})
  # Beside this processor's, the baseline is there to compare bits: optimised less, which changes none and is sooner done.
  set(level 3)
  if(isa STREQUAL baseline AND KDA_CHECK_NATIVE AND KDA_CHECK_BASELINE)
    set(level 1)
  endif()
  set(options $<$<CONFIG:Release>:-O${level}> -fno-lto -fno-math-errno -fno-trapping-math -Wno-psabi
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-fno-gnu-unique>" ${ARGN})
  target_compile_options(${target} PRIVATE ${options})
  target_link_libraries(${target} PRIVATE kda_check_flags kda_check_kda_kernels_inside)
  kda_check_precompile(kda_check_precompiled_${isa} ${PROJECT_SOURCE_DIR}/src/precompiled_kernels.hpp)
  if(TARGET kda_check_precompiled_${isa})
    target_compile_options(kda_check_precompiled_${isa} PRIVATE ${options})
  endif()
  kda_check_use_precompiled(${target} kda_check_precompiled_${isa})
  set(object ${PROJECT_BINARY_DIR}/kernels/${isa}.o)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/kernels)
  add_custom_command(OUTPUT ${object} BYPRODUCTS ${object}.all COMMENT "Kernels for ${isa}: one object, one name"
    COMMAND ${KDA_CHECK_LD} -r --force-group-allocation -o ${object}.all $<TARGET_OBJECTS:${target}>
    COMMAND ${CMAKE_OBJCOPY} --keep-global-symbol=${target} ${object}.all ${object}
    DEPENDS $<TARGET_OBJECTS:${target}> COMMAND_EXPAND_LISTS VERBATIM)
  set(KDA_CHECK_KERNEL_OBJECTS ${KDA_CHECK_KERNEL_OBJECTS} ${object} PARENT_SCOPE)
endfunction()

# Best first, as the program tries them.
set(wanted baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(wanted x86_64_v4 x86_64_v3 baseline)
endif()
if(KDA_CHECK_NATIVE)
  kda_check_native_instruction_set(wanted)
  if(KDA_CHECK_BASELINE AND NOT wanted STREQUAL baseline)
    list(APPEND wanted baseline)
  endif()
endif()
foreach(isa ${wanted})
  set(options)
  if(isa MATCHES "^x86_64_(v[34])$")
    set(options -march=x86-64-${CMAKE_MATCH_1})
  endif()
  kda_check_kernels(${isa} ${options})
endforeach()

add_library(kda_check_kda_kernels STATIC ${PROJECT_SOURCE_DIR}/src/kda/kernels/dispatch.cpp ${KDA_CHECK_KERNEL_OBJECTS})
set_source_files_properties(${KDA_CHECK_KERNEL_OBJECTS} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
set_property(GLOBAL PROPERTY KDA_CHECK_INSTRUCTION_SETS ${wanted})
list(TRANSFORM wanted PREPEND KDA_CHECK_HAS_)
target_compile_definitions(kda_check_kda_kernels PRIVATE ${wanted})
target_link_libraries(kda_check_kda_kernels PUBLIC kda_check_flags kda_check_kda_kernels_headers kda_check_numeric PRIVATE kda_check_kda_kernels_inside kda_check_base)
