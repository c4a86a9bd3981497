# Warnings and sanitizers, the same for every target of the project.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes)
if(SLUICE_WERROR)
  add_compile_options(-Werror)
endif()

if(SLUICE_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(SLUICE_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT SLUICE_SANITIZE STREQUAL "none")
  message(FATAL_ERROR "SLUICE_SANITIZE must be none, address or thread, got ${SLUICE_SANITIZE}")
endif()
if(NOT SLUICE_SANITIZE STREQUAL "none")
  # A sanitizer calls dlopen in the program's place: it is the old kind of run path that it sees.
  add_link_options(-Wl,--disable-new-dtags)
endif()
