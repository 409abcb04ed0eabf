# SPDX-License-Identifier: Apache-2.0
# cpack reads it for each kind of package (packages.cmake).
if(CPACK_GENERATOR STREQUAL DEB)
  set(CPACK_COMPONENTS_ALL packaged debian)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
else()
  set(CPACK_COMPONENTS_ALL packaged tarball)
endif()
