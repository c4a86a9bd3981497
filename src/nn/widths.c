/* Do the modules of a model fit together? Found out before anything runs, by the widths that they
 * expect and give. A module that says nothing of them is taken on trust, and what follows it as
 * well, until one gives a width again. */
#include "nn/module.h"

#include <inttypes.h>

/* How wide the output is at this place of the model. */
typedef struct walk {
    int64_t width;          /* 0: not known */
    const sl_module *giver; /* the module that gave it */
} walk;

static sl_status misfit(const walk *at, const sl_module *module, int64_t expected)
{
    char path[SLI_PATH_BYTES], giver[SLI_PATH_BYTES];
    return sl_error(SL_ERR_INVALID,
                    "%s (%s) expects inputs of width %" PRId64 ", but %s (%s) gives %" PRId64,
                    sli_module_path(module, path), module->ops->type, expected,
                    sli_module_path(at->giver, giver), at->giver->ops->type, at->width);
}

static sl_status pass_through(walk *at, const sl_module *module)
{
    if (sl_module_is_sequential(module)) {
        for (int i = 0; i < module->child_count; i++)
            SL_TRY(pass_through(at, module->children[i]));
        return SL_OK;
    }
    if (!module->ops->widths) {
        at->width = 0;
        return SL_OK;
    }
    int64_t in = 0, out = 0;
    module->ops->widths(module, &in, &out);
    if (in > 0 && at->width > 0 && in != at->width)
        return misfit(at, module, in);
    if (out > 0)
        *at = (walk){out, module};
    else if (at->width == 0 && in > 0)
        *at = (walk){in, module};
    return SL_OK;
}

sl_status sli_module_check_widths(const sl_module *sequential)
{
    walk at = {0, NULL};
    return pass_through(&at, sequential);
}
