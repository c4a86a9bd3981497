# `cpack` in the build folder makes a Debian package. Configure with -DCMAKE_INSTALL_PREFIX=/usr, so that the
# library looks for its plugin where the package puts it.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_VENDOR sluice)
set(CPACK_PACKAGE_CONTACT "The sluice authors <sluice@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_DESCRIPTION
  "The program sluice and the library libsluice cut a Transformer language model into stages that micro-batches flow through (pipeline parallelism), replicate it and average gradients (data parallelism), or both.")
set(CPACK_PACKAGING_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON) # needs dpkg-shlibdeps, of dpkg-dev
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin)
include(CPack)
