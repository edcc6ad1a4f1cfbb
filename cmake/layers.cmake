add_compile_definitions(KDA_CHECK_VERSION="${PROJECT_VERSION}")

# One target per layer. A layer sees the headers of the layers it links, and nothing else: a wrong include does not
# link, and an upward one would be a cycle.

# What every translation unit is compiled with. Roundings are facts of the source: no contraction, no fast-math.
add_library(kda_check_flags INTERFACE)
target_compile_options(kda_check_flags INTERFACE
  $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-ffp-contract=off -Wall -Wextra -Wshadow -Wpedantic>
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -ftz=false -prec-div=true -prec-sqrt=true --expt-relaxed-constexpr -Xcompiler=-ffp-contract=off,-Wall,-Wextra>)
if(KDA_CHECK_WERROR)
  target_compile_options(kda_check_flags INTERFACE $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Werror>)
endif()
if(KDA_CHECK_SANITIZE)
  target_compile_options(kda_check_flags INTERFACE
    $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-fsanitize=${KDA_CHECK_SANITIZE} -fno-omit-frame-pointer>)
  target_link_options(kda_check_flags INTERFACE -fsanitize=${KDA_CHECK_SANITIZE})
endif()

# kda_check_layer(NAME SOURCES ... [LINK ...]): the static library kda_check_NAME.
function(kda_check_layer name)
  cmake_parse_arguments(layer "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(kda_check_${name} STATIC ${layer_SOURCES})
  target_include_directories(kda_check_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(kda_check_${name} PUBLIC kda_check_flags ${layer_LINK} PRIVATE ${layer_PRIVATE_LINK})
endfunction()
