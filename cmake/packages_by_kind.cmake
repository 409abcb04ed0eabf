# SPDX-License-Identifier: Apache-2.0
# cpack reads it for each kind of package (packages.cmake).
if(CPACK_GENERATOR STREQUAL DEB)
  set(CPACK_COMPONENTS_ALL packaged debian)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY OFF)
else()
  set(CPACK_COMPONENTS_ALL packaged tarball)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
