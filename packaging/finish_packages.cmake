# Run by cpack on the files of the packages: folders can be entered by everyone, whatever the umask is, and manual
# pages and changelogs are compressed.
file(CHMOD_RECURSE ${CPACK_TEMPORARY_DIRECTORY} DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
file(GLOB_RECURSE plain ${CPACK_TEMPORARY_DIRECTORY}/*.1 ${CPACK_TEMPORARY_DIRECTORY}/*/changelog)
if(plain)
  execute_process(COMMAND gzip --best --no-name ${plain} COMMAND_ERROR_IS_FATAL ANY)
endif()
