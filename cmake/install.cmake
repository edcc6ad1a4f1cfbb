# cmake --install, and packages: cpack -G DEB, TGZ. The program finds its cases beside itself, at ../share/kda-check.
include(GNUInstallDirs)

install(TARGETS kda-check RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# cmake --install BUILD --component mpi; packages would ask for a whole MPI because of it.
if(TARGET kda_check_mpi_module)
  install(TARGETS kda_check_mpi_module LIBRARY DESTINATION lib/kda-check COMPONENT mpi EXCLUDE_FROM_ALL)
endif()
install(DIRECTORY cases DESTINATION ${CMAKE_INSTALL_DATADIR}/kda-check)
if(NOT SKBUILD)
  install(DIRECTORY python/kda_check DESTINATION ${CMAKE_INSTALL_DATADIR}/kda-check/python FILES_MATCHING PATTERN "*.py" PATTERN "py.typed")
endif()
# As in the source tree: README.md refers to docs/, which has a README.md of its own.
set(documents ${CMAKE_INSTALL_DATADIR}/doc/kda-check)
install(FILES README.md LICENSE DESTINATION ${documents})
install(DIRECTORY docs DESTINATION ${documents} FILES_MATCHING PATTERN "*.md" PATTERN "*.json")

# In the wheel (pyproject.toml) what is installed lies in the package, but for what shells and man look for: that goes to
# the prefix of the Python that it is installed for.
set(for_shells "")
if(SKBUILD)
  set(for_shells ${SKBUILD_DATA_DIR}/)
  install(PROGRAMS python/kda-check DESTINATION ${SKBUILD_SCRIPTS_DIR})
endif()

# Written by the program itself, when it is installed: the build needs to run nothing.
set(generated ${PROJECT_BINARY_DIR}/generated)
function(kda_check_generated file words destination)
  install(CODE "
    file(MAKE_DIRECTORY \"${generated}\")
    execute_process(COMMAND \"$<TARGET_FILE:kda-check>\" ${words} OUTPUT_FILE \"${generated}/${file}\" RESULT_VARIABLE code)
    if(NOT code EQUAL 0)
      message(FATAL_ERROR \"kda-check ${words}: \${code}\")
    endif()")
  install(FILES ${generated}/${file} DESTINATION ${destination})
endfunction()
kda_check_generated(kda-check.1 "man" ${for_shells}${CMAKE_INSTALL_MANDIR}/man1)
kda_check_generated(kda-check "completions bash" ${for_shells}${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
kda_check_generated(kda-check.fish "completions fish" ${for_shells}${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
kda_check_generated(_kda-check "completions zsh" ${for_shells}${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
# Where the zsh of Debian looks for what packages bring.
install(FILES ${generated}/_kda-check DESTINATION ${for_shells}${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)

set(CPACK_PACKAGE_NAME kda-check)
set(CPACK_PACKAGE_VENDOR "kda-check")
set(CPACK_PACKAGE_CONTACT "the developers of kda-check")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Verifies the numerics of Kimi Delta Attention kernels")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
find_program(KDA_CHECK_SHLIBDEPS dpkg-shlibdeps)
if(KDA_CHECK_SHLIBDEPS)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
endif()
include(CPack)
