/* Which layers of a model have adapters: PEFT's rule, by the ends of modules' names. */
#include "models/lora.h"

#include "nn/layers.h"
#include "nn/module.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char all_linear[] = "all-linear";

bool sli_is_lora_name(const char *name)
{
    return strstr(name, ".lora_A.") || strstr(name, ".lora_B.");
}

int64_t sli_lora_rank(const sl_lora_options *lora)
{
    return lora->rank == 0 ? SL_LORA_RANK : lora->rank;
}

float sli_lora_alpha(const sl_lora_options *lora)
{
    return lora->alpha == 0 ? SL_LORA_ALPHA : lora->alpha;
}

static sl_status check_options(const sl_model_options *options)
{
    const sl_lora_options *lora = &options->lora;
    if (options->family == SL_FAMILY_TUTORIALS)
        return sl_error(SL_ERR_INVALID, "lora: adapters are for models of published families, not "
                                        "for that of PyTorch's tutorials");
    if (lora->rank < 0)
        return sl_error(SL_ERR_INVALID, "lora: the rank must be at least 1, got %lld",
                        (long long)lora->rank);
    if (!(sli_lora_alpha(lora) > 0))
        return sl_error(SL_ERR_INVALID, "lora: alpha must be above 0, got %g", (double)lora->alpha);
    return sli_check_dropout("lora", lora->dropout);
}

sl_status sl_lora_targets_set(sl_lora_options *options, const char *text)
{
    size_t length = strlen(text);
    if (length == 0 || length >= sizeof options->targets || *text == ',' ||
        text[length - 1] == ',' || strstr(text, ",,"))
        return sl_error(SL_ERR_INVALID,
                        "lora-targets must be names of layers with commas between them, at most "
                        "%zu bytes, or all-linear, got \"%.80s\"",
                        sizeof options->targets - 1, text);
    memcpy(options->targets, text, length + 1);
    return SL_OK;
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

/* Is the module one of the targets, which follow each other with commas? */
static bool is_target(const char *targets, const sl_module *module)
{
    char path[SLI_PATH_BYTES];
    sli_module_path(module, path);
    if (strcmp(targets, all_linear) == 0)
        return true;
    for (const char *name = targets; *name;) {
        size_t length = strcspn(name, ",");
        if (ends_with_name(path, name, length))
            return true;
        name += length + (name[length] == ',');
    }
    return false;
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

static bool has_listed(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *one = text; *one; one += strcspn(one, ","), one += *one == ',')
        if (strcspn(one, ",") == length && strncmp(one, name, length) == 0)
            return true;
    return false;
}

/* Adds the layer's name to a text of SL_LORA_TARGETS_BYTES. */
static sl_status list_name(sl_module *linear, void *arg)
{
    char *names = arg;
    size_t used = strlen(names);
    if (!has_listed(names, linear->name))
        snprintf(names + used, SL_LORA_TARGETS_BYTES - used, "%s%s", used ? "," : "", linear->name);
    return SL_OK;
}

static sl_status refuse_target(sl_module *model, const char *name, size_t length)
{
    char known[SL_LORA_TARGETS_BYTES] = "";
    (void)for_each_linear(model, 0, list_name, known);
    return sl_error(SL_ERR_INVALID,
                    "lora: no layer of the model is called \"%.*s\": there are %s, and %s",
                    (int)length, name, known, all_linear);
}

/* One is enough, which ends the walk. */
static sl_status find_one(sl_module *linear, void *arg)
{
    return is_target(arg, linear) ? SL_ERR_CONFLICT : SL_OK;
}

/* Every target must be a layer. */
static sl_status check_targets(const char *targets, sl_module *model)
{
    for (const char *name = targets; *name;) {
        char one[SL_LORA_TARGETS_BYTES];
        size_t length = strcspn(name, ",");
        snprintf(one, sizeof one, "%.*s", (int)length, name);
        if (for_each_linear(model, 0, find_one, one) == SL_OK)
            return refuse_target(model, name, length);
        name += length + (name[length] == ',');
    }
    return SL_OK;
}

sl_status sli_lora_names(const sl_model_options *options, sl_module *model,
                         char names[SL_LORA_TARGETS_BYTES])
{
    const char *targets = targets_of(options);
    if (strcmp(targets, all_linear) != 0) {
        snprintf(names, SL_LORA_TARGETS_BYTES, "%s", targets);
        return SL_OK;
    }
    *names = '\0';
    return for_each_linear(model, 0, list_name, names);
}

/* ---- Adding them ------------------------------------------------------------------------ */

typedef struct adding {
    const sl_model_options *options;
    const sl_module *model;
    int64_t first, end; /* of the layers */
} adding;

sl_status sli_lora_layers(const sl_model_options *options, int64_t *first, int64_t *end)
{
    const sl_lora_options *lora = &options->lora;
    *end = lora->layer_end > 0 ? lora->layer_end : options->nlayers;
    *first = options->train_layers > 0 ? *end - options->train_layers : lora->first_layer;
    if (*first >= 0 && *first < *end && *end <= options->nlayers)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "lora: layers %" PRId64 " to %" PRId64
                    " cannot have adapters: the model has layers 0 to %" PRId64,
                    *first, *end - 1, options->nlayers - 1);
}

static sl_status add_to(sl_module *linear, void *arg)
{
    const adding *job = arg;
    const sl_model_options *options = job->options;
    const sl_lora_options *lora = &options->lora;
    int64_t layer = sli_module_index_in(job->model, linear) - 1; /* behind the embedding */
    int64_t rank = sli_lora_rank(lora);
    double divisor = lora->rslora ? sqrt((double)rank) : (double)rank;
    if (layer < job->first || layer >= job->end || !is_target(targets_of(options), linear))
        return SL_OK;
    return sli_linear_add_lora(linear, rank, (float)((double)sli_lora_alpha(lora) / divisor),
                               lora->dropout);
}

sl_status sli_model_add_lora(const sl_model_options *options, sl_module *model)
{
    SL_TRY(check_options(options));
    SL_TRY(check_targets(targets_of(options), model));
    adding job = {.options = options, .model = model};
    SL_TRY(sli_lora_layers(options, &job.first, &job.end));
    SL_TRY(sl_module_freeze(model));
    SL_TRY(for_each_linear(model, 0, add_to, &job));
    if (sli_module_elements(model, SL_PARAMETER_TRAINED) > 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "lora: none of the layers %" PRId64 " to %" PRId64 " has one of the targets %s",
                    job.first, job.end - 1, targets_of(options));
}
