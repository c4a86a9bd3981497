/* Scalars as TensorBoard's event files. A file is a row of records:
 *
 *     length, 8 bytes | masked CRC32C of these, 4 | data | masked CRC32C of the data, 4
 *
 * all little-endian; the data are a protocol buffer, tensorflow.Event:
 *
 *     1 wall_time double | 2 step int64 | 3 file_version string
 *     5 summary { 1 value { 1 tag string | 2 simple_value float } … }
 *
 * Source: tensorflow/core/lib/io/record_writer.h, event.proto and summary.proto. */
#include "core/error.h"
#include "core/host.h"
#include "report/run_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BYTES = 1024 }; /* of an event: less than 16 scalars */

/* ---- Protocol buffers --------------------------------------------------------------------- */

typedef struct message {
    uint8_t bytes[MOST_BYTES];
    size_t length;
} message;

enum { VARINT = 0, FIXED_64 = 1, BYTES = 2, FIXED_32 = 5 };

static void put_varint(message *to, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        to->bytes[to->length++] = (uint8_t)(value | 0x80);
    to->bytes[to->length++] = (uint8_t)value;
}

static void put_fixed(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static void put_field(message *to, int field, int type, uint64_t value)
{
    to->bytes[to->length++] = (uint8_t)(field << 3 | type);
    if (type == VARINT) {
        put_varint(to, value);
        return;
    }
    int bytes = type == FIXED_64 ? 8 : 4;
    put_fixed(to->bytes + to->length, value, bytes);
    to->length += (size_t)bytes;
}

static void put_bytes(message *to, int field, const void *data, size_t length)
{
    to->bytes[to->length++] = (uint8_t)(field << 3 | BYTES);
    put_varint(to, length);
    memcpy(to->bytes + to->length, data, length);
    to->length += length;
}

static message begin_event(int64_t step)
{
    message event = {.length = 0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    put_field(&event, 1, FIXED_64, bits);
    put_field(&event, 2, VARINT, (uint64_t)step);
    return event;
}

/* ---- Records ------------------------------------------------------------------------------ */

/* CRC32C (Castagnoli), rotated and moved, as checksums of checksums would be weak. */
static uint32_t masked_crc(const uint8_t *data, size_t length)
{
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8;
}

static sl_status write_event(sl_run_file *file, const message *event)
{
    uint8_t head[12], tail[4];
    put_fixed(head, event->length, 8);
    put_fixed(head + 8, masked_crc(head, 8), 4);
    put_fixed(tail, masked_crc(event->bytes, event->length), 4);
    fwrite(head, 1, sizeof head, file->file);
    fwrite(event->bytes, 1, event->length, file->file);
    fwrite(tail, 1, sizeof tail, file->file);
    return sli_run_file_flush(file);
}

typedef struct scalar {
    const char *tag;
    double value;
} scalar;

static sl_status write_scalars(sl_run_file *file, int64_t step, const scalar *scalars, int count)
{
    message event = begin_event(step), summary = {.length = 0};
    if (!file->file)
        return SL_OK;
    for (int i = 0; i < count; i++) {
        message value = {.length = 0};
        float number = (float)scalars[i].value;
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        put_bytes(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        put_field(&value, 2, FIXED_32, bits);
        put_bytes(&summary, 1, value.bytes, value.length);
    }
    put_bytes(&event, 5, summary.bytes, summary.length);
    return write_event(file, &event);
}

/* ---- The run ------------------------------------------------------------------------------ */

/* A file of its own for each run, as TensorBoard expects in a directory. */
static sl_status start_events(void *context, const sl_run_info *info)
{
    static const char version[] = "brain.Event:2";
    sl_run_file *file = context;
    char host[SLI_HOST_NAME_BYTES], *path;
    (void)info;
    sli_host_name(host);
    if (mkdir(file->path, 0777) != 0 && errno != EEXIST)
        return sl_error(SL_ERR_IO, "%s: the directory cannot be made: %s", file->path,
                        strerror(errno));
    size_t bytes = strlen(file->path) + sizeof host + 80;
    if (!(path = malloc(bytes)))
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a file's name", file->path);
    snprintf(path, bytes, "%s/events.out.tfevents.%010" PRId64 ".%s.%ld", file->path,
             (int64_t)time(NULL), host, (long)getpid());
    sl_status status = sli_run_file_open(file, path);
    free(path);
    SL_TRY(status);
    message event = begin_event(0);
    put_bytes(&event, 3, version, sizeof version - 1);
    return write_event(file, &event);
}

static sl_status write_step(void *context, const sl_step_info *step)
{
    return write_scalars(context, step->step,
                         (const scalar[]){{"train/loss", step->loss},
                                          {"train/perplexity", exp(step->loss)},
                                          {"train/grad_norm", step->grad_norm},
                                          {"train/learning_rate", step->lr},
                                          {"speed/tokens_per_s",
                                           (double)step->tokens / step->seconds},
                                          {"speed/flops_per_s", step->flops / step->seconds},
                                          {"speed/mfu", step->mfu}},
                         isnan(step->mfu) ? 6 : 7);
}

static sl_status write_pipeline(void *context, const sl_pipeline_info *info)
{
    return write_scalars(
        context, info->step,
        (const scalar[]){{"pipeline/bubble_measured", info->utilization->bubble_measured},
                         {"pipeline/bubble_predicted", info->utilization->bubble_predicted}},
        2);
}

static sl_status write_evaluation(void *context, const sl_eval_info *eval)
{
    bool is_test = strcmp(eval->split, "test") == 0;
    return write_scalars(context, eval->step,
                         (const scalar[]){{is_test ? "test/loss" : "valid/loss", eval->loss},
                                          {is_test ? "test/perplexity" : "valid/perplexity",
                                           eval->perplexity}},
                         2);
}

sl_status sl_run_tensorboard_create(const char *directory, sl_reporter_failed *failed,
                                    void *context, sl_run_file **out)
{
    return sli_run_file_create(directory, failed, context,
                               (sl_reporter){.started = start_events,
                                             .step = write_step,
                                             .pipeline = write_pipeline,
                                             .evaluated = write_evaluation},
                               out);
}
