/* What files and directories that replace others whole have in common: the name that they have
 * until they are complete, and making a name survive a power cut. */
#ifndef SLI_CORE_FILE_NAMES_H
#define SLI_CORE_FILE_NAMES_H

#include "sluice/status.h"

/* "dir/name" becomes "dir/.name.0123456789abcdef.tmp", malloc'ed. Error sentences begin with
 * `shown`. */
sl_status sli_temporary_name(const char *path, const char *shown, char **out);

/* Brings the directory that holds `path` to disk, and with it the name. */
sl_status sli_sync_name(const char *path, const char *shown);

/* Brings the entries of the directory `path` to disk. */
sl_status sli_sync_directory(const char *path, const char *shown);

#endif
