# SPDX-License-Identifier: Apache-2.0
# For C++ users: libkvcove.a and libkvcove.so, made of the objects of the modules up to `pool`, libkvcove-server.a,
# made of those that serve others, and the files that find_package and pkg-config read. docs/cpp.md is the page for users.
include(GNUInstallDirs)

# What users may include: pool/pool.h and what it needs. A test compiles each of them alone, from where it is
# installed.
set(public_headers
    kvcove/version.h
    kvcove/base/export.h kvcove/base/random.h kvcove/base/result.h
    kvcove/model/disk_stat.h kvcove/model/hints.h kvcove/model/ids.h kvcove/model/stats.h
    kvcove/pool/pool.h
    kvcove/requester/borrow.h kvcove/requester/completion.h kvcove/requester/session.h kvcove/requester/types.h)
# Sets RESULT to the objects of these modules.
function(kvcove_objects result)
  set(objects)
  foreach(module ${ARGN})
    get_target_property(type kvcove_${module} TYPE)
    if(NOT type STREQUAL INTERFACE_LIBRARY)
      list(APPEND objects $<TARGET_OBJECTS:kvcove_${module}>)
    endif()
  endforeach()
  set(${result} ${objects} PARENT_SCOPE)
endfunction()
kvcove_objects(objects fmt ${KVCOVE_LIBRARY_MODULES})

function(kvcove_library kind type)
  add_library(kvcove_${kind} ${type} ${objects})
  add_library(kvcove::${kind} ALIAS kvcove_${kind})
  set_target_properties(kvcove_${kind} PROPERTIES OUTPUT_NAME kvcove EXPORT_NAME ${kind} LINKER_LANGUAGE CXX)
  target_sources(kvcove_${kind} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
                 FILES ${public_headers})
  target_compile_features(kvcove_${kind} INTERFACE cxx_std_23)
  if(NOT KVCOVE_INSTALL)
    set_target_properties(kvcove_${kind} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

kvcove_library(static STATIC)
# By path where it is built: targets that were found here are not known in a project that adds kvcove.
# By name where it is installed: kvcoveConfig.cmake finds them.
target_link_libraries(kvcove_static INTERFACE
  "$<BUILD_INTERFACE:${OPENSSL_SSL_LIBRARY};${OPENSSL_CRYPTO_LIBRARY};${KVCOVE_XXHASH_LIBRARY};${CMAKE_DL_LIBS}>"
  "$<BUILD_INTERFACE:${CMAKE_THREAD_LIBS_INIT}>"
  "$<INSTALL_INTERFACE:OpenSSL::SSL;OpenSSL::Crypto;kvcove::xxhash;Threads::Threads;${CMAKE_DL_LIBS}>")

kvcove_library(shared SHARED)
# While the major number is 0 each minor one is an ABI of its own.
set_target_properties(kvcove_shared PROPERTIES VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_link_libraries(kvcove_shared PRIVATE OpenSSL::SSL OpenSSL::Crypto kvcove_xxhash Threads::Threads)
# Hidden are also the libraries inside, and the templates of the standard library that it instantiates.
set(exports ${CMAKE_CURRENT_LIST_DIR}/exports.map)
target_link_options(kvcove_shared PRIVATE -Wl,--version-script=${exports} -Wl,--exclude-libs,ALL)
set_target_properties(kvcove_shared PROPERTIES LINK_DEPENDS ${exports})

# What a project that adds kvcove links when it has no wish. Its kvcove::server is the module, which brings all others.
if(BUILD_SHARED_LIBS)
  add_library(kvcove::kvcove ALIAS kvcove_shared)
else()
  add_library(kvcove::kvcove ALIAS kvcove_static)
endif()

# Its headers need the standard of the others, also in a project that adds kvcove.
target_compile_features(kvcove_server INTERFACE cxx_std_23)

if(NOT KVCOVE_INSTALL)
  return()
endif()
# Static only: it uses much of the other library that the shared one hides.
kvcove_objects(server_objects ${KVCOVE_SERVER_MODULES})
add_library(kvcove_server_static STATIC ${server_objects})
set_target_properties(kvcove_server_static PROPERTIES OUTPUT_NAME kvcove-server EXPORT_NAME server LINKER_LANGUAGE CXX)
target_sources(kvcove_server_static PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES kvcove/server/embedded_admin.h
                                          kvcove/server/etcd_masters.h)
target_link_libraries(kvcove_server_static INTERFACE kvcove_static)

include(CMakePackageConfigHelpers)
set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/kvcove)
foreach(kind static shared server)
  set(target kvcove_${kind})
  if(kind STREQUAL server)
    set(target kvcove_server_static)
  endif()
  install(TARGETS ${target} EXPORT kvcove_${kind} FILE_SET HEADERS)
  install(EXPORT kvcove_${kind} FILE kvcove-${kind}.cmake NAMESPACE kvcove:: DESTINATION ${package_directory})
endforeach()
configure_package_config_file(cmake/kvcoveConfig.cmake.in kvcoveConfig.cmake
                              INSTALL_DESTINATION ${package_directory})
write_basic_package_version_file(kvcoveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvcoveConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/kvcoveConfigVersion.cmake
        DESTINATION ${package_directory})
# Relative to itself, so that the tree may be moved.
file(RELATIVE_PATH up /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
foreach(package kvcove kvcove-server)
  configure_file(cmake/${package}.pc.in ${package}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${package}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
if(KVCOVE_COMMAND)
  install(TARGETS kvcove)
endif()
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
