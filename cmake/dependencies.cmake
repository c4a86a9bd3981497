# Libraries that sluice is built on; docs/dependencies.md gives the reason for each.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
# Not its CMake package: Debian's asks for OpenCL headers, which sluice has no use for.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
find_path(UNISTRING_INCLUDE_DIR unistr.h REQUIRED)
find_library(UNISTRING_LIBRARY unistring REQUIRED)
if(SLUICE_TESTS)
  pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
endif()
