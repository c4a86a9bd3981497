/* Which layers of a model have adapters: PEFT's rule, by the ends of modules' names. */
#include "models/lora.h"

#include "nn/layers.h"
#include "nn/module.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char all_linear[] = "all-linear";

bool sli_is_lora_name(const char *name)
{
    return strstr(name, ".lora_A.") || strstr(name, ".lora_B.");
}

static sl_status check_options(const sl_model_options *options)
{
    const sl_lora_options *lora = &options->lora;
    if (options->family == SL_FAMILY_TUTORIALS)
        return sl_error(SL_ERR_INVALID, "lora: adapters are for models of published families, not "
                                        "for that of PyTorch's tutorials");
    if (lora->rank < 1)
        return sl_error(SL_ERR_INVALID, "lora: the rank must be at least 1, got %lld",
                        (long long)lora->rank);
    if (!(lora->alpha > 0))
        return sl_error(SL_ERR_INVALID, "lora: alpha must be above 0, got %g", (double)lora->alpha);
    return sli_check_dropout("lora", lora->dropout);
}

static const char *targets_of(const sl_model_options *options)
{
    if (*options->lora.targets)
        return options->lora.targets;
    return options->family == SL_FAMILY_GPT2 ? "c_attn" : "q_proj,v_proj";
}

/* Does the path end with this name, or is it the name? */
static bool ends_with_name(const char *path, const char *name, size_t length)
{
    size_t path_length = strlen(path);
    if (path_length < length || strncmp(path + path_length - length, name, length) != 0)
        return false;
    return path_length == length || path[path_length - length - 1] == '.';
}

/* The target, of those that follow each other with commas, which the module is; NULL: none. */
static const char *find_target(const char *targets, const sl_module *module)
{
    char path[SLI_PATH_BYTES];
    sli_module_path(module, path);
    if (strcmp(targets, all_linear) == 0)
        return targets;
    for (const char *name = targets; *name;) {
        size_t length = strcspn(name, ",");
        if (ends_with_name(path, name, length))
            return name;
        name += length + (name[length] == ',');
    }
    return NULL;
}

/* Calls fn for each linear layer of the model's decoder layers, until an error. The head is none of
 * them. */
static sl_status for_each_linear(sl_module *module, int depth,
                                 sl_status (*fn)(sl_module *linear, void *arg), void *arg)
{
    if (depth > 1 && sli_module_as_linear(module))
        return fn(module, arg);
    for (int i = 0; i < sl_module_child_count(module); i++)
        SL_TRY(for_each_linear(sl_module_child(module, i), depth + 1, fn, arg));
    return SL_OK;
}

/* ---- Names ------------------------------------------------------------------------------ */

/* Names with commas between them, each once. */
typedef struct name_list {
    const char *targets; /* whose layers are listed; NULL: all are */
    char *text;          /* [SL_LORA_TARGETS_BYTES] */
} name_list;

static bool has_listed(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *one = text; *one; one += strcspn(one, ","), one += *one == ',')
        if (strcspn(one, ",") == length && strncmp(one, name, length) == 0)
            return true;
    return false;
}

static sl_status list_name(sl_module *linear, void *arg)
{
    const name_list *list = arg;
    size_t used = strlen(list->text);
    if ((!list->targets || find_target(list->targets, linear)) &&
        !has_listed(list->text, linear->name))
        snprintf(list->text + used, SL_LORA_TARGETS_BYTES - used, "%s%s", used ? "," : "",
                 linear->name);
    return SL_OK;
}

static sl_status refuse_target(sl_module *model, const char *name, size_t length)
{
    char known[SL_LORA_TARGETS_BYTES] = "";
    (void)for_each_linear(model, 0, list_name, &(name_list){.text = known});
    return sl_error(SL_ERR_INVALID,
                    "lora: no layer of the model is called \"%.*s\": there are %s, and %s",
                    (int)length, name, known, all_linear);
}

static sl_status is_target(sl_module *linear, void *arg)
{
    return find_target(arg, linear) ? SL_ERR_CONFLICT : SL_OK; /* found: that ends the search */
}

/* Every target must be a layer. */
static sl_status check_targets(const char *targets, sl_module *model)
{
    for (const char *name = targets; *name;) {
        char one[SL_LORA_TARGETS_BYTES];
        size_t length = strcspn(name, ",");
        snprintf(one, sizeof one, "%.*s", (int)length, name);
        if (for_each_linear(model, 0, is_target, one) == SL_OK)
            return refuse_target(model, name, length);
        name += length + (name[length] == ',');
    }
    return SL_OK;
}

sl_status sli_lora_names(const sl_model_options *options, sl_module *model,
                         char names[SL_LORA_TARGETS_BYTES])
{
    *names = '\0';
    return for_each_linear(model, 0, list_name,
                           &(name_list){.targets = targets_of(options), .text = names});
}

/* ---- Adding them ------------------------------------------------------------------------ */

static sl_status add_to(sl_module *linear, void *arg)
{
    const sl_model_options *options = arg;
    const sl_lora_options *lora = &options->lora;
    double divisor = lora->rslora ? sqrt((double)lora->rank) : (double)lora->rank;
    if (!find_target(targets_of(options), linear))
        return SL_OK;
    return sli_linear_add_lora(linear, lora->rank, (float)((double)lora->alpha / divisor),
                               lora->dropout);
}

sl_status sli_model_add_lora(const sl_model_options *options, sl_module *model)
{
    SL_TRY(check_options(options));
    SL_TRY(check_targets(targets_of(options), model));
    SL_TRY(sl_module_freeze(model));
    return for_each_linear(model, 0, add_to, (void *)options);
}
