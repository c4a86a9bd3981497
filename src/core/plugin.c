#include "core/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char folder[] = SLI_INSTALLED_LIBRARY_FOLDER "/sluice";

/* Where the plugin is there, dlerror names a library which it needs, not the plugin. */
static bool is_missing(const char *name, const char *why)
{
    size_t length = strlen(name);
    return strncmp(why, name, length) == 0 &&
           strncmp(why + length, ": cannot open shared object file", 32) == 0;
}

static sl_status open_object(const sli_plugin *plugin, void **out)
{
    char installed[sizeof folder + 64];
    snprintf(installed, sizeof installed, "%s/%s", folder, plugin->file);
    const char *names[] = {plugin->file, installed};
    for (int i = 0; i < 2; i++) {
        *out = dlopen(names[i], RTLD_NOW | (plugin->global ? RTLD_GLOBAL : RTLD_LOCAL));
        if (*out)
            return SL_OK;
        const char *why = dlerror();
        if (!is_missing(names[i], why))
            return sl_error(SL_ERR_UNSUPPORTED, "there is no %s on this machine: %s", plugin->needs,
                            why);
    }
    return sl_error(SL_ERR_UNSUPPORTED,
                    "%s was not found, neither on the program's library path nor in %s: install "
                    "it, or build with %s",
                    plugin->file, folder, plugin->needs);
}

sl_status sli_plugin_open(const sli_plugin *plugin, sli_plugin_function **out)
{
    void *object;
    *out = NULL;
    SL_TRY(open_object(plugin, &object));
    void *symbol = dlsym(object, plugin->symbol);
    if (!symbol)
        return sl_error(SL_ERR_UNSUPPORTED, "%s is not a plugin of sluice: %s", plugin->file,
                        dlerror());
    memcpy(out, &symbol, sizeof *out);
    return SL_OK;
}
