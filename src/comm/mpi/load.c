#include "comm/mpi/load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char plugin_name[] = "sluice_mpi.so";

/* Opens the plugin where the program, or libsluice.so, was linked to look for it (the build's
 * folder, or that of the library it was installed with), else where cmake was told to install it.
 * What lies beside a program is not looked at: others may be able to write there. */
static sl_status open_plugin(void **out)
{
    static const char installed[] = SLI_INSTALLED_LIBRARY_FOLDER "/sluice/sluice_mpi.so";
    const char *names[] = {plugin_name, installed};
    for (int i = 0; i < 2; i++) {
        /* Open MPI opens plugins of its own, which may look for MPI's symbols among the global
         * ones.
         */
        *out = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
        if (*out)
            return SL_OK;
        /* Where the plugin is there, the name is that of a library which it needs. */
        const char *why = dlerror();
        size_t length = strlen(names[i]);
        if (strncmp(why, names[i], length) != 0 ||
            strncmp(why + length, ": cannot open shared object file", 32) != 0)
            return sl_error(SL_ERR_UNSUPPORTED, "there is no MPI on this machine: %s", why);
    }
    return sl_error(SL_ERR_UNSUPPORTED,
                    "%s was not found, neither on the program's library path nor in %s/sluice: "
                    "install it, or build with MPI",
                    plugin_name, SLI_INSTALLED_LIBRARY_FOLDER);
}

sl_status sli_transport_load(const sli_transport **out)
{
    void *plugin;
    *out = NULL;
    SL_TRY(open_plugin(&plugin));
    sli_transport_entry entry;
    void *symbol = dlsym(plugin, SLI_TRANSPORT_SYMBOL);
    if (!symbol)
        return sl_error(SL_ERR_UNSUPPORTED, "%s is no plugin of sluice: %s", plugin_name,
                        dlerror());
    memcpy(&entry, &symbol, sizeof entry);
    *out = entry();
    return SL_OK;
}
