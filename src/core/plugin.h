/* Shared objects that are opened at run time, so that one library works with and without what they
 * call (MPI, CUDA). */
#ifndef SLI_CORE_PLUGIN_H
#define SLI_CORE_PLUGIN_H

#include "sluice/status.h"

typedef struct sli_plugin {
    const char *file;   /* "sluice_mpi.so" */
    const char *needs;  /* "MPI" */
    const char *symbol; /* what it exports: a function */
    bool global;        /* its libraries' symbols are seen by all others */
} sli_plugin;

typedef void sli_plugin_function(void);

/* Opens the plugin where the program, or libsluice.so, was linked to look for it (the build's
 * folder, or that of the library it was installed with), else where cmake was told to install it.
 * What lies beside a program is not looked at: others may be able to write there. It is never
 * closed. Errors: SL_ERR_UNSUPPORTED, which says what is missing. */
sl_status sli_plugin_open(const sli_plugin *plugin, sli_plugin_function **out);

#endif
