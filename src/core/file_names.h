/* What files and directories that replace others whole have in common: the name that they have
 * until they are complete, and making a name survive a power cut. */
#ifndef SLI_CORE_FILE_NAMES_H
#define SLI_CORE_FILE_NAMES_H

#include "sluice/status.h"

#include <stdint.h>

/* A number that no other name has. */
sl_status sli_draw_number(const char *shown, uint64_t *out);

/* "dir/name" becomes "dir/.name.0123456789abcdef.tmp", malloc'ed: `number` in hexadecimal, or one
 * that is drawn. Error sentences begin with `shown`. */
sl_status sli_numbered_name(const char *path, const char *shown, uint64_t number, char **out);
sl_status sli_temporary_name(const char *path, const char *shown, char **out);

/* Brings the directory that holds `path` to disk, and with it the name. */
sl_status sli_sync_name(const char *path, const char *shown);

/* Brings the entries of the directory `path` to disk. */
sl_status sli_sync_directory(const char *path, const char *shown);

#endif
