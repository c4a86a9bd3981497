/* Members of a config.json, and what is said of those that are wrong. */
#include "core/error.h"
#include "models/family.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* NULL where it is missing or null. */
static const json_t *member(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    return json_is_null(value) ? NULL : value;
}

/* "its KEY must be a number, got VALUE" */
static sl_status wrong_member(sl_status status, const char *key, const char *wanted,
                              const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text)
        return sli_no_memory(NULL, "\"%s\"", key);
    sl_error(status, "its %s must be %s, got %.60s", key, wanted, text);
    free(text);
    return status;
}

static sl_status missing_member(const char *key)
{
    return sl_error(SL_ERR_FORMAT, "it has no \"%s\"", key);
}

sl_status sli_check_sizes(const char *who, const sli_model_size *sizes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most)
            return sl_error(SL_ERR_INVALID, "%s: %s must be 1 to %" PRId64 ", got %" PRId64, who,
                            sizes[i].name, sizes[i].most, sizes[i].value);
    return SL_OK;
}

sl_status sli_config_integer(const json_t *config, const char *key, int64_t most, int64_t *out)
{
    const json_t *value = member(config, key);
    char wanted[80];
    if (!value)
        return *out < 1 ? missing_member(key) : SL_OK;
    if (json_is_integer(value) && json_integer_value(value) >= 1 &&
        json_integer_value(value) <= most) {
        *out = json_integer_value(value);
        return SL_OK;
    }
    snprintf(wanted, sizeof wanted, "a whole number from 1 to %" PRId64, most);
    return wrong_member(SL_ERR_FORMAT, key, wanted, value);
}

sl_status sli_config_number(const json_t *config, const char *key, double least, double *out)
{
    const json_t *value = member(config, key);
    char wanted[80];
    if (!value)
        return *out < least ? missing_member(key) : SL_OK;
    if (json_is_number(value) && json_number_value(value) >= least) {
        *out = json_number_value(value);
        return SL_OK;
    }
    snprintf(wanted, sizeof wanted, "a number of at least %g", least);
    return wrong_member(SL_ERR_FORMAT, key, wanted, value);
}

sl_status sli_config_flag(const json_t *config, const char *key, bool *out)
{
    const json_t *value = member(config, key);
    if (value && !json_is_boolean(value))
        return wrong_member(SL_ERR_FORMAT, key, "true or false", value);
    if (value)
        *out = json_is_true(value);
    return SL_OK;
}

sl_status sli_config_dropout(const json_t *config, const char *const *keys, float *out)
{
    const char *first = NULL;
    for (; *keys; keys++) {
        double p = (double)*out;
        const json_t *value = member(config, *keys);
        SL_TRY(sli_config_number(config, *keys, 0, &p));
        if (p >= 1)
            return wrong_member(SL_ERR_FORMAT, *keys, "below 1", value);
        if (first && (float)p != *out)
            return sl_error(SL_ERR_UNSUPPORTED,
                            "its %s is %g and its %s %g: sluice has one dropout for both", first,
                            (double)*out, *keys, p);
        first = *keys;
        *out = (float)p;
    }
    return SL_OK;
}

sl_status sli_config_choice(const json_t *config, const char *key, const char *const *names,
                            int *out)
{
    const json_t *value = member(config, key);
    char wanted[256];
    size_t used = 0;
    if (!value)
        return SL_OK;
    for (int i = 0; names[i]; i++) {
        if (json_is_string(value) && strcmp(json_string_value(value), names[i]) == 0) {
            *out = i;
            return SL_OK;
        }
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s\"%s\"",
                                 i == 0         ? ""
                                 : names[i + 1] ? ", "
                                                : " or ",
                                 names[i]);
    }
    return wrong_member(SL_ERR_UNSUPPORTED, key, wanted, value);
}

sl_status sli_config_need_flag(const json_t *config, const char *key, bool served)
{
    bool flag = served;
    SL_TRY(sli_config_flag(config, key, &flag));
    return flag == served ? SL_OK
                          : sl_error(SL_ERR_UNSUPPORTED, "its %s is %s, and sluice serves %s alone",
                                     key, flag ? "true" : "false", served ? "true" : "false");
}

sl_status sli_config_need_none(const json_t *config, const char *key)
{
    return member(config, key)
               ? sl_error(SL_ERR_UNSUPPORTED, "it has a \"%s\", which sluice does not serve", key)
               : SL_OK;
}

json_t *sli_config_float(float value)
{
    const sl_option row = {.type = SL_OPTION_FLOAT};
    return sli_json_option(&row, &value, false);
}
