/* Freezing parameters by their names. */
#include "nn/module.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

/* Has the parameter, or one that is tied to it, a name of this form? */
static bool has_name(const sl_parameter *parameter, const char *pattern)
{
    bool matches = fnmatch(pattern, parameter->path, 0) == 0;
    for (const sl_parameter *tied = parameter->ties; tied; tied = tied->next_tie)
        matches |= fnmatch(pattern, tied->path, 0) == 0;
    return matches;
}

/* Gives the number of parameters whose names have the form. */
static int freeze_below(sl_module *module, const char *pattern)
{
    int count = 0;
    for (int i = 0; i < module->parameter_count; i++) {
        sl_parameter *parameter = module->parameters[i];
        if (parameter->kind == SL_PARAMETER_BUFFER || !has_name(parameter, pattern))
            continue;
        parameter->kind = SL_PARAMETER_FROZEN;
        count++;
    }
    for (int i = 0; i < module->child_count; i++)
        count += freeze_below(module->children[i], pattern);
    return count;
}

/* That of any parameter, as an example. */
static const char *example_of(const sl_module *module)
{
    const char *name = module->parameter_count > 0 ? module->parameters[0]->path : NULL;
    for (int i = 0; i < module->child_count && !name; i++)
        name = example_of(module->children[i]);
    return name;
}

sl_status sli_module_freeze_named(sl_module *root, const char *patterns)
{
    char *rest = NULL, *copy = strdup(patterns);
    if (!copy)
        return sli_no_memory(NULL, "the names to freeze");
    sl_status status = SL_OK;
    for (const char *pattern = strtok_r(copy, ",", &rest); pattern && status == SL_OK;
         pattern = strtok_r(NULL, ",", &rest))
        if (freeze_below(root, pattern) == 0)
            status = sl_error(SL_ERR_INVALID,
                              "freeze: no parameter has a name of the form \"%s\": give one such "
                              "as \"%s\", with * for any characters",
                              pattern, example_of(root));
    free(copy);
    SL_TRY(status);
    return sli_module_elements(root, SL_PARAMETER_TRAINED) > 0
               ? SL_OK
               : sl_error(SL_ERR_INVALID, "freeze: \"%s\" leaves no parameter to train", patterns);
}

/* ---- In bf16 alone ---------------------------------------------------------------------- */

static bool can_be_narrow(const sl_parameter *parameter)
{
    bool can =
        parameter->kind == SL_PARAMETER_FROZEN && (parameter->in_products || parameter->is_table);
    for (const sl_parameter *tied = parameter->ties; tied; tied = tied->next_tie)
        can &= tied->in_products || tied->is_table;
    return can;
}

void sli_module_narrow_frozen(sl_module *module)
{
    for (int i = 0; i < module->parameter_count; i++)
        module->parameters[i]->is_narrow = can_be_narrow(module->parameters[i]);
    for (int i = 0; i < module->child_count; i++)
        sli_module_narrow_frozen(module->children[i]);
}

/* ---- Where backward ends ---------------------------------------------------------------- */

typedef struct first_use {
    const sl_module *sequential;
    int first;
} first_use;

/* What is tied to a trained parameter has a gradient too, wherever it is. */
static sl_status note_tied(sl_parameter *tied, void *arg)
{
    first_use *use = arg;
    int index = sli_module_index_in(use->sequential, tied->module);
    if (sli_parameter_is_trained(tied) && index >= 0 && index < use->first)
        use->first = index;
    return SL_OK;
}

static sl_status find_skip(const sli_skip_end *end, void *unused)
{
    (void)end;
    (void)unused;
    return SL_ERR_CONFLICT;
}

int sli_module_frozen_count(const sl_module *sequential)
{
    first_use use = {.sequential = sequential};
    while (use.first < sequential->child_count &&
           sli_module_elements(sequential->children[use.first], SL_PARAMETER_TRAINED) == 0)
        use.first++;
    if (use.first == 0 || sli_module_for_each_skip_end(sequential, find_skip, NULL) != SL_OK)
        return 0;
    (void)sli_module_for_each_tie(sequential, note_tied, &use);
    while (use.first > 0 &&
           sli_module_elements(sequential->children[use.first - 1], SL_PARAMETER_FROZEN) == 0)
        use.first--; /* it never had parameters, and may wait for its backward */
    return use.first < sequential->child_count ? use.first : 0;
}
