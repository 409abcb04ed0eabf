# SPDX-License-Identifier: Apache-2.0
# Every dependency, with its minimum version, in one place. scripts/setup.sh installs them on Debian.

# A program of a project that adds kvcove and links kvcove::server needs the targets of these packages, too.
if(NOT PROJECT_IS_TOP_LEVEL)
  set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
endif()
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)  # Asio, intrusive: headers only
find_package(fmt 9 REQUIRED)
if(KVCOVE_COMMAND)
  find_package(CLI11 2.1 REQUIRED)
endif()
find_package(nlohmann_json 3.11 REQUIRED)
# A project that adds kvcove chooses its OpenSSL itself.
if(PROJECT_IS_TOP_LEVEL)
  set(OPENSSL_USE_STATIC_LIBS TRUE)
endif()
find_package(OpenSSL 3.0 REQUIRED)
find_package(tomlplusplus 3.3 REQUIRED)
if(KVCOVE_TESTS)
  find_package(GTest 1.12 REQUIRED)
  find_package(benchmark 1.7 REQUIRED)
endif()
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED libxxhash>=0.8.1)
if(KVCOVE_COMMAND)
  pkg_check_modules(liburing REQUIRED liburing>=2.1)
endif()
# The header of libibverbs; the library is opened at run time where there is one.
find_path(KVCOVE_IBVERBS_INCLUDE infiniband/verbs.h REQUIRED)
find_package(FlatBuffers 2.0 REQUIRED NAMES FlatBuffers flatbuffers)
find_program(KVCOVE_FLATC flatc REQUIRED)

find_program(KVCOVE_CCACHE ccache)
if(KVCOVE_CCACHE)
  # With paths below the tree taken as relative, one build directory finds the objects of another one (pip's those of `make
  # build`). Nothing in the precompiled headers depends on macros of their users or on the time.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
                                  CCACHE_SLOPPINESS=pch_defines,time_macros ${KVCOVE_CCACHE})
endif()

# What we build runs where none of these is installed, and its symbols meet no other copy of them
# inside an engine's process: everything but the C and C++ runtime is linked in.
find_library(KVCOVE_XXHASH_LIBRARY NAMES libxxhash.a HINTS ${xxhash_LIBRARY_DIRS} REQUIRED)
add_library(kvcove_xxhash INTERFACE)
target_include_directories(kvcove_xxhash SYSTEM INTERFACE ${xxhash_INCLUDE_DIRS})
target_link_libraries(kvcove_xxhash INTERFACE ${KVCOVE_XXHASH_LIBRARY})

add_library(kvcove_ibverbs_header INTERFACE)
target_include_directories(kvcove_ibverbs_header SYSTEM INTERFACE ${KVCOVE_IBVERBS_INCLUDE})

if(KVCOVE_COMMAND)
  find_library(KVCOVE_URING_LIBRARY NAMES liburing.a HINTS ${liburing_LIBRARY_DIRS} REQUIRED)
  add_library(kvcove_liburing INTERFACE)
  target_include_directories(kvcove_liburing SYSTEM INTERFACE ${liburing_INCLUDE_DIRS})
  target_link_libraries(kvcove_liburing INTERFACE ${KVCOVE_URING_LIBRARY})
endif()

add_library(kvcove_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt.cc)
target_include_directories(kvcove_fmt SYSTEM PUBLIC
                           $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)

add_library(kvcove_tomlplusplus INTERFACE)
target_include_directories(kvcove_tomlplusplus SYSTEM INTERFACE
                           $<TARGET_PROPERTY:tomlplusplus::tomlplusplus,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_definitions(kvcove_tomlplusplus INTERFACE TOML_HEADER_ONLY=1)
