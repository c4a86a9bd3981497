/* The tutorials' Transformer: the members of its config.json are the fields of sl_model_options. */
#include "core/error.h"
#include "models/family.h"

#include <stdlib.h>
#include <string.h>

#define FIELD(field) #field, .offset = offsetof(sl_model_options, field)
#define SIZE         .type = SL_OPTION_INT64, .lowest = 1

/* What shapes do not show of a model begins with SHOWN and ends before CONTEXT. Members from TIE on
 * may be missing. */
enum { SHOWN = 4, TIE = 8, CONTEXT };

static const sl_option rows[] = {
    {.name = FIELD(ntokens), SIZE},
    {.name = FIELD(emsize), SIZE},
    {.name = FIELD(nhid), SIZE},
    {.name = FIELD(nlayers), SIZE},
    {.name = FIELD(nhead), SIZE},
    {.name = FIELD(mask), .type = SL_OPTION_CHOICE, .choices = sl_mask_names},
    {.name = FIELD(activation), .type = SL_OPTION_CHOICE, .choices = sl_activation_names},
    {.name = FIELD(pre_norm), .type = SL_OPTION_FLAG},
    {.name = FIELD(tie), .type = SL_OPTION_FLAG},
    {.name = FIELD(context), SIZE},
    {.name = FIELD(dropout), .type = SL_OPTION_FLOAT, .less_than = 1},
};
enum { ROWS = sizeof rows / sizeof *rows };

static sl_status read_member(const sl_option *row, const json_t *value, sl_model_options *out)
{
    char *text = json_is_string(value) ? strdup(json_string_value(value))
                                       : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text)
        return sli_no_memory(NULL, "\"%s\"", row->name);
    sl_status status = sl_option_set(row, out, text);
    free(text);
    return status == SL_ERR_INVALID ? sl_error_context(SL_ERR_FORMAT, "its ") : status;
}

static sl_status parse(const json_t *config, sl_model_options *out)
{
    for (int i = 0; i < ROWS; i++) {
        const json_t *value = json_object_get(config, rows[i].name);
        if (value)
            SL_TRY(read_member(&rows[i], value, out));
        else if (i < TIE)
            return sl_error(SL_ERR_FORMAT, "it has no \"%s\", as that of a %s has", rows[i].name,
                            sl_family_names[SL_FAMILY_TUTORIALS]);
    }
    return SL_OK;
}

static json_t *print(const sl_model_options *model)
{
    json_t *json = json_object();
    int failed = !json;
    for (int i = 0; i < ROWS && !failed; i++)
        if (i != CONTEXT || model->context > 0)
            failed =
                json_object_set_new(json, rows[i].name, sli_json_option(&rows[i], model, false));
    if (!failed)
        return json;
    json_decref(json);
    return NULL;
}

const sli_family sli_family_tutorials = {parse, print};

sl_status sli_tutorials_compare(const sl_model_options *model, const sl_model_options *wanted)
{
    char *is = NULL, *should = NULL;
    sl_status status = SL_OK;
    for (int i = SHOWN; i < CONTEXT; i++) {
        free(is);
        free(should);
        is = should = NULL;
        SL_TRY_OR_FAIL(sl_option_text(&rows[i], model, &is));
        SL_TRY_OR_FAIL(sl_option_text(&rows[i], wanted, &should));
        if (strcmp(is, should) != 0)
            SL_TRY_OR_FAIL(sl_error(SL_ERR_INVALID, "its model has %s %s, expected %s %s",
                                    rows[i].name, is, rows[i].name, should));
    }
fail:
    free(is);
    free(should);
    return status;
}
