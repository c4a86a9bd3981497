/* CUDA devices in a list:
 *
 *     cuda:0      the first GPU
 *     cuda:0/1    a virtual device of the first GPU: streams and memory of its own, so that a
 *                 pipeline of several stages runs on one GPU
 */
#include "core/environment.h"
#include "core/plugin.h"
#include "device/cuda/cuda_plugin.h"

#include <string.h>

enum { GPU, VIRTUAL }; /* the forms; first: the GPU, last: the virtual device's number */

static bool parse_name(sli_device_name *name)
{
    const char *rest = name->text + strlen("cuda");
    name->form = GPU;
    name->last = 0;
    if (*rest++ != ':' || !sli_device_number_parse(&rest, &name->first))
        return false;
    if (*rest == '\0')
        return true;
    name->form = VIRTUAL;
    return *rest++ == '/' && sli_device_number_parse(&rest, &name->last) && *rest == '\0';
}

static sl_status check_names(const sli_device_name *names, int count)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (names[i].form == names[j].form && names[i].first == names[j].first &&
                names[i].last == names[j].last)
                return sl_error(SL_ERR_INVALID, "the device \"%s\" is named twice", names[i].text);
    return SL_OK;
}

static sl_status set_error(sl_status status, const char *text)
{
    return sl_error(status, "%s", text);
}

static sl_status open_plugin(const sli_cuda_plugin **out)
{
    static const sli_plugin plugin = {"sluice_cuda.so", "CUDA", SLI_CUDA_SYMBOL, false};
    static const sli_cuda_host host = {sl_version, set_error, sli_device_init, sli_device_finish,
                                       sli_device_out_of_memory};
    sli_plugin_function *entry;
    *out = NULL;
    SL_TRY(sli_plugin_open(&plugin, &entry));
    *out = ((sli_cuda_entry *)entry)(&host);
    if (!*out)
        return sl_error(SL_ERR_UNSUPPORTED, "%s is of another version of sluice than %s",
                        plugin.file, sl_version());
    return SL_OK;
}

static sl_status create_devices(const sli_device_request *request, sl_device **out, bool *shared)
{
    const sli_cuda_plugin *plugin;
    bool fill;
    (void)shared; /* they use no cores */
    sl_status status = open_plugin(&plugin);
    if (status != SL_OK)
        return sl_error_context(status, "%s: ", request->names[request->first].text);
    SL_TRY(sli_debug_contains("memory", &fill));
    int size = request->end - request->first;
    for (int i = 0; i < size && status == SL_OK; i++) {
        const sli_device_name *name = &request->names[request->first + i];
        status = plugin->create(name->text, name->first, fill, &out[i]);
    }
    for (int i = 0; i < size && status != SL_OK; i++)
        sl_device_destroy(&out[i]);
    return status;
}

static sl_status count_gpus(int *out)
{
    const sli_cuda_plugin *plugin;
    *out = 0;
    SL_TRY(open_plugin(&plugin));
    return plugin->count(out);
}

const sli_device_kind sli_cuda_kind = {
    .prefix = "cuda",
    .forms = "cuda:NUMBER or cuda:NUMBER/NUMBER",
    .has_own_memory = true,
    .parse = parse_name,
    .check = check_names,
    .create = create_devices,
    .count = count_gpus,
};
