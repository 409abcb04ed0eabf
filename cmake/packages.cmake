# SPDX-License-Identifier: Apache-2.0
# Packages of the command, made by cpack (docs/packages.md): a .deb with the units of systemd, and a tarball.
#   cmake --build BUILD --target packaged && cpack --config BUILD/CPackConfig.cmake -G "DEB;TGZ"
# Nothing here is built or installed unless it is asked for by name.

# The command as the wheel has it, too: it starts with glibc 2.28, and libstdc++ is inside.
if(NOT TARGET kvcove_old_glibc)
  add_subdirectory(cmake/old_glibc EXCLUDE_FROM_ALL)
endif()
# Its file has another name until it is installed: ninja would take `kvcove`, the target, for this file.
add_executable(kvcove_packaged EXCLUDE_FROM_ALL kvcove/cli/main/main.cc)
set_target_properties(kvcove_packaged PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/packaged)
target_link_libraries(kvcove_packaged kvcove::cli kvcove::lab_commands)
kvcove_old_glibc(kvcove_packaged)

set(pages ${PROJECT_BINARY_DIR}/packaged/pages)
add_custom_command(OUTPUT ${pages}.made
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${pages}
  COMMAND python3 ${PROJECT_SOURCE_DIR}/scripts/command_pages.py $<TARGET_FILE:kvcove_packaged> ${pages}
  COMMAND ${CMAKE_COMMAND} -E touch ${pages}.made
  DEPENDS kvcove_packaged scripts/command_pages.py VERBATIM)
# The .deb has its own form of what has changed.
add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/packaged/changelog.gz
  COMMAND gzip -9nc ${PROJECT_SOURCE_DIR}/CHANGELOG.md > ${PROJECT_BINARY_DIR}/packaged/changelog.gz
  DEPENDS CHANGELOG.md VERBATIM)
add_custom_target(packaged DEPENDS kvcove_packaged ${pages}.made ${PROJECT_BINARY_DIR}/packaged/changelog.gz)

set(doc ${CMAKE_INSTALL_DATADIR}/doc/kvcove)
install(PROGRAMS $<TARGET_FILE:kvcove_packaged> DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME kvcove COMPONENT packaged EXCLUDE_FROM_ALL)
install(DIRECTORY ${pages}/share/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT packaged EXCLUDE_FROM_ALL)
install(FILES NOTICE DESTINATION ${doc} COMPONENT packaged EXCLUDE_FROM_ALL)

set(units deploy/systemd/kvcove-owner@.service deploy/systemd/kvcove-serve.service deploy/systemd/kvcove-master.service)
set(options deploy/systemd/owner-main.toml deploy/systemd/serve.toml deploy/systemd/master.toml)
install(FILES deploy/debian/copyright DESTINATION ${doc} COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_BINARY_DIR}/packaged/changelog.gz DESTINATION ${doc} COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES ${units} DESTINATION lib/systemd/system COMPONENT debian EXCLUDE_FROM_ALL)
install(PROGRAMS deploy/systemd/take-over DESTINATION lib/kvcove COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES ${options} DESTINATION /etc/kvcove COMPONENT debian EXCLUDE_FROM_ALL)

install(FILES LICENSE CHANGELOG.md DESTINATION ${doc} COMPONENT tarball EXCLUDE_FROM_ALL)
install(FILES ${units} ${options} deploy/systemd/README.md DESTINATION ${doc}/systemd COMPONENT tarball EXCLUDE_FROM_ALL)
install(PROGRAMS deploy/systemd/take-over DESTINATION ${doc}/systemd COMPONENT tarball EXCLUDE_FROM_ALL)

set(CPACK_PACKAGE_NAME kvcove)
set(CPACK_PACKAGE_VENDOR "kvcove")
set(CPACK_PACKAGE_CONTACT "kvcove maintainers <maintainers@kvcove.invalid>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "shared pool for the KV cache of LLM inference engines")
set(CPACK_PACKAGE_DESCRIPTION "kvcove keeps the KV cache of LLM inference engines in the memory and on the disks of hosts,
and shares it between engines. This package has the command with the units of its servers:
a pool of one host (kvcove-serve), an owner of a cluster (kvcove-owner@) and its master
(kvcove-master). None is started before you start it.")
set(CPACK_PACKAGE_FILE_NAME kvcove-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/packages_by_kind.cmake)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
# libgcc1 is the name in Debian 10. Everything else is linked in (dependencies.cmake); a test compares this with what the command asks for.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "adduser, libc6 (>= 2.28), libgcc-s1 | libgcc1")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "bash-completion, ibverbs-providers")
foreach(script conffiles postinst prerm postrm)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/deploy/debian/${script})
endforeach()
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
include(CPack)
