# SPDX-License-Identifier: Apache-2.0
# Every dependency, with its minimum version, in one place. scripts/setup.sh installs them on Debian.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)  # Asio, intrusive: headers only
find_package(fmt 9 REQUIRED)
find_package(spdlog 1.10 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
find_package(tomlplusplus 3.3 REQUIRED)
find_package(GTest 1.12 REQUIRED)
find_package(benchmark 1.7 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash>=0.8.1)
pkg_check_modules(prometheus REQUIRED IMPORTED_TARGET prometheus-cpp-core>=1.0)
find_package(FlatBuffers 2.0 REQUIRED NAMES FlatBuffers flatbuffers)
find_program(FLATC flatc REQUIRED)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
