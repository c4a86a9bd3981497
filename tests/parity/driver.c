#include "driver.h"
#include "core/dtype.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void records_check(sl_status status)
{
    if (status == SL_OK)
        return;
    fprintf(stderr, "%s: %s\n", sl_status_name(status), sl_error_text());
    exit(1);
}

static sl_status parse_line(char *line, record *out)
{
    static const sl_dtype dtypes[] = {SL_F32, SL_F64, SL_I32};
    char *rest, *name = strtok_r(line, " \n", &rest), *dtype = strtok_r(NULL, " \n", &rest);
    if (!name || !dtype || strlen(name) >= sizeof out->name)
        return sl_error(SL_ERR_FORMAT, "a record's line is \"NAME DTYPE SIZE...\"");
    strcpy(out->name, name);
    size_t known = 0;
    while (known < 3 && strcmp(sli_dtype_name(dtypes[known]), dtype) != 0)
        known++;
    if (known == 3)
        return sl_error(SL_ERR_FORMAT, "%s: unknown data type \"%s\"", name, dtype);
    out->dtype = dtypes[known];
    out->shape.dims = 0;
    for (char *size; (size = strtok_r(NULL, " \n", &rest)) != NULL;) {
        char *end;
        long long value = strtoll(size, &end, 10);
        if (*end || value < 0 || value > INT32_MAX || out->shape.dims == SL_MAX_DIMS)
            return sl_error(SL_ERR_FORMAT, "%s: bad shape", name);
        out->shape.size[out->shape.dims++] = value;
    }
    return SL_OK;
}

static size_t record_bytes(const record *one)
{
    return (size_t)sl_shape_count(&one->shape) * sl_dtype_bytes(one->dtype);
}

void records_read(FILE *stream, records *out)
{
    char line[512];
    out->count = 0;
    while (fgets(line, sizeof line, stream)) {
        record *one = &out->list[out->count++];
        records_check(parse_line(line, one));
        one->data = malloc(record_bytes(one) + 1);
        if (!one->data || fread(one->data, 1, record_bytes(one), stream) != record_bytes(one))
            records_check(sl_error(SL_ERR_FORMAT, "%s: the stream ends early", one->name));
        if (out->count == MAX_RECORDS)
            records_check(sl_error(SL_ERR_FORMAT, "too many records"));
    }
}

void records_free(records *all)
{
    while (all->count > 0)
        free(all->list[--all->count].data);
}

const record *records_find(const records *all, const char *name)
{
    for (int i = 0; i < all->count; i++)
        if (strcmp(all->list[i].name, name) == 0)
            return &all->list[i];
    return NULL;
}

sl_tensor *records_tensor(const records *all, const char *name, sl_device *device)
{
    const record *one = records_find(all, name);
    sl_tensor *tensor;
    if (!one)
        records_check(sl_error(SL_ERR_NOT_FOUND, "no record \"%s\"", name));
    records_check(
        sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, one->dtype, &one->shape, &tensor));
    records_check(sl_tensor_write(tensor, one->data));
    return tensor;
}

void records_write(FILE *stream, const char *name, sl_dtype dtype, const sl_shape *shape,
                   const void *data)
{
    size_t bytes = (size_t)sl_shape_count(shape) * sl_dtype_bytes(dtype);
    fprintf(stream, "%s %s", name, sli_dtype_name(dtype));
    for (int i = 0; i < shape->dims; i++)
        fprintf(stream, " %" PRId64, shape->size[i]);
    fputc('\n', stream);
    if (fwrite(data, 1, bytes, stream) != bytes)
        records_check(sl_error(SL_ERR_IO, "%s could not be written", name));
}

void records_write_tensor(FILE *stream, const char *name, const sl_tensor *tensor)
{
    void *data = malloc(sli_tensor_bytes(tensor) + 1);
    if (!data)
        records_check(sl_error(SL_ERR_MEMORY, "no memory for a copy of %s", name));
    records_check(sl_tensor_read(tensor, data));
    records_write(stream, name, sl_tensor_dtype(tensor), sl_tensor_shape(tensor), data);
    free(data);
}

/* ---- Options ---------------------------------------------------------------------------- */

const char *option_text(char **arguments, const char *key)
{
    size_t length = strlen(key);
    for (; *arguments; arguments++)
        if (strncmp(*arguments, key, length) == 0 && (*arguments)[length] == '=')
            return *arguments + length + 1;
    records_check(sl_error(SL_ERR_INVALID, "option %s is missing", key));
    return NULL;
}

double option_number(char **arguments, const char *key)
{
    const char *text = option_text(arguments, key);
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end)
        records_check(sl_error(SL_ERR_INVALID, "option %s is not a number: %s", key, text));
    return value;
}

int64_t option_count(char **arguments, const char *key)
{
    return (int64_t)option_number(arguments, key);
}

bool option_is(char **arguments, const char *key, const char *value)
{
    return strcmp(option_text(arguments, key), value) == 0;
}

int job_run(char **options, sl_status (*run_rank)(sl_group *group, void *job))
{
    static records given;
    pthread_mutex_t output = PTHREAD_MUTEX_INITIALIZER;
    job shared = {options, &given, &output};
    records_read(stdin, &given);
    records_check(sl_spawn(run_rank, &shared, (int)option_number(options, "ranks"), NULL));
    records_free(&given);
    return 0;
}
