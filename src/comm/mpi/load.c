#define _GNU_SOURCE /* dladdr */
#include "comm/mpi/load.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char plugin_name[] = "sluice_mpi.so";

/* Cuts the file's name off; false where there is no folder. */
static bool keep_folder(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
    return slash != NULL;
}

static bool program_folder(char *path, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
    if (length <= 0)
        return false;
    path[length] = '\0';
    return keep_folder(path);
}

/* Of libsluice.so, where it is one. */
static bool library_folder(char *path, size_t bytes)
{
    Dl_info info;
    if (!dladdr(plugin_name, &info) || !info.dli_fname || info.dli_fname[0] != '/')
        return false;
    snprintf(path, bytes, "%s", info.dli_fname);
    return keep_folder(path);
}

/* Beside the library, beside the program's folder (an installed program, and the build's), and
 * where cmake was told to install it. Writes the first that is there to `path`. */
static bool find_plugin(char *path, size_t bytes)
{
    char folder[PATH_MAX];
    if (library_folder(folder, sizeof folder)) {
        snprintf(path, bytes, "%s/sluice/%s", folder, plugin_name);
        if (access(path, R_OK) == 0)
            return true;
    }
    if (program_folder(folder, sizeof folder)) {
        snprintf(path, bytes, "%s/../%s/sluice/%s", folder, SLI_LIBRARY_FOLDER, plugin_name);
        if (access(path, R_OK) == 0)
            return true;
    }
    snprintf(path, bytes, "%s/sluice/%s", SLI_INSTALLED_LIBRARY_FOLDER, plugin_name);
    return access(path, R_OK) == 0;
}

sl_status sli_transport_load(const sli_transport **out)
{
    *out = NULL;
    char path[2 * PATH_MAX];
    if (!find_plugin(path, sizeof path))
        return sl_error(SL_ERR_UNSUPPORTED,
                        "this sluice was built without MPI: no %s beside the "
                        "program or in %s/sluice",
                        plugin_name, SLI_INSTALLED_LIBRARY_FOLDER);
    /* Open MPI opens plugins of its own, which may look for MPI's symbols among the global ones. */
    void *plugin = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!plugin)
        return sl_error(SL_ERR_UNSUPPORTED, "there is no MPI on this machine: %s", dlerror());
    sli_transport_entry entry;
    void *symbol = dlsym(plugin, SLI_TRANSPORT_SYMBOL);
    if (!symbol)
        return sl_error(SL_ERR_UNSUPPORTED, "%s is no plugin of sluice: %s", path, dlerror());
    memcpy(&entry, &symbol, sizeof entry);
    *out = entry();
    return SL_OK;
}
